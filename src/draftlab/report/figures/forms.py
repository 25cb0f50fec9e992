"""The forms of figure that experiments share; an experiment chooses one in the ``figure:`` block of its file (``draftlab.plan.figure``)."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from string import Formatter
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from pandas.api.types import is_string_dtype

from draftlab import plan
from draftlab.core import stats
from draftlab.core.measure import Measure
from draftlab.core.stats import Interval
from draftlab.plan.figure import Curves, Gaps, Live, Printed, PrintedCurves, Stream
from draftlab.report import tables, tidy
from draftlab.report.contrast import Contrast, Rows, Tables, choose, compute_each, decide
from draftlab.report.figures.style import (
    GREY,
    INK,
    LOOKS,
    NAMES,
    PALE,
    SKY,
    Look,
    counted,
    diamonds,
    footer,
    held,
    in_order,
    legend,
    look,
    marks,
    name,
    panels,
    points,
    seeds,
    setting,
)
from draftlab.report.published import Published

Extra = Callable[[Axes, Any], None]


def draw(
    table: pd.DataFrame, scale: str, published: Published, block: plan.Figure, measures: Mapping[str, Measure]
) -> Figure:
    """Draw the form that an experiment's ``figure:`` block chooses; ``measures`` are those of its stage."""
    if block.live:
        return live_figure(table, scale, published, block.live)
    if block.stream:
        return stream_figure(table, scale, published, block.stream)
    if block.gaps:
        return gap_figure(table, scale, published, block.gaps)
    assert block.curves
    return curve_figure(table, scale, published, block.curves, stage_measures=measures)


def curve_figure(
    table: pd.DataFrame,
    scale: str,
    published: Published,
    form: Curves,
    *,
    extra: Extra | None = None,
    foot: Callable[[Axes, pd.DataFrame], None] | None = None,
    apart: float = 0.0,
    facts: Sequence[str] = (),
    stage_measures: Mapping[str, Measure] | None = None,
) -> Figure:
    """Plot estimates with intervals against ``x``: a line per value of ``series``, a panel per value of ``panel``.

    ``extra(ax, panel value)`` adds something to the first row, ``foot(ax, rows)`` draws an extra last row with its own axes. Lines are
    shifted by ``apart`` along ``x``, so that intervals do not hide each other.
    """
    panel, series, x = form.panel, form.series, form.x
    keys = [key for key in (panel, series, x) if key is not None]
    table = _labelled(choose(table, form.where, "of the figure"), keys)
    unit = tidy.unit(table)
    table = table.assign(_one=1.0, _unit=tidy.clusters(table) if unit else "")
    shown = in_order(table[panel].tolist(), [] if panel == "group" else list(NAMES)) if panel else [None]
    measures = form.read_off(stage_measures or {})
    order = in_order(table[series].tolist(), form.order or LOOKS) if series else []
    height, width = (1.6 if form.also else 2.0), (7.0 if len(shown) > 1 else 4.6)
    figure, axes = panels(len(measures) + (foot is not None), len(shown), height=height, width=width, sharey="row")
    for upper in axes[: len(measures) - 1]:
        for ax, lowest in zip(upper, axes[len(measures) - 1], strict=True):
            ax.sharex(lowest)
            ax.tick_params(labelbottom=False)
    n = pd.Series(dtype=int)
    for row, (words, numerator, denominator) in enumerate(measures):
        found = stats.ratio_table(table, numerator, denominator or "_one", keys, request="_unit")
        n = found["n"]
        for ax, value in zip(axes[row], shown, strict=True):
            own = found if panel is None else found[found[panel] == value]
            curves(ax, own, x, series, order, apart)
            _x_axis(ax, own, [key for key in keys if key != panel], form.log_x, 2 if len(shown) > 4 else 1)
            if row == 0:
                ax.set_title("" if value is None else name(value))
                rows = table if panel is None else table[table[panel] == value]
                for printed in form.printed:
                    draw_printed(ax, published, printed, rows, order)
                if extra is not None:
                    extra(ax, value)
            if row == len(measures) - 1:
                ax.set_xlabel(form.xlabel)
            if form.level is not None:
                named = {"linestyle": "--", "linewidth": 1, "label": form.level_name} if form.level_name else {}
                ax.axhline(form.level, **{"color": GREY, "linewidth": 0.6} | named)
        axes[row, 0].set_ylabel(words)
    if foot is not None:
        for ax, value in zip(axes[-1], shown, strict=True):
            foot(ax, table if panel is None else table[table[panel] == value])
    labels = {label for ax in axes.flat for label in ax.get_legend_handles_labels()[1]}
    # A single series is named in the footer and needs no legend.
    alone = [name(order[0])] if series and len(order) == len(labels) == 1 else []
    if labels and not alone and (series or form.printed or extra):
        legend(figure, list(axes.flat))
    several = "dataset" in table and "dataset" not in keys and table["dataset"].nunique() > 1
    datasets = f" of {table['dataset'].nunique()} datasets" if several else ""
    interval = (
        f"{counted(n)} {tidy.units(table)}{datasets} per point, bars: 95 % bootstrap"
        if unit
        else "exact: no n, no interval"
    )
    first = tidy.records(table.iloc[[0]])[0]
    own_facts = [*alone, *held(table, form.held), *(fact.format(**first) for fact in form.facts)]
    footer(figure, scale, interval, seeds(table), *own_facts, *facts)
    return figure


def _labelled(table: pd.DataFrame, keys: Iterable[str | None]) -> pd.DataFrame:
    """Add a column for each key that is a template with column names in braces, and sort by its numeric columns."""
    for key in keys:
        fields = [field for _, field, _, _ in Formatter().parse(key or "") if field]
        if key and fields:
            columns = [table[field].map(name) if is_string_dtype(table[field]) else table[field] for field in fields]
            rows = zip(*columns, strict=True)
            table = table.assign(**{key: [key.format(**dict(zip(fields, row, strict=True))) for row in rows]})
            numbers = [field for field in fields if not is_string_dtype(table[field])]
            table = table.sort_values(numbers, kind="stable") if numbers else table
    return table


def _x_axis(ax: Axes, found: pd.DataFrame, keys: Sequence[str], log: bool, step: int) -> None:
    """Put ticks at every ``step``-th value of ``x`` if there are few; lines with a single value, drawn as levels, do not count."""
    x = keys[-1]
    lines = (
        found.groupby(list(keys[:-1]))[x].transform("nunique") > 1 if len(keys) > 1 else pd.Series(True, found.index)
    )
    values = sorted((found[lines] if lines.any() else found)[x].unique())
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
    words = [f"{value:g}" for value in values]
    few = len(values) <= 3 or (len(values) <= 8 and (log or pd.api.types.is_integer_dtype(found[x])))
    if few and max(map(len, words)) <= 5:
        ax.set_xticks(values[::step], words[::step])
        ax.minorticks_off()


def curves(
    ax: Axes, rows: pd.DataFrame, x: str, series: str | None, order: Sequence[str] = (), apart: float = 0.0
) -> None:
    """Draw one line per value of ``series``; a series with a single ``x`` becomes a horizontal level.

    A known series has its own look, others get one by their place in ``order``. Lines are shifted by ``apart`` along ``x``, so that no
    interval hides another.
    """
    values = in_order(rows[series].tolist(), order) if series else [None]
    several = rows[x].nunique() > 1
    for place, value in enumerate(values):
        line = (rows if value is None else rows[rows[series] == value]).sort_values(x)
        style = look("ours" if value is None else value, order.index(value) if value in order else place)
        if several and len(line) == 1:
            level = line.iloc[0]
            ax.axhline(level["estimate"], **style.options(marker=""))
            if np.isfinite(level["ci_low"]):
                ax.axhspan(level["ci_low"], level["ci_high"], color=style.colour, alpha=0.15, linewidth=0)
        else:
            points(ax, line[x] + apart * (place - (len(values) - 1) / 2), line, style)


PARTS = {
    "draft_seconds": ("drafting", PALE),
    "target_seconds": ("target", GREY),
    "transform_seconds": ("target's distributions", SKY),
    "select_seconds": ("selection", INK),
}


def live_figure(table: pd.DataFrame, scale: str, published: Published, form: Live) -> Figure:
    """Plot tokens per target call over all datasets; for live decoding also tokens per second and the time of a token by part."""
    timed = "seconds" in table
    curve = Curves(
        **form.model_dump(),
        above="emitted",
        below="blocks",
        ylabel="tokens per target call",
        also=[("tokens per second", "emitted", "seconds")] if timed else [],
        held=["dataset", "draft_temperature", "target_temperature", "draft_len"],
    )
    apart = 0.006 * (table[form.x].max() - table[form.x].min())
    return curve_figure(
        table, scale, published, curve, foot=partial(_time_split, form.series) if timed else None, apart=apart
    )


def _time_split(series: str, ax: Axes, rows: pd.DataFrame) -> None:
    """Draw stacked bars of the microseconds per emitted token of each series, by part of the decoding loop."""
    parts = {
        part: shown for part, shown in PARTS.items() if part in rows
    }  # in older tables selection includes the target's distributions
    sums = rows.groupby(series, sort=False)[[*parts, "emitted"]].sum()
    sums = sums.loc[in_order(sums.index.tolist(), list(LOOKS))]
    left = np.zeros(len(sums))
    for part, (label, colour) in parts.items():
        width = 1e6 * (sums[part] / sums["emitted"]).to_numpy()
        ax.barh(range(len(sums)), width, left=left, color=colour, height=0.7, label=label)
        left += width
    ax.set_yticks(range(len(sums)), [name(value) for value in sums.index])
    ax.set(xlabel="µs per token", ylim=(len(sums) - 0.5, -0.5))
    ax.grid(visible=False, axis="y")


def stream_figure(
    table: pd.DataFrame, scale: str, published: Published, form: Stream, *, extra: Extra | None = None
) -> Figure:
    """Plot alpha along a stream as a moving average of past requests, one line per value of ``series``.

    Printed numbers and whatever ``extra(ax, panel value)`` draws go into a second row. ``offline`` rows are held-out requests and
    become a level. A mark at the right shows the last fifth of each stream with its interval.
    """
    panel = form.panel
    if form.by_class:
        table = of_class(table)
    if "after" in table:
        table = table[table["split"] == "train"]
    table = _labelled(table, [panel])
    shown = in_order(table[panel].tolist(), NAMES) if panel else [None]
    has_printed = bool(form.curves or form.printed or extra)
    figure, axes = panels(1 + has_printed, len(shown), height=1.7, sharey=True, sharex="row", width=7.0)
    used: list[int] = []
    for column, value in enumerate(shown):
        rows = table if panel is None else table[table[panel] == value]
        used.append(moving(axes[0, column], rows, form.series, form.window, panel))
        axes[0, column].set_title("" if value is None else name(value))
        if form.curves:
            printed_curves(axes[1, column], published, form.curves, str(value))
        for printed in form.printed:
            draw_printed(axes[1, column], published, printed, rows)
        if extra is not None:
            extra(axes[1, column], value)
        if has_printed:
            in_thousands(axes[1, column])
        axes[-1, column].set_xlabel("requests")
    axes[0, 0].set(ylabel="alpha, ours" if has_printed else "alpha", ylim=(0, 1), xlim=(0, None))
    if has_printed:
        axes[1, 0].set(ylabel="alpha, printed", xlim=(0, None))
    legend(figure, list(axes.flat))
    served = _served(table)
    length = int(served["stream_index"].max()) + _step(served)
    if form.curves and form.curves.records:  # align the shifts of both streams
        axes[1, 0].set_xlim(0, axes[0, 0].get_xlim()[1] * form.curves.records / length)
    ticks = MaxNLocator(2 if len(shown) > 4 else 4).tick_values(0, length)
    axes[0, 0].set_xticks([tick for tick in ticks if tick <= length])
    footer(
        figure,
        scale,
        f"moving average of {'–'.join(map(str, sorted({min(used), max(used)})))} requests{form.note}",
        f"{length} requests",
        seeds(table),
        f"at the right: last fifth of the stream, 95 % bootstrap over {tidy.units(table)}",
    )
    return figure


def of_class(table: pd.DataFrame) -> pd.DataFrame:
    """Renumber a stream so that the requests of each class are counted separately, in steps of the largest bin."""
    summed = table["requests"] if "requests" in table else pd.Series(1, table.index)
    in_turn = summed.loc[table.sort_values("stream_index", kind="stable").index]
    served = in_turn.groupby([table[key] for key in ("group", "method", "seed")]).cumsum() - in_turn
    return table.assign(stream_index=served // summed.max() * summed.max())


def _served(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the stream itself, without held-out requests."""
    return rows[rows["split"] == "train"] if "split" in rows else rows


def _step(served: pd.DataFrame) -> int:
    """How many requests of the stream are summed in one row."""
    places = np.unique(served["stream_index"])
    return int(np.diff(places).min()) if len(places) > 1 else 1


def moving(ax: Axes, rows: pd.DataFrame, series: str, window: int, panel: str | None = None) -> int:
    """Draw the moving averages of one panel; return the window in requests, which is shortened for a short stream."""
    served = _served(rows)
    step = _step(served)
    length = int(served["stream_index"].max()) + step
    window = max(min(window, max(5, length // 10)) // step, 1)
    for place, value in enumerate(in_order(rows[series].tolist(), LOOKS)):
        sums = rows[rows[series] == value].groupby("stream_index")[["overlap", "visited"]].sum()
        style = look(value, place)
        if value == "offline":
            level = stats.ratio(sums["overlap"], sums["visited"])
            ax.axhline(level.estimate, **style.options(marker="", linewidth=1.1))
            continue
        alpha = stats.moving_ratio(sums["overlap"], sums["visited"], window)
        shown = np.arange(len(sums)) >= window - 1
        ax.plot(sums.index[shown], alpha[shown], **style.options(marker=""))
        last = rows[(rows[series] == value) & (rows["stream_index"] >= 0.8 * length)]
        drawn = last.groupby(tidy.clusters(last))[["overlap", "visited"]].sum()
        _end(ax, drawn, length * (1.03 + 0.04 * place), style)
    ax.axvline(length, color=GREY, linewidth=0.5)
    if panel != "group":
        _boundaries(ax, served)
    return window * step


def _end(ax: Axes, last: pd.DataFrame, x: float, style: Look) -> None:
    """Draw the alpha of the last part of a stream at ``x``, with its interval."""
    end = stats.ratio(last["overlap"], last["visited"])
    error = [[end.estimate - end.low], [end.high - end.estimate]]
    ax.errorbar(x, end.estimate, yerr=error, fmt=style.marker, color=style.colour, markersize=3, capsize=1.5)


def _boundaries(ax: Axes, served: pd.DataFrame) -> None:
    """Draw a vertical line where one segment of a stream ends and the next begins, labelled with the group of the next."""
    if "segment" not in served or served["segment"].nunique() < 2 or served["segment"].nunique() > 12:
        return
    for _, rows in served.groupby("segment", sort=True):
        start = rows["stream_index"].min()
        if start:
            ax.axvline(start, color=GREY, linewidth=0.7, linestyle=(0, (2, 2)))
        if "group" in rows:
            _say_above(ax, name(rows["group"].iloc[0]), start, "left")
    if "group" not in served:
        return
    last = rows.loc[rows["stream_index"] >= rows["stream_index"].median(), "group"].mode()[0]
    if last != rows["group"].iloc[0]:  # a drifting segment may end with another class than it begins with
        _say_above(ax, name(last), rows["stream_index"].max(), "right")


def _say_above(ax: Axes, words: str, x: float, side: str) -> None:
    """Write ``words`` at the top of a panel, beside ``x``."""
    place: dict[str, Any] = {"xytext": (2, 0), "textcoords": "offset points", "va": "top", "ha": side}
    ax.annotate(words, (x, 0.98), xycoords=("data", "axes fraction"), fontsize=6, color=GREY, **place)


def printed_curves(ax: Axes, published: Published, form: PrintedCurves, panel: str) -> None:
    """Draw the digitised curves of one published figure with the looks of our series."""
    printed = form.panels.get(panel, panel)
    for place, (series, value) in enumerate(form.series.items()):
        curve = published.curve(form.figure.format(panel=printed), series.format(panel=printed))
        if curve.empty:
            ax.annotate("not printed", (0.5, 0.5), xycoords="axes fraction", ha="center", fontsize=6, color=GREY)
            ax.spines[:].set_visible(False)
        ax.plot(curve["x"], curve["y"], **look(value, place).options(marker="", linewidth=1))
    for start in form.shifts:
        ax.axvline(start, color=GREY, linewidth=0.7, linestyle=(0, (2, 2)))


def in_thousands(ax: Axes) -> None:
    """Label the ticks of ``x`` in thousands: printed streams are long."""
    ax.locator_params(axis="x", nbins=4)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")


def draw_printed(ax: Axes, published: Published, form: Printed, rows: pd.DataFrame, order: Sequence[str] = ()) -> None:
    """Draw printed numbers beside our ``rows`` of one panel; ``order`` lists its series."""
    settings = {setting: rows[column].iloc[0] for setting, column in form.match.items()}
    found = published.of(form.claim, **form.where | settings)
    style = look(form.like, order.index(form.like) if form.like in order else 0)
    if form.x is None:
        for value in found["value"]:
            ax.axhline(value, **style.options(marker="", linewidth=1.1))
        return
    found = found[[form.x in own for own in found["settings"]]]
    if form.series:
        printed_points(ax, found, form.x, form.series)
        return
    places = [float(own[form.x]) for own in found["settings"]]
    if form.like:
        ax.plot(places, found["value"], style.marker, mfc="none", mec=style.colour, ms=4)
    else:
        diamonds(ax, places, found["value"], form.label, mec=INK, mew=0.9)


def printed_points(ax: Axes, rows: pd.DataFrame, x: str, series: str) -> None:
    """Draw printed numbers as hollow marks with the looks of their series."""
    for settings, value in zip(rows["settings"], rows["value"], strict=True):
        style = look(settings[series], 0)
        ax.plot(float(settings[x]), value, style.marker, mfc="none", mec=style.colour, ms=4)


def overview(experiment: str, table: pd.DataFrame, scale: str) -> Figure:
    """Plot the cells of an experiment's printed table as marks with intervals, for experiments without a designed figure."""
    layout = tables.layout_of(experiment, table)
    measure = tables.measure_of(experiment)
    cells = tables.summary(table, layout, measure)
    rows = list(dict.fromkeys(cells[list(layout.rows)].itertuples(index=False, name=None)))
    series = list(dict.fromkeys(cells[list(layout.columns)].itertuples(index=False, name=None))) or [()]
    figure, axes = panels(1, 1, width=5.0, height=0.5 + 0.25 * len(rows))
    ax = axes[0, 0]
    for number, own in enumerate(series):
        words = ", ".join(dict.fromkeys(itertools.starmap(setting, zip(layout.columns, own, strict=True))))
        chosen = cells
        for key, value in zip(layout.columns, own, strict=True):
            chosen = chosen[chosen[key] == value]
        places = [rows.index(tuple(cell)) for cell in chosen[list(layout.rows)].itertuples(index=False, name=None)]
        y = np.asarray(places) + 0.5 * ((number + 0.5) / len(series) - 0.5)
        marks(ax, chosen, y, look(own[0] if len(own) == 1 else words, number), label=words)
    ax.set(xlabel=textwrap.fill(str(measure), 50), ylim=(len(rows) - 0.5, -0.5))
    settings = [zip(layout.rows, row, strict=True) for row in rows]
    ax.set_yticks(range(len(rows)), [", ".join(itertools.starmap(setting, row)) for row in settings])
    if len(series) > 1:
        legend(figure, [ax])
    units = tidy.units(table)
    interval = f"{counted(cells['n'])} {units} per mark, bars: 95 % bootstrap" if units else "exact: no n, no interval"
    footer(figure, scale, interval, seeds(table), words if len(series) == 1 else "")
    return figure


def gap_figure(table: pd.DataFrame, scale: str, published: Published, form: Gaps) -> Figure:
    """Draw a map per value of ``panel``: how much more one method accepts than another (``pairs``), by value of ``x``."""
    alpha, rows = Measure("overlap", "visited"), Tables({"": table})
    found: dict[tuple[str, str, str], Interval] = {}
    for words, (left, right) in form.pairs.items():
        one, two = (Rows("", alpha, {"method": method}) for method in (left, right))
        for result in compute_each(Contrast(one, two, each=[form.panel, form.x]), rows):
            found[result.group[form.panel], result.group[form.x], words] = result.value
    shown = in_order([panel for panel, _, _ in found], NAMES)
    figure, axes = panels(1, len(shown), height=0.6 + 0.25 * len(form.pairs), sharey=True)
    for ax, value in zip(axes[0], shown, strict=True):
        draw_map(ax, {(x, words): gap for (panel, x, words), gap in found.items() if panel == value}, form)
        ax.set(title=name(value), xlabel=form.xlabel)
    facts = []
    if printed := form.printed:
        ours, other = (published.of(printed.claim, **own)["value"].to_numpy() for own in (printed.left, printed.right))
        gains = 100 * (ours - other)
        facts.append(printed.text.format(low=gains.min(), high=gains.max()))
    footer(
        figure,
        scale,
        "differences of alpha in points; (in brackets): the 95 % interval holds 0",
        *form.facts,
        f"{counted(pd.Series([gap.n for gap in found.values()]))} {tidy.units(table)} per cell",
        seeds(table),
        *facts,
    )
    return figure


def draw_map(ax: Axes, gaps: Mapping[tuple[str, str], Interval], form: Gaps) -> None:
    """Draw differences by value of ``x`` and pair as a map; those whose interval includes 0 are in brackets."""
    across, down = in_order([x for x, _ in gaps], NAMES), in_order([words for _, words in gaps], form.pairs)
    shown = np.full((len(down), len(across)), np.nan)
    for x, pair in itertools.product(dict.fromkeys(x for x, _ in gaps), down):
        if gap := gaps.get((x, pair)):
            row, column = down.index(pair), across.index(x)
            shown[row, column] = gap.estimate
            words = f"{100 * gap.estimate:+.1f}"
            words = f"({words})" if decide(gap) == "level" else words
            colour = "white" if abs(gap.estimate) > 0.7 * form.span else INK
            ax.text(column, row, words, ha="center", va="center", fontsize=6, color=colour)
    ax.imshow(shown, cmap="PuOr", vmin=-form.span, vmax=form.span, aspect="auto", alpha=0.7)
    ax.set_xticks(range(len(across)), list(map(name, across)), fontsize=6)
    ax.set_yticks(range(len(down)), [name(value) for value in down])
    ax.grid(False)
