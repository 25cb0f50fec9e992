"use strict";
// The theme: the system's own until the reader chooses.
const root = document.documentElement;
const theme = document.getElementById("theme");
const system = window.matchMedia("(prefers-color-scheme: dark)");
function show(dark) {
  root.dataset.theme = dark ? "dark" : "light";
  theme.setAttribute("aria-pressed", String(dark));
}
show(system.matches);
theme.addEventListener("click", () => show(root.dataset.theme !== "dark"));

// The ledger: DataTables sorts and pages, the form above it filters. A run on prompts of one's own has none.
if (document.getElementById("ledger")) {
  const field = (name) => document.getElementById("filter-" + name);
  const table = new DataTable("#ledger", {
    order: [],
    pageLength: 25,
    autoWidth: false,
    layout: { topStart: null, topEnd: null, bottomStart: "pageLength", bottomEnd: "paging" },
    language: { lengthMenu: "_MENU_ rows a page" },
  });
  const columns = { paper: 0, location: 1, verdict: 6 };
  function filter() {
    table.search(field("text").value);
    for (const [name, column] of Object.entries(columns)) {
      const wanted = field(name).value;
      table.column(column).search.fixed("exact", wanted ? (text) => text === wanted : null);
    }
    table.draw();
    const found = table.page.info();
    field("count").textContent = found.recordsDisplay + " of " + found.recordsTotal + " rows";
  }
  const form = document.getElementById("filters");
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  for (const link of document.querySelectorAll("[data-verdict]")) {
    link.addEventListener("click", () => {
      form.reset();
      field("verdict").value = link.dataset.verdict;
      setTimeout(filter);
    });
  }
  filter();
}
