"""Pages of the site that are made from the repository's own files, and links that work on GitHub and on the site alike. MkDocs calls this."""

import contextlib
import functools
import html
import io
import logging
import posixpath
import re
from pathlib import Path

import latex2mathml.converter
import pandas as pd
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from draftlab.data.registry import table_markdown
from draftlab.files.tables import read_texts
from draftlab.plan import Experiment, load_experiment

ROOT = Path(__file__).resolve().parents[1]
WARN = logging.getLogger("mkdocs.hooks.pages").warning  # a warning ends a strict build
COPIES = {
    "index.md": "README.md",
    "config.md": "config/README.md",
    **{f"{name.lower()}.md": f"{name}.md" for name in ("CONTRIBUTING", "DEVIATIONS", "CHANGELOG", "SECURITY")},
}
PAPERS = {
    "osd": "Online Speculative Decoding",
    "mdss": "Multi-Draft Speculative Sampling",
    "beyond": "Beyond the papers",
}


def on_config(config: MkDocsConfig) -> None:
    """Name the experiments' pages in the menu."""
    [papers] = (item for item in config.nav or () if "The papers" in item)
    papers["The papers"] = ["papers/index.md"]
    for paper, title in PAPERS.items():
        names = [name for name, it in _experiments().items() if it.paper == paper]
        papers["The papers"].append({title: [{name: f"papers/{name}.md"} for name in names]})


@functools.cache
def _experiments() -> dict[str, Experiment]:
    return {path.stem: load_experiment(path) for path in sorted((ROOT / "workflow/experiments").glob("*.yaml"))}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that no file of docs/ holds, and every published figure."""
    pages = {uri: (ROOT / source).read_text(encoding="utf-8") for uri, source in COPIES.items()}
    pages["datasets.md"] = "# Datasets\n\n" + table_markdown()
    pages["scales.md"] = "# Scales\n\nThe files of `workflow/scales/`: `--config scale=NAME` picks one.\n" + "".join(
        f"\n## {path.stem}\n\n```yaml\n{path.read_text(encoding='utf-8')}```\n"
        for path in sorted((ROOT / "workflow/scales").glob("*.yaml"))
    )
    pages["cli.md"] = _commands()
    pages |= _papers()
    made = [File.generated(config, uri, content=text) for uri, text in pages.items()]
    figures = sorted(ROOT.glob("paper_figures/*/*.png"))
    made += [File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)) for path in figures]
    return Files([*files, *made])


def _commands() -> str:
    """What `draftlab VERB --help` prints of every verb."""
    import tyro

    from draftlab.cli import VERBS, function_of

    order = "Verbs for daily use come first, then the steps of the workflow, then each measurement by itself."
    parts = [f"# Command line\n\nWhat `draftlab VERB --help` prints. {order}\n"]
    for name in VERBS:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.suppress(SystemExit):
            tyro.cli(function_of(name), prog=f"draftlab {name}", args=["--help"])
        parts.append(f"\n## {name}\n\n```text\n{said.getvalue().strip()}\n```\n")
    return "".join(parts)


SCALES = ("laptop", "smollm2", "qwen2.5-coder", "shapes", "shapes_cpu")
"""The folders of paper_figures that experiments' pages show, in this order."""


def _papers() -> dict[str, str]:
    """A page for each experiment: question, answer, figure, table, what was printed beside ours, and its file."""
    claims = read_texts(ROOT / "paper_figures/laptop/data/claims.csv")
    pages, index = (
        {},
        {
            paper: [f"\n## {title}\n\n| experiment | shows | question |\n|---|---|---|"]
            for paper, title in PAPERS.items()
        },
    )
    for name, it in _experiments().items():
        index[it.paper].append(f"| [`{name}`]({name}.md) | {it.artefact} | {it.question} |")
        parts = [
            f"# {it.title}",
            f"`{name}` · {it.artefact} · stage [`{it.stage}`](../tables.md#{it.stage})",
            f"**{it.question}**",
        ]
        for scale in SCALES:
            table = ROOT / f"paper_figures/{scale}/{name}.md"
            if table.exists():
                figure = f"![{it.title}](../paper_figures/{scale}/{name}.png)"
                answer, _, rest = table.read_text(encoding="utf-8").partition("\n")
                shown = [answer, figure, rest] if not answer.startswith("|") else [figure, answer + "\n" + rest]
                parts += [f"## At scale `{scale}`", *shown]
        rows = claims[claims["experiment"].str.split(", ").map(lambda names, own=name: own in names)]
        if len(rows):
            parts += ["## Published beside ours", _table(rows)]
        written = (ROOT / f"workflow/experiments/{name}.yaml").read_text(encoding="utf-8")
        parts += ["## Its file", f"```yaml\n{written}```"]
        pages[f"papers/{name}.md"] = "\n\n".join(parts) + "\n"
    head = "# The papers\n\nEach experiment is one file of `workflow/experiments/`. Its page has the question, the answer, the figure, the table, and what the paper printed.\n"
    pages["papers/index.md"] = head + "".join("\n".join(lines) + "\n" for lines in index.values())
    return pages


def _table(rows: pd.DataFrame) -> str:
    lines = [
        "| where | quantity | printed | ours | 95 % interval | verdict | note |",
        "|---|---|---:|---:|---|---|---|",
    ]
    for row in rows.itertuples():
        ours, low, high = (f"{float(number):.4g}" if number else "" for number in (row.ours, row.ci_low, row.ci_high))
        what = f"{row.quantity}: {row.setting}" if row.setting else row.quantity
        cells = (row.location, what, row.published, ours, low and f"{low} to {high}", row.verdict, row.note)
        lines.append(f"| {' | '.join(cell.replace('|', BAR) for cell in cells)} |")
    return "\n".join(lines)


BAR = "\\|"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links to their pages; a file without a page becomes its name."""
    uri = page.file.src_uri
    source = COPIES.get(uri) or f"docs/{uri}"
    if uri.startswith("papers/") or (source.startswith("docs/") and not (ROOT / source).exists()):
        return markdown  # generated for the site
    uris = {path: uri for uri, path in COPIES.items()}

    def moved(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, _, anchor = target.partition("#")
        if not path or "://" in target or target.startswith("mailto:"):
            return match[0]
        own = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if not (ROOT / own).exists():
            WARN(f"{source} links to {target}, which is not there")
        found = uris.get(own) or own.removeprefix("docs/")
        if own.startswith("paper_figures/") and own.endswith("README.md"):
            found = "papers/index.md"
        if files.get_file_from_path(found) is None:
            return text if text.strip("`") == own else f"{text} (`{own}`)"
        there = posixpath.relpath(found, posixpath.dirname(uri) or ".")
        return f"{image}[{text}]({there}{'#' + anchor if anchor else ''})"

    kept = re.split(r"(^```.*?^```$)", markdown, flags=re.M | re.S)  # links in code stay
    return "".join(part if number % 2 else LINK.sub(moved, part) for number, part in enumerate(kept))


def on_page_content(text: str, **_: object) -> str:
    """Equations as MathML, which browsers draw without a script."""
    for tag, open_, close, display in (("span", r"\\\(", r"\\\)", "inline"), ("div", r"\\\[", r"\\\]", "block")):
        drawn = functools.partial(_math, display=display)
        text = re.sub(rf'<{tag} class="arithmatex">{open_}(.*?){close}</{tag}>', drawn, text, flags=re.S)
    return text


def _math(match: re.Match[str], display: str) -> str:
    return latex2mathml.converter.convert(html.unescape(match[1]), display=display)
