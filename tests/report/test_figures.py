"""Every figure draws, says its scale, and has the same bytes twice."""

import dataclasses
import itertools
import math
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from pydantic import ValidationError

from draftlab import plan
from draftlab.errors import UserError
from draftlab.plan.figure import Curves, StreamCurves
from draftlab.report import figures, findings, tidy
from draftlab.report.figures import batch, forms, mdss_cone, stream, style
from draftlab.report.figures.curves import curve_figure
from draftlab.stages import STAGES
from tests.conftest import ROOT
from tests.synthetic import TABLES

FILES = {path.stem: tidy.plan_of(path.stem) for path in sorted((tidy.WORKFLOW / "experiments").glob("*.yaml"))}
WITH_FIGURE = [name for name, experiment in FILES.items() if experiment.figure or name in plan.DESIGNED]
"""The experiments with a designed figure, not an overview."""


def _table(name):
    return tidy.derive(name, TABLES[name]())


def _inside(page, box):
    return page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1


def test_a_figure_is_data_or_a_module():
    assert set(plan.DESIGNED) <= set(FILES)
    assert not [name for name in plan.DESIGNED if FILES[name].figure]
    likes = [plan.figure.like.experiment for plan in FILES.values() if plan.figure and plan.figure.like]
    assert set(likes) <= set(plan.DESIGNED)
    assert likes


def test_printed_numbers_of_a_figure_exist(known):
    """A claim without printed numbers would be drawn as nothing."""
    forms_of = [form for experiment in FILES.values() if experiment.figure for _, form in experiment.figure if form]
    for form in forms_of:
        printed = getattr(form, "printed", None) or []
        for one in printed if isinstance(printed, list) else [printed]:
            assert len(known.of(one.claim, **getattr(one, "where", {})))
        for name in getattr(getattr(form, "curves", None), "panels", {}).values():
            curves = form.curves
            pairs = [(curves.figure.format(panel=name), series.format(panel=name)) for series in curves.series]
            assert all(len(known.curve(*pair)) for pair in pairs)


@pytest.mark.parametrize("name", WITH_FIGURE)
def test_draws_with_scale_and_without_overlap(known, name):
    table = _table(name)
    title = findings.takeaway(findings.sentences(name, table))
    figure = figures.figure(name, table, "laptop", known, title)
    assert isinstance(figure, Figure)
    assert figure.get_supxlabel().startswith("scale: laptop")
    assert figure.get_supxlabel().count("\n") < 2
    shown = [figure.get_suptitle(), *(legend.get_title().get_text() for legend in figure.legends)]
    assert title in [" ".join(text.split()) for text in shown]
    drawn = [ax for ax in figure.axes if ax.has_data()]
    assert drawn == figure.axes, "a panel is empty"
    assert all(ax.get_xlabel() or ax.get_subplotspec().rowspan.stop < ax.get_gridspec().nrows for ax in figure.axes)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    page = figure.bbox.padded(1)
    texts = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    texts += [legend.get_title() for legend in figure.legends]
    texts += [text for ax in figure.axes for text in (ax.title, ax.xaxis.label, ax.yaxis.label)]
    outside = [
        text.get_text() for text in texts if text.get_text() and not _inside(page, text.get_window_extent(renderer))
    ]
    assert not outside, f"text runs out of {name}"
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            boxes = [
                label.get_window_extent(renderer)
                for label in axis.get_ticklabels()
                if label.get_text() and label.get_visible()
            ]
            collisions = [a for a, b in itertools.combinations(boxes, 2) if a.overlaps(b)]
            assert not collisions, f"tick labels collide in {name}"


@pytest.mark.parametrize("name", ["osd_offline", "mdss_acceptance"])
def test_same_table_same_bytes(known, name, tmp_path):
    for copy in ("one", "two"):
        style.save(figures.figure(name, _table(name), "smoke", known), tmp_path / copy)
    for suffix in (".pdf", ".png"):
        first, second = ((tmp_path / f"{copy}{suffix}").read_bytes() for copy in ("one", "two"))
        assert first == second
        assert len(first) > 5000
    assert b"CreationDate" not in (tmp_path / "one.pdf").read_bytes()


def test_a_class_is_counted_in_requests_and_its_figure_names_the_unit(known):
    rows = pd.DataFrame({"group": ["a", "b"] * 6, "stream_index": range(0, 120, 10), "requests": [2, 4] * 6, "seed": 0})
    rows = rows.assign(method="separate", overlap=1, visited=2)
    assert stream.renumber_by_class(rows).loc[rows["group"] == "b", "stream_index"].tolist() == [0, 4, 8, 12, 16, 20]
    assert stream.renumber_by_class(rows).loc[rows["group"] == "a", "stream_index"].tolist() == [0, 0, 4, 4, 8, 8]
    footer = " ".join(stream.stream_figure(rows, "laptop", known, StreamCurves()).get_supxlabel().split())
    assert "95 % bootstrap over groups of up to 4 requests" in footer
    assert "· 36 requests ·" in footer
    by_class = stream.stream_figure(rows, "laptop", known, StreamCurves(panel="group", by_class=True)).get_supxlabel()
    assert "36 requests of 2 classes" in " ".join(by_class.split())
    together = stream.stream_figure(rows, "laptop", known, StreamCurves(panel="group")).get_supxlabel()
    assert "· 36 requests ·" in " ".join(together.split())


@pytest.mark.parametrize("name", ["osd_offline", "osd_latency_dataset"])
def test_a_legend_names_printed_numbers_only_where_there_are_some(known, name):
    """No paper printed numbers for the user's prompts."""
    for dataset, printed in (("spider", 1), ("mine", 0)):
        table = _table(name).query("dataset == 'spider'").assign(dataset=dataset)
        (legend,) = figures.figure(name, table, "laptop", known).legends
        assert sum("printed" in text.get_text() for text in legend.get_texts()) == printed


def test_classes_stand_in_the_order_of_their_streams(known):
    lengths = {"Chinese": 30, "English": 90, "Russian": 60}
    classes = [pd.DataFrame({"group": [name] * n, "stream_index": range(n)}) for name, n in lengths.items()]
    table = pd.concat(classes, ignore_index=True).assign(method="separate", seed=0, overlap=1, visited=2)
    drawn = stream.stream_figure(table, "laptop", known, StreamCurves(panel="group", by_class=True))
    assert [ax.get_title() for ax in drawn.axes] == ["English", "Russian", "Chinese"]


def test_panels_that_share_an_axis_share_its_ticks(known):
    """The short streams of some classes once put their ticks under the long one's."""
    rows = pd.DataFrame({"group": ["long"] * 1200, "stream_index": range(1200)})
    short = [pd.DataFrame({"group": [name] * 150, "stream_index": range(150)}) for name in "abcde"]
    table = pd.concat([rows, *short]).assign(method="separate", seed=0, overlap=1, visited=2)
    figure = stream.stream_figure(table, "laptop", known, StreamCurves(panel="group"))
    assert figure.axes[0].get_xticks().tolist() == figure.axes[-1].get_xticks().tolist() == [0, 600, 1200]


def test_panels_whose_settings_differ_share_their_axis(known):
    """A panel with one of the settings once put it at the end of an axis of its own."""
    rows = [{"panel": panel, "x": x} for panel, settings in {"a": [4, 8, 32], "b": [8]}.items() for x in settings]
    table = pd.DataFrame(rows * 4).assign(request_id=[number for number in range(4) for _ in rows], good=1, all=2)
    form = Curves(x="x", xlabel="{panel}", above="good", below="all", ylabel="share", panel="panel", log_x=True)
    first, second = curve_figure(table, "laptop", known, form, {}).axes
    assert first.get_xticks().tolist() == second.get_xticks().tolist() == [4, 8, 32]
    assert first.get_xlim() == second.get_xlim()
    assert (first.get_xlabel(), second.get_xlabel()) == ("a", "b")


def test_less_than_a_decade_has_several_labels(known):
    table = pd.DataFrame(
        {"x": [2.3e12, 4.1e12, 9.2e12, 1.6e13] * 4, "request_id": [0, 1, 2, 3] * 4, "good": 1, "all": 2}
    )
    form = Curves(x="x", xlabel="FLOPs", above="good", below="all", ylabel="share", log_x=True)
    figure = curve_figure(table, "laptop", known, form, {})
    FigureCanvasAgg(figure).draw()
    (ax,) = figure.axes
    low, high = ax.get_xlim()
    labels = [
        label.get_text()
        for label in ax.get_xticklabels(which="both")
        if low <= label.get_position()[0] <= high and label.get_text()
    ]
    assert len(labels) > 1


def test_a_legend_lists_known_series_in_their_order():
    """Levels and printed curves are not drawn in the order of our series: 100 % once stood before 30 %."""
    figure, axes = style.panels(1, 1)
    for label in ("printed", "static, 100 %", "static, 30 %", "online"):
        axes[0, 0].plot([0, 1], [0, 1], label=label)
    style.legend(figure)
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == ["online", "static, 30 %", "static, 100 %", "printed"]


@pytest.mark.parametrize("width", [4.6, 7.0])
def test_a_legend_has_the_room_that_it_takes(width):
    """Matplotlib spreads labels evenly over the columns: seven over three are 3, 2 and 2."""
    labels = [
        "no draft",
        "i.i.d. sequences",
        "ceiling of all",
        "branches after a trunk",
        "top-k",
        "static (Sequoia)",
        "K-SEQ",
    ]
    figure, axes = style.panels(1, 1, width=width)
    for label in labels:
        axes[0, 0].plot([0, 1], [0, 1], label=label)
    style.legend(figure)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (legend,) = figure.legends
    labels = [text.get_text() for text in legend.get_texts()]
    box = legend.get_window_extent(canvas.get_renderer())
    taken = 72 * box.width / figure.dpi
    rows = -(-len(labels) // legend._ncols)
    assert taken == pytest.approx(style._width(labels, rows), rel=0.04)
    assert taken < 72 * width
    assert 1 < rows < len(labels)


def test_a_printed_rival_is_drawn(known):
    table = tidy.read(ROOT / "paper_figures/laptop/data/beyond_resolution.csv.gz", "beyond_resolution")
    panels = figures.figure("beyond_resolution", table, "laptop", known).axes
    hollow = [
        [x for line in ax.lines if line.get_markerfacecolor() == "none" for x in line.get_xdata()] for ax in panels
    ]
    assert hollow == [[5.27, 40.3, 70.75], [23.92], [34.94]]


def test_marks_stand_on_their_own_lines(known):
    figure = figures.figure("mdss_quality", _table("mdss_quality"), "laptop", known)
    lines = [line for ax in figure.axes for line in ax.lines if len(line.get_xdata()) > 2]
    assert lines
    assert all(line.get_marker() not in ("", "None") for line in lines if line.get_linestyle() != "None")


def test_a_difference_of_a_single_request_is_in_brackets(known):
    """Its spread is not known, so nothing says that its interval leaves out 0."""
    table = _table("beyond_regime")
    one = table[table["request_id"] == table["request_id"].iloc[0]]
    one = one.groupby(["entropy_class", "target_temperature", "draft_temperature"]).head(1)
    figure = figures.figure("beyond_regime", one[one["dataset"] == one["dataset"].iloc[0]], "laptop", known)
    written = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert written
    assert all(text.startswith("(") for text in written)


def test_where_nothing_was_counted_nothing_is_drawn(known):
    """Such as alpha where nothing was drafted."""
    table = _table("osd_epochs").assign(overlap=0.0, visited=0)
    assert "n = 0 " in figures.figure("osd_epochs", table, "laptop", known).get_supxlabel()
    nothing = _table("beyond_hybrid").assign(acceptance_sum=0.0, shortfall_sum=0.0, positions=0)
    assert not figures.figure("beyond_hybrid", nothing, "laptop", known).legends
    maps = _table("beyond_specialised")
    first = maps["group"] == maps["group"].iloc[0]
    maps.loc[first, ["overlap", "visited"]] = 0.0
    texts = [
        text.get_text() for ax in figures.figure("beyond_specialised", maps, "laptop", known).axes for text in ax.texts
    ]
    assert texts
    assert not [text for text in texts if "nan" in text]
    with pytest.raises(UserError, match="no group has values of both methods"):
        figures.figure("beyond_specialised", maps[first], "laptop", known)


def test_both_scores_are_counted_and_one_temperature_has_marks(known):
    table = _table("mdss_quality")
    kept = (table["dataset"] != "wmt16") | (table["request_id"] == table["request_id"].iloc[0])
    figure = figures.figure("mdss_quality", table[kept], "laptop", known)
    assert f"n = 1–{table['request_id'].nunique()} requests" in " ".join(figure.get_supxlabel().split())
    plain = table["scheme"] == "plain"
    one = table["draft_temperature"] == table["draft_temperature"].max()
    figure = figures.figure("mdss_quality", table[one | plain], "laptop", known)
    assert len(figure.axes[0].containers) == table.loc[table["identical"] & one & ~plain, "scheme"].nunique()


def test_a_contender_that_one_dataset_lacks_has_no_mark_there(known):
    table = _table("beyond_released")
    lost = (table["dataset"] == table["dataset"].iloc[0]) & (table["contender"] == "lookup")
    assert 0 < lost.sum() < len(table)
    figure = figures.figure("beyond_released", table[~lost], "laptop", known)
    marks = [
        sum(c.get_label() == "prompt lookup" and len(c.lines[0].get_xdata()) for c in ax.containers)
        for ax in figure.axes
    ]
    assert marks == [table["dataset"].nunique() - 1] * 2


def test_a_panel_of_one_dataset_counts_no_others(known):
    rows = pd.DataFrame({"dataset": ["gsm8k", "spider"] * 6, "x": [1, 1, 2, 2] * 3, "request_id": range(12)})
    rows = rows.assign(kind="a", good=1, all=2)
    form = {"x": "x", "xlabel": "x", "above": "good", "below": "all", "ylabel": "share"}
    footers = [
        curve_figure(rows, "laptop", known, Curves(**form, panel=panel), {}).get_supxlabel()
        for panel in (None, "{dataset}, {kind}")
    ]
    assert ["of 2 datasets" in " ".join(footer.split()) for footer in footers] == [True, False]


def test_each_panel_counts_the_requests_that_it_shows():
    """A measure that only some requests have is drawn from those."""
    timed = [1.0, 2.0, math.nan, math.nan]
    rows = pd.DataFrame({"request_id": list("abcd"), "k": 1, "tokens": 3.0, "blocks": 2.0, "seconds": timed})
    form = Curves.model_validate(
        {
            "x": "k",
            "xlabel": "k",
            "above": "tokens",
            "below": "blocks",
            "ylabel": "tokens",
            "also": [["ms", "seconds", "blocks"]],
        }
    )
    footer = " ".join(curve_figure(rows, "laptop", None, form, {}).get_supxlabel().split())
    assert "from top to bottom n = 4 and n = 2 requests per point" in footer


def test_classes_that_print_leaves_out_are_named(known):
    table = tidy.read(ROOT / "paper_figures/laptop/data/osd_arena_classes.csv.gz", "osd_arena_classes")
    footer = " ".join(figures.figure("osd_arena_classes", table, "laptop", known).get_supxlabel().split())
    assert "printed shares leave out English" in footer


def test_printed_values_are_drawn(known):
    figure = figures.figure("osd_offline", _table("osd_offline"), "laptop", known)
    diamonds = [
        line.get_xdata()[0] for line in figure.axes[0].lines if line.get_marker() == "D" and len(line.get_xdata())
    ]
    assert diamonds == [0.28, 0.74, 0.76, 0.62, 0.70]


@pytest.mark.parametrize(
    ("experiment", "axis", "values", "titles"),
    [
        ("beyond_quantized_latency", "weights", ("q8_0", "q4_0"), {"q8_0 weights", "q4_0 weights"}),
        ("beyond_engine", "backend", ("llama_cpp", "torch"), {"llama.cpp", "PyTorch"}),
    ],
)
def test_each_format_of_weights_and_each_engine_has_its_own_panel(known, experiment, axis, values, titles):
    table = _table(experiment)
    table["seconds"] = table["plain_seconds"] / table[axis].map(dict(zip(values, (0.5, 2.0), strict=True)))
    panels = figures.figure(experiment, table, "smollm2", known).axes
    speedups = {ax.get_title(): {x for line in ax.lines for x in line.get_xdata() if x != 1} for ax in panels}
    assert speedups.keys() == titles
    assert [pytest.approx(min(seen)) for seen in speedups.values()] == [max(seen) for seen in speedups.values()]
    assert [max(seen) for seen in speedups.values()] == pytest.approx([0.5, 2.0])


@pytest.mark.parametrize("name", ["osd_epochs", "osd_draft_size"])
def test_a_figure_of_your_own_prompts_has_no_printed_numbers(known, name):
    table = _table(name)
    table = table[table["dataset"] == table["dataset"].iloc[0]].assign(dataset="prompts")
    legends = [
        text.get_text() for legend in figures.figure(name, table, "laptop", known).legends for text in legend.texts
    ]
    assert not [text for text in legends if "printed" in text]


def test_an_experiment_without_a_figure_gets_an_overview(known, tmp_path, monkeypatch):
    table = _table("osd_online")
    (tmp_path / "experiments").mkdir()
    with_figure = (tidy.WORKFLOW / "experiments/osd_online.yaml").read_text()
    monkeypatch.setattr(tidy, "WORKFLOW", tmp_path)
    path = tmp_path / "experiments/osd_something_new.yaml"
    block = re.search(r"^figure:\n(  .*\n)+", with_figure, re.MULTILINE)[0]
    path.write_text(with_figure.replace(block, ""))
    figure = figures.figure("osd_something_new", table, "smoke", known)
    (ax,) = figure.axes
    datasets = ["Spider", "GSM8K", "CodeSearchNet", "Finance-Alpaca"]
    assert [label.get_text() for label in ax.get_yticklabels()] == datasets
    assert ax.get_xlabel() == "alpha"
    assert [len(marks.lines[0].get_xdata()) for marks in ax.containers] == [4] * table["method"].nunique()
    style.save(figures.figure("osd_something_new", table, "smoke", known), tmp_path / "x")
    assert (tmp_path / "x.pdf").stat().st_size > 5000
    path.rename(path.with_name("osd_something_else.yaml")).write_text(with_figure)
    designed = figures.figure("osd_something_else", table, "smoke", known)
    assert [ax.get_title() for ax in designed.axes[:4]] == datasets
    assert designed.axes[4].get_ylabel() == "alpha, printed"
    assert [line.get_label() for line in designed.axes[4].lines] == [
        "online",
        "static, first 10 %",
        "offline, all data",
    ]


@pytest.mark.parametrize("name", ["beyond_divergences", "beyond_length_rules", "beyond_trained_pairs"])
def test_no_mark_of_an_overview_hides_the_next(known, name):
    figure = figures.figure(name, _table(name), "laptop", known)
    FigureCanvasAgg(figure).draw()
    (ax,) = figure.axes
    heights = sorted(marks.lines[0].get_ydata()[0] for marks in ax.containers)
    inches = ax.get_window_extent().height / figure.dpi / abs(ax.get_ylim()[1] - ax.get_ylim()[0])
    least = min(below - above for above, below in itertools.pairwise(heights))
    assert least * inches > ax.containers[0].lines[0].get_markersize() / 72


def test_words_of_an_overview_have_a_name(known):
    assert figures.figure("beyond_divergences", _table("beyond_divergences"), "laptop", known).axes[0].get_ylabel() == (
        "answers of"
    )
    assert not forms.overview("beyond_branches", _table("beyond_branches"), "laptop").axes[0].get_ylabel()


def test_parts_of_the_time_share_their_axis(known):
    """Bars of equal length in two panels once stood for different times."""
    *_, one, two = figures.figure("beyond_block_multidraft", _table("beyond_block_multidraft"), "laptop", known).axes
    assert one.get_xlim() == two.get_xlim()
    longest = max(bar.get_x() + bar.get_width() for ax in (one, two) for bar in ax.patches)
    assert longest < one.get_xlim()[1]


def test_a_share_has_an_axis_that_ends_at_1(known):
    """Over few requests an interval of precision reaches above 1."""
    *shares, _ = figures.figure("osd_token_recall", _table("osd_token_recall"), "laptop", known).axes
    assert {ax.get_ylim() for ax in shares if ax.get_xlabel() != "gain in recall"} == {(-0.05, 1.05)}


@pytest.mark.parametrize("series", ["oracle", "lookup_first"])
def test_no_line_joins_the_marks_of_an_overview(series):
    """Its rows are no scale: a line from one to the next would mean nothing, also where a series is a line without marks in other figures."""
    rows = pd.DataFrame({"estimate": [1.0, 2.0], "ci_low": [0.9, 1.9], "ci_high": [1.1, 2.1]})
    ax = Figure().subplots()
    style.marks(ax, rows, [0, 1], style.LOOKS[series])
    drawn = ax.containers[0].lines[0]
    assert drawn.get_linestyle() == "None"
    assert drawn.get_marker() not in ("", "None")


def test_a_series_without_a_look_of_its_own_looks_like_no_other():
    """The guide's example: a new verifier beside known ones."""
    known = ["single", "optimal", "k_seq"]
    for series in (["last", *known], [*known, "last"], ["last", "later", *known]):
        looks = style.looks(series)
        assert list(looks) == series
        assert len({(one.colour, one.marker) for one in looks.values()}) == len(series)
        assert [looks[name] for name in known] == [style.LOOKS[name] for name in known]
    several = [f"new {number}" for number in range(9)]
    assert [one.colour for one in style.looks(several).values()] == [
        style.look(one, n).colour for n, one in enumerate(several)
    ]


@pytest.mark.parametrize("name", ["mdss_three_drafts", "overview"])
def test_a_new_series_has_a_mark_of_its_own(known, name):
    table = _table("mdss_three_drafts")
    table = table[table["scheme"].isin(["optimal", "k_seq"])]
    table = pd.concat([table[table["scheme"] == "k_seq"].assign(scheme="a_new_one"), table])
    if name == "overview":
        figure = forms.overview("mdss_three_drafts", table, "laptop")
    else:
        figure = figures.figure(name, table, "laptop", known)
    drawn = {bars.get_label(): bars.lines[0] for ax in figure.axes for bars in ax.containers}
    marks = {label: (line.get_color(), line.get_marker()) for label, line in drawn.items()}
    assert {label: marks.get(label) for label in ("optimal", "K-SEQ (SpecTr)")} == {
        one.label: (one.colour, one.marker) for one in (style.LOOKS["optimal"], style.LOOKS["k_seq"])
    }
    assert "a new one" in marks
    assert len(set(marks.values())) == len(marks) == 3


def test_a_figure_like_one_that_no_module_draws_is_refused():
    assert plan.Figure(like={"experiment": "osd_offline"}).like
    with pytest.raises(ValidationError, match="'osd_offline'"):
        plan.Figure(like={"experiment": "osd_online"})


@pytest.mark.parametrize(
    ("name", "block", "message"),
    [
        ("osd_epochs", {"figure": {"curves": {"where": {"epoch": 77}}}}, "osd_epochs.yaml: figure: no row of the table"),
        ("osd_epochs", {"figure": {"curves": {"x": "dataset", "log_x": True}}}, "figure: x is dataset, which holds words"),
        ("osd_epochs", {"figure": None, "layout": {"where": {"dataset": "nobody"}}}, "osd_epochs.yaml: no row of the table"),
        ("mdss_target_temperature", {"figure": {"live": {"x": "scheme"}}}, "figure: x is scheme"),
    ],
)  # fmt: skip
def test_a_figure_without_rows_or_numbers_is_refused(tmp_path, monkeypatch, name, block, message):
    values = FILES[name].model_dump(include={"figure", "layout"}, exclude_none=True)
    figure = block["figure"] and {form: values["figure"][form] | new for form, new in block["figure"].items()}
    layout = plan.Layout.model_validate(values["layout"] | block.get("layout", {}))
    changed = FILES[name].model_copy(update={"figure": figure and plan.Figure.model_validate(figure), "layout": layout})
    monkeypatch.setattr(tidy, "plan_of", lambda _: changed)
    TABLES[name]().to_csv(tmp_path / f"{name}.csv", index=False)
    with pytest.raises(UserError, match=message):
        batch.draw(name, tmp_path / f"{name}.csv", "laptop", tmp_path / "x")


def test_a_table_without_an_experiment_is_refused(known):
    with pytest.raises(UserError, match="no experiment named 'osd_nothing'"):
        figures.figure("osd_nothing", pd.DataFrame({"a": [1, 2]}), "laptop", known)


def test_drawing_imports_no_torch_and_the_command_line_no_heavy_library():
    code = (
        "import sys, draftlab.cli; print({'torch', 'pandas', 'matplotlib', 'scipy', 'transformers'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
    code = (
        "import sys, importlib, draftlab.report.tables, draftlab.report.ledger, draftlab.report.page; from draftlab import plan;"
        "[importlib.import_module(f'draftlab.report.figures.{name}') for name in plan.DESIGNED]; print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"


def test_together_only_what_changed_is_drawn_and_a_broken_table_is_named(tmp_path, monkeypatch):
    data, out, drawn = tmp_path / "data", tmp_path / "out", tmp_path / "drawn.json"
    data.mkdir()
    names = ["mdss_cone", "osd_speedup_theory"]
    for name in names:
        TABLES[name]().to_csv(data / f"{name}.csv", index=False)
    (data / "claims.csv").write_text("not a table of an experiment")
    assert batch.draw_all(data, out, "laptop", drawn, 2) == names
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(before) == {f"{name}{suffix}" for name in names for suffix in batch.SUFFIXES}
    assert batch.draw_all(data, out, "laptop", drawn, 2) == []
    (out / "mdss_cone.tex").unlink()
    assert batch.draw_all(data, out, "laptop", drawn, 1) == ["mdss_cone"]
    rows = TABLES["osd_speedup_theory"]()
    rows[rows["alpha"] > 0.15].to_csv(data / "osd_speedup_theory.csv", index=False)
    assert batch.draw_all(data, out, "laptop", drawn, 1) == ["osd_speedup_theory"]
    assert (out / "mdss_cone.tex").read_bytes() == before["mdss_cone.tex"]
    assert (out / "osd_speedup_theory.pdf").read_bytes() != before["osd_speedup_theory.pdf"]
    digest_of = plan.code_digest
    edited = "draftlab.stages.cone"
    monkeypatch.setattr(plan, "code_digest", lambda *names: digest_of(*names) + "edited" * (edited in names))
    assert batch.draw_all(data, out, "laptop", drawn, 1) == ["mdss_cone"], "its stage computes columns of the table"
    given = tidy.plan_of("mdss_cone")
    wider = given.model_copy(update={"layout": given.layout.model_copy(update={"digits": 1})})
    known = tidy.plan_of
    monkeypatch.setattr(tidy, "plan_of", lambda name: wider if name == "mdss_cone" else known(name))
    assert batch.draw_all(data, out, "laptop", drawn, 1) == ["mdss_cone"]
    assert (out / "mdss_cone.tex").read_bytes() != before["mdss_cone.tex"]
    figured = wider.model_copy(update={"figure": plan.Figure(stream={})})
    monkeypatch.setattr(tidy, "plan_of", lambda name: figured if name == "mdss_cone" else known(name))
    assert batch.draw_all(data, out, "laptop", drawn, 1) == ["mdss_cone"]
    rows.drop(columns="draft_len").to_csv(data / "osd_speedup_theory.csv", index=False)
    with pytest.raises(UserError, match="table osd_speedup_theory has no column 'draft_len'"):
        batch.draw_all(data, out, "laptop", drawn, 2)
    with pytest.raises(UserError, match="no tables here"):
        batch.draw_all(tmp_path / "none", out, "laptop", drawn, 1)


def test_on_macos_figures_are_drawn_without_a_fork(tmp_path, monkeypatch):
    """Its libraries may crash or wait without end in a fork."""
    data, out, drawn = tmp_path / "data", tmp_path / "out", tmp_path / "drawn.json"
    data.mkdir()
    TABLES["mdss_cone"]().to_csv(data / "mdss_cone.csv", index=False)
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.delattr("os.fork")
    assert batch.draw_all(data, out, "laptop", drawn, 1) == ["mdss_cone"]
    assert (out / "mdss_cone.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("ask", "lost", "kind", "message"),
    [
        (lambda table: table["facet"], [], UserError, r"no column 'facet' .*correct report/figures/mdss_cone.py.*there are num_tokens, "),
        (lambda table: table[["facet"]], [], UserError, r"\['facet'\].*correct report/figures/mdss_cone.py"),
        (lambda table: table["rays"], ["rays"], UserError, "no column 'rays' .*its stage writes one now: .*run the experiment again"),
        (lambda table: {}["rays"], ["rays"], KeyError, "^'rays'$"),
    ],
    ids=["misspelt", "misspelt in a list", "an old table", "no column at all"],
)  # fmt: skip
def test_what_to_do_about_a_missing_column(ask, lost, kind, message, tmp_path, monkeypatch):
    """An author who misspells a column is not told to run the experiment again."""
    path = tmp_path / "mdss_cone.csv"
    TABLES["mdss_cone"]().drop(columns=lost).to_csv(path, index=False)
    monkeypatch.setattr(mdss_cone, "draw", lambda table, *_: ask(table))
    with pytest.raises(kind, match=message):
        batch.draw("mdss_cone", path, "smoke", tmp_path / "mdss_cone")


def test_an_old_table_and_a_mistake_in_derive_are_told_apart(tmp_path, monkeypatch):
    path, stage = tmp_path / "mdss_cone.csv", STAGES["cone"]
    TABLES["mdss_cone"]().to_csv(path, index=False)
    monkeypatch.setitem(STAGES, "cone", dataclasses.replace(stage, derive=lambda rows: rows["facet"]))
    with pytest.raises(UserError, match=r"no column 'facet' .correct `derive` of its stage"):
        tidy.read(path)
    monkeypatch.setitem(STAGES, "cone", stage)
    TABLES["mdss_cone"]().drop(columns="subsets").to_csv(path, index=False)
    with pytest.raises(UserError, match=r"no column 'subsets' .its stage writes one now"):
        tidy.read(path)


def test_a_text_in_a_column_of_numbers_is_named(tmp_path):
    path, rows = tmp_path / "mdss_cone.csv", TABLES["mdss_cone"]().astype({"rays": object})
    rows.loc[1, "rays"] = "many"
    rows.to_csv(path, index=False)
    with pytest.raises(UserError, match=rf"{path}: column .rays. holds .many. in row 2, not a number \(run the step"):
        tidy.read(path)


def test_a_figure_depends_on_its_view_and_on_the_measures_of_its_stage(tmp_path, monkeypatch):
    TABLES["mdss_cone"]().to_csv(tmp_path / "mdss_cone.csv", index=False)
    known, stage = tidy.plan_of("mdss_cone"), STAGES["cone"]
    seen = {batch._digest("mdss_cone", tmp_path / "mdss_cone.csv", "laptop")}
    monkeypatch.setitem(STAGES, "cone", dataclasses.replace(stage, measures=dict(list(stage.measures.items())[:1])))
    seen.add(batch._digest("mdss_cone", tmp_path / "mdss_cone.csv", "laptop"))
    monkeypatch.setattr(tidy, "plan_of", lambda _: known.model_copy(update={"view": "other"}))
    seen.add(batch._digest("mdss_cone", tmp_path / "mdss_cone.csv", "laptop"))
    assert len(seen) == 3


@pytest.mark.parametrize("name", plan.DESIGNED)
def test_no_figure_depends_on_all_figures(name):
    """Else an edit of one would redraw it too."""
    source = (Path(figures.__file__).parent / f"{name}.py").read_text()
    assert "from draftlab.report.figures import" not in source


def test_a_price_in_a_name_is_no_formula(known):
    table = _table("osd_arena_classes")
    first, second = table["group"].unique()[:2]
    named = table.assign(group=table["group"].replace({first: "$5 off $6", second: r"$\frac$"}))
    figure = figures.figure("osd_arena_classes", named, "laptop", known, "All at $5 or $6")
    FigureCanvasAgg(figure).draw()
    texts = {text.get_text(): text for text in figure.findobj(Text)}
    assert not any(texts[name].get_parse_math() for name in ("$5 off $6", r"$\frac$", "All at $5 or $6"))


def test_a_footer_ends_its_lines_between_two_facts():
    figure = Figure((4.6, 2))
    facts = ["n = 120 groups of up to 10 requests per point, bars: 95 % bootstrap", "seeds 0, 1, 2", "Spider"]
    style.footer(figure, "laptop", *facts)
    lines = figure.get_supxlabel().split("\n")
    assert len(lines) == 2
    assert " · ".join(lines) == " · ".join(["scale: laptop", *facts])


def test_classes_may_be_called_by_numbers(known):
    """As clusters often are: a table read from a file then has numbers in place of names."""
    table = _table("osd_arena_classes").assign(group=lambda rows: pd.factorize(rows["group"])[0])
    drawn = figures.figure("osd_arena_classes", table, "laptop", known)
    assert "0" in drawn.axes[0].get_legend_handles_labels()[1]


def test_settings_as_text():
    assert style.setting("num_drafts", 1) == "1 draft"
    assert style.setting("num_drafts", 2) == "2 drafts"
    assert style.setting("lag", 1) == "1 request late"
    assert style.setting("alphabet", 1) == "1 token ranked"
    assert style.setting("draft_len", 0) == "plain decoding"
    assert style.setting("alpha", 1.0) == "alpha 1"


@pytest.mark.parametrize(
    ("scale", "name"),
    [
        ("laptop", "beyond_verifiers"),
        ("smollm2", "beyond_verifiers"),
        ("smollm2", "beyond_suffixes_served"),
        ("smollm2", "beyond_tree_served"),
        ("laptop", "beyond_token_rate"),
    ],
)
def test_no_two_series_of_a_published_figure_share_a_colour(scale, name):
    path = ROOT / f"paper_figures/{scale}/data/{name}.csv.gz"
    form = FILES[name].figure.curves
    rows = tidy.select_rows(tidy.read(path), form.where if form else {}, name)
    looks = style.looks(
        value for value in rows["scheme" if form else "contender"] if value not in ("none", "none_again")
    )
    solid = [one.colour for one in looks.values() if one.marker]  # a dotted line without marks is told apart by that
    assert len(set(solid)) == len(solid)


def _crowd(values):
    """Five schemes that emit the same number of tokens at each of these values of ``k``."""
    return pd.DataFrame(
        [
            {"request_id": request, "k": k, "scheme": scheme, "tokens": 3.0 + request, "blocks": 2.0}
            for request in range(4)
            for k in values
            for scheme in ("optimal", "k_seq", "specinfer", "rrs", "greedy")
        ]
    )


CROWD = Curves(x="k", xlabel="k", above="tokens", below="blocks", ylabel="tokens", series="scheme")


def test_intervals_of_many_lines_stand_beside_each_other():
    (ax,) = curve_figure(_crowd([1, 2, 4]), "laptop", None, CROWD, {}).axes
    starts = [container.lines[0].get_xdata()[0] for container in ax.containers]
    assert len(set(starts)) == 5
    assert max(starts) - min(starts) < 0.2
    assert sum(starts) / 5 == pytest.approx(1)


def test_measured_values_of_x_are_not_moved():
    (ax,) = curve_figure(_crowd(range(1, 11)), "laptop", None, CROWD, {}).axes
    assert all(container.lines[0].get_xdata()[0] == 1 for container in ax.containers)


def test_a_small_difference_in_points_is_not_shown_as_0():
    assert [style.in_points(gap) for gap in (0.1234, -0.0006, -0.0004, 0.00002)] == ["+12.3", "-0.1", "-0.04", "0.00"]
