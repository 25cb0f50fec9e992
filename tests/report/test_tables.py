"""Printed tables: the numbers, the bold, the three formats."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from draftlab.core import stats
from draftlab.core.measure import Measure
from draftlab.core.stats import Interval
from draftlab.errors import UserError
from draftlab.plan import WORKFLOW, Layout, load_experiment
from draftlab.report import tables, tidy
from draftlab.report.intervals import digits_of
from tests.synthetic import TABLES

PLANS = {path.stem: load_experiment(path) for path in sorted((WORKFLOW / "experiments").glob("*.yaml"))}
LAYOUTS = {name: plan.layout for name, plan in PLANS.items() if plan.layout is not None}

LAYOUT = Layout(rows=["dataset"], columns=["method"], best="largest")
HITS = Measure("hits", "tries")


def _rows(gap: float) -> pd.DataFrame:
    rows = []
    for method, more in (("old", 0.0), ("new", gap)):
        for request in range(40):
            rows.append(
                {
                    "dataset": "a_b",
                    "method": method,
                    "request_id": request,
                    "hits": 5 + request % 4 + 10 * more * (request % 3),
                    "tries": 10,
                }
            )
    return pd.DataFrame(rows)


def test_cells_are_ratios_of_sums_with_their_interval():
    rows = _rows(0.3)
    cells = tables.summary(rows, LAYOUT, HITS)
    old = rows[rows["method"] == "old"]
    expected = stats.ratio(old["hits"], old["tries"])
    cell = cells[cells["method"] == "old"].iloc[0]
    assert cell["estimate"] == pytest.approx(old["hits"].sum() / old["tries"].sum())
    assert (cell["ci_low"], cell["ci_high"], cell["n"]) == (expected.low, expected.high, 40)


@pytest.mark.parametrize(("gap", "bold"), [(0.3, ["new"]), (0.0, []), (-0.3, ["old"])])
def test_bold_only_where_the_interval_carries_it(gap, bold):
    cells = tables.summary(_rows(gap), LAYOUT, HITS)
    assert cells.loc[cells["best"], "method"].tolist() == bold


def test_a_small_number_is_not_shown_as_0():
    """Most numbers of a column may need few decimals; one that differs from 0 keeps as many as show it."""
    rows = [("a", 0.0131, 0.0112, 0.0154), ("b", 0.000076, 0.000051, 0.000106), ("c", 0.0, -0.001, 0.001)]
    cells = pd.DataFrame(rows, columns=["dataset", "estimate", "ci_low", "ci_high"]).assign(best=False)
    page = tables.arrange(cells, Layout(rows=["dataset"]), HITS)
    shown = ["0.0131 [0.0112, 0.0154]", "0.00008 [0.00005, 0.00011]", "0.0000 [-0.0010, 0.0010]"]
    assert page.iloc[:, 1].tolist() == shown


def test_a_cell_without_a_value_is_a_dash():
    rows = pd.DataFrame([("a", math.nan, math.nan, math.nan)], columns=["dataset", "estimate", "ci_low", "ci_high"])
    page = tables.arrange(rows.assign(best=False), Layout(rows=["dataset"]), HITS)
    assert page.iloc[0, 1] == "–"


def test_numbers_above_the_row_of_all_rows_read_as_in_markdown(tmp_path):
    """The label of the last row makes words of the numbers above it in the CSV file."""
    keys = pd.DataFrame({"draft_temperature": [1.0, 0.25, tables.ALL], "draft_len": [0, 5, tables.ALL]})
    cells = keys.assign(estimate=1.0, ci_low=math.nan, ci_high=math.nan, best=False)
    layout = Layout(rows=list(keys))
    cells.to_csv(tmp_path / "t.csv", index=False)
    page = tables.arrange(tables.read_cells(tmp_path / "t.csv"), layout, HITS)
    assert page.equals(tables.arrange(cells, layout, HITS))
    assert page.iloc[:, 0].tolist() == ["1", "0.25", tables.ALL]


def test_values_that_would_read_the_same_stay_apart():
    """Two classes of a log may be called data_science and data science."""
    names = ["data_science", "data science", "other_class"]
    keys = pd.DataFrame(itertools.product(names, names), columns=["dataset", "method"])
    cells = keys.assign(estimate=np.arange(9.0), ci_low=math.nan, ci_high=math.nan, best=False)
    page = tables.arrange(cells, Layout(rows=["dataset"], columns=["method"]), HITS)
    shown = ["data_science", "data science", "other class"]
    assert page["dataset"].tolist() == list(page)[1:] == shown
    assert page["other class"].tolist() == ["2.000", "5.000", "8.000"]


def test_a_stream_too_short_for_the_window_gives_an_empty_table(tmp_path):
    """A stream of one bin has nothing between 50 and 60 % of its length."""
    rows = TABLES["osd_shift_smooth"]()
    first = rows[rows["stream_index"] == rows["stream_index"].min()]
    tables.write("osd_shift_smooth", first, "paper", tmp_path / "t")
    text = (tmp_path / "t.md").read_text()
    assert "no rows of that part of the stream" in text
    layout = tables.layout_of("osd_shift_smooth", first)
    page = tables.arrange(tables.read_cells(tmp_path / "t.csv"), layout, tidy.plan_of("osd_shift_smooth").measure())
    assert page.empty
    assert text.splitlines()[0] == "| " + " | ".join(tables.header(page, layout)) + " |"


def test_smallest_can_be_best():
    layout = Layout(rows=["dataset"], columns=["method"], best="smallest")
    cells = tables.summary(_rows(0.3), layout, HITS)
    assert cells.loc[cells["best"], "method"].tolist() == ["old"]


def test_three_formats(tmp_path):
    rows = tidy.derive("osd_offline", TABLES["osd_offline"]())
    tables.write("osd_offline", rows, "smoke", tmp_path / "t")
    cells = tables.read_cells(tmp_path / "t.csv")
    assert set(cells["sample_source"]) >= {"none", "teacher"}
    written = pd.read_csv(tmp_path / "t.csv", dtype=str)["estimate"]  # as many digits as differ by no kind of CPU
    assert written.str.removeprefix("0.").str.lstrip("0").str.len().max() == 6
    markdown = (tmp_path / "t.md").read_text()
    assert markdown.startswith("| dataset |")
    assert "scale smoke: alpha, n = 12 requests per cell, 95 % bootstrap" in markdown
    latex = (tmp_path / "t.tex").read_text()
    assert r"\toprule" in latex
    assert "CodeSearchNet" in latex
    assert "all together" in latex
    estimate = cells.iloc[0]
    digits = digits_of([Interval(0, low, high, 0) for low, high in cells[["ci_low", "ci_high"]].to_numpy()], 0)
    assert digits == 3, "the last place is at most a third of the intervals"
    number = "{:.3f} [{:.3f}, {:.3f}]".format(*estimate[["estimate", "ci_low", "ci_high"]])
    assert number in markdown
    assert number in latex


@pytest.mark.parametrize("name", ["osd_latency_alpha", "osd_online"])
def test_all_rows_together_are_a_row_where_a_finding_pools_what_the_table_prints(name, tmp_path):
    """A pooled speed-up over the acceptances that were set means nothing; the finding pools another measure."""
    tables.write(name, tidy.derive(name, TABLES[name]()), "smoke", tmp_path / "t")
    assert ("all together" in (tmp_path / "t.md").read_text()) == (name == "osd_online")


def test_numbers_rise_and_words_stay_as_they_came():
    rows = pd.concat(
        [_rows(0.3).assign(k=k, dataset=name) for name, k in (("b", 10.0), ("a", 2.0), ("b", 0.5), ("a", 0.123456))]
    )
    layout = Layout(rows=["dataset", "k"], columns=["method"])
    page = tables.arrange(tables.summary(rows, layout, HITS), layout, HITS)
    assert page["dataset"].tolist() == ["b", "b", "a", "a"]
    assert page["k"].tolist() == ["0.5", "10", "0.1235", "2"]
    assert list(page)[2:] == ["old", "new"]


def test_units_that_are_all_alike_have_no_interval():
    rows = _rows(0.0).assign(hits=5)
    layout = Layout(rows=["dataset"])
    cells = tables.summary(rows, layout, HITS)
    assert tables.arrange(cells, layout, HITS)["hits / tries"].tolist() == ["0.500"]
    assert "one run each, so no interval" in tables.caption("x", cells, layout, HITS, "requests", "smoke")


def test_the_region_keeps_the_numbers_of_drafts_apart():
    table = tidy.derive("mdss_region", TABLES["mdss_region"]())
    cells = tables.summary(table, LAYOUTS["mdss_region"], tidy.plan_of("mdss_region").measure())
    assert set(cells["num_drafts"]) == set(table["num_drafts"])


def test_no_draft_is_draft_length_0_of_each_kind_of_weights():
    table = tidy.derive("beyond_weights", TABLES["beyond_weights"]())
    none = table[table["draft_len"] == 0]
    assert set(none["weights"]) == set(table["weights"])
    assert (none["speculative_ms"] == none["plain_ms"]).all()
    assert (none["speculative"] == none["plain"]).all()


@pytest.mark.parametrize(("column", "sizes"), [("stream_index", (10, 4)), ("request_id", (10, 4))])
def test_the_caption_of_a_binned_stream_names_its_unit(column, sizes):
    binned = _rows(0.3).rename(columns={"request_id": column}).assign(requests=lambda rows: [*sizes] * (len(rows) // 2))
    binned["stream_index"] = binned[column]
    caption = tables.caption(
        "x", tables.summary(binned, LAYOUT, HITS), LAYOUT, HITS, tidy.resampled_name(binned), "smoke"
    )
    assert "n = 40 groups of up to 10 requests per cell, 95 % bootstrap interval over groups of up to 10" in caption
    assert tidy.resampled_name(_rows(0.3)) == "requests"
    assert tidy.resampled_name(_rows(0.3).assign(requests=600)) == "requests", "requests that a draft learnt from"
    assert tidy.resampled_name(pd.DataFrame({"x": [1]})) is None


@pytest.mark.parametrize("name", list(PLANS))
def test_every_quantity_has_a_name(name):
    assert tidy.plan_of(name).measure().label


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_every_layout_fits_its_table(name, tmp_path):
    tables.write(name, tidy.derive(name, TABLES[name]()), "smoke", tmp_path / name)
    cells = tables.read_cells(tmp_path / f"{name}.csv")
    assert cells["estimate"].notna().all()
    page = tables.arrange(cells, LAYOUTS[name], tidy.plan_of(name).measure())
    filled = page.drop(columns=list(LAYOUTS[name].rows)) != "–"
    assert filled.any(axis=0).all()
    assert filled.any(axis=1).all()


@pytest.fixture
def unknown(monkeypatch):
    """As if no experiment had a layout."""
    monkeypatch.setattr(tidy, "plan_of", lambda name: PLANS[name].model_copy(update={"layout": None}))


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(
    ("name", "rows", "columns", "measure"),
    [
        ("beyond_divergences", ("source",), ("loss",), ("overlap", "visited")),
        ("osd_draft_size", ("dataset", "draft"), ("method",), ("overlap", "visited")),
        ("beyond_compute_matched", ("dataset", "draft"), ("requests",), ("overlap", "visited")),
        ("beyond_draft_length", ("dataset", "draft_len"), ("method",), ("overlap", "visited")),
        ("beyond_routing_errors", ("method",), (), ("overlap", "visited")),
        ("mdss_acceptance", ("scheme", "num_drafts"), ("draft_temperature",), ("acceptance_sum", "positions")),
    ],
)
def test_a_table_without_a_layout_has_the_axes_of_its_experiment(name, rows, columns, measure):
    layout = tables.layout_of(name, tidy.derive(name, TABLES[name]()))
    assert (tuple(layout.rows), tuple(layout.columns), tidy.plan_of(name).measure().columns) == (
        rows,
        columns,
        tuple(filter(None, measure)),
    )


@pytest.mark.usefixtures("unknown")
@pytest.mark.parametrize(
    ("name", "differ"),
    [
        ("osd_epochs", "epoch"),
        ("osd_shift_sharp", "after"),
        ("osd_latency_dataset", "contender"),
        ("osd_speedup_theory", "draft_len"),
    ],
)
def test_rows_that_agree_in_all_axes_are_never_pooled(name, differ):
    message = rf"{name}\.yaml: .*several rows agree in .*, and differ in .*{differ}.*layout"
    with pytest.raises(UserError, match=message):
        tables.layout_of(name, tidy.derive(name, TABLES[name]()))


HOSTILE = [
    r"\input{/etc/passwd}",
    "a|b",
    '=HYPERLINK("http://x")',
    "<img src=x>",
    "50% & more_$x$ #1 ~^{}",
    "two\nlines",
    "**best**",
]


def test_labels_of_a_dataset_are_text_in_every_format():
    """The name of a class is no command of LaTeX, no cell or tag of Markdown, no formula of a spreadsheet."""
    assert [label.translate(tables.TEX) for label in (HOSTILE[0], HOSTILE[4])] == [
        r"\textbackslash{}input\{/etc/passwd\}",
        r"50\% \& more\_\$x\$ \#1 \textasciitilde{}\textasciicircum{}\{\}",
    ]
    assert [label.translate(tables.MARKDOWN) for label in HOSTILE] == [
        r"\\input{/etc/passwd}",
        r"a\|b",
        '=HYPERLINK("http://x")',
        "&lt;img src=x&gt;",
        "50% & more_$x$ #1 ~^{}",
        "two lines",
        r"\*\*best\*\*",
    ]
    assert [tables._inert(label) for label in ("=1+1", "+x", "-x", "-2+3", "@x", "-0.5", "plain", 3)] == [
        "'=1+1", "'+x", "'-x", "'-2+3", "'@x", "-0.5", "plain", 3,
    ]  # fmt: skip
