"""Figures of curves: estimates with intervals against a setting, a line per series and a panel per group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter
from pandas.api.types import is_integer_dtype, is_string_dtype

from draftlab.core.measure import Measure
from draftlab.plan.figure import Curves, Live, fields_of
from draftlab.report import tidy
from draftlab.report.figures.printed import draw_printed
from draftlab.report.figures.style import (
    EXACT,
    GREY,
    INK,
    LOOKS,
    NAMES,
    PALE,
    counted,
    footer,
    held,
    in_order,
    legend,
    level,
    look,
    looks,
    name,
    panels,
    points,
    seeds,
)
from draftlab.report.published import Published

CROWDED = 4
"""From how many lines on their intervals would hide each other, so that lines are shifted along ``x``."""
TICKS = 8
"""Up to how many values of ``x`` are ticks, beside which a shifted mark stands."""


def curve_figure(
    table: pd.DataFrame,
    scale: str,
    published: Published,
    form: Curves,
    stage_measures: Mapping[str, Measure],
    *,
    foot: Callable[[Axes, pd.DataFrame], None] | None = None,
    apart: float = 0.0,
) -> Figure:
    """Plot estimates with intervals against ``x``: a line per value of ``series``, a panel per value of ``panel``.

    ``foot(ax, rows)`` draws an extra last row with axes of its own, which its panels share. Lines are shifted by ``apart`` along ``x``, so that intervals do not
    hide each other; many lines over few values always are.
    """
    panel, series, x, xlabel = form.panel, form.series, form.x, form.xlabel
    keys = [key for key in (panel, series, x) if key is not None]
    table = tidy.select_rows(table, tidy.with_own(form.where, table), "of the figure")
    if form.rounded:
        unit, unit_name = (1e3, "thousands") if table[x].max() < 1e6 else (1e6, "millions")
        table = table.assign(**{x: (table[x] / unit).round().astype(int)})
        xlabel = f"{xlabel}, {unit_name}"
    table = labelled(table, keys)
    shown = in_order(table[panel], () if panel == "group" else NAMES) if panel else [None]
    rows_of = {value: table if panel is None else table[table[panel] == value] for value in shown}
    measures = form.quantities(stage_measures)
    order = in_order(table[series], form.order or LOOKS) if series else []
    lines = (table.groupby(series)[x].nunique() > 1).sum() if series else 1
    if lines >= CROWDED and not form.log_x and table[x].nunique() <= TICKS:
        apart = apart or 0.01 * (table[x].max() - table[x].min())
    height, width = (1.6 if form.also else 2.0), (7.0 if len(shown) > 1 else 4.6)
    figure, axes = panels(len(measures) + (foot is not None), len(shown), height=height, width=width, sharey="row")
    for upper in axes[: len(measures) - 1]:
        for ax, lowest in zip(upper, axes[len(measures) - 1], strict=True):
            ax.sharex(lowest)
            ax.tick_params(labelbottom=False)
    counts = []
    for row, (ylabel, numerator, denominator) in enumerate(measures):
        estimates = tidy.ratio_table(table, numerator, denominator, keys)
        counts.append(counted(estimates["n"][estimates["estimate"].notna()]))
        for ax, value in zip(axes[row], shown, strict=True):
            panel_estimates = estimates if panel is None else estimates[estimates[panel] == value]
            curves(ax, panel_estimates, x, series, order, apart)
            step, inches = 2 if len(shown) > 4 else 1, 0.8 * width / len(shown)
            _set_x_ticks(ax, (estimates, panel_estimates), x, series, form.log_x, step, inches)
            if row == 0:
                ax.set_title("" if value is None else name(value))
                for printed in form.printed:
                    draw_printed(ax, published, printed, rows_of[value], order)
            if row == len(measures) - 1:
                ax.set_xlabel(xlabel.format(**tidy.records(rows_of[value].iloc[[0]])[0]))
            if form.level is not None:
                named = {"linestyle": "--", "linewidth": 1, "label": form.level_name} if form.level_name else {}
                ax.axhline(form.level, **{"color": GREY, "linewidth": 0.6} | named)
        axes[row, 0].set_ylabel(ylabel)
    if foot is not None:
        for ax in axes[-1, 1:]:
            ax.sharex(axes[-1, 0])
        for ax, value in zip(axes[-1], shown, strict=True):
            foot(ax, rows_of[value])
    labels = {label for ax in axes.flat for label in ax.get_legend_handles_labels()[1]}
    # A single series is named in the footer and needs no legend.
    alone = [name(order[0])] if series and len(order) == len(labels) == 1 else []
    if labels and not alone and (series or form.printed):
        legend(figure)
    first = tidy.records(table.iloc[[0]])[0]
    facts = [*alone, *held(table, form.held), *(fact.format(**first) for fact in form.facts)]
    footer(figure, scale, *_behind_a_point(table, keys, counts), seeds(table), *facts)
    return figure


def _behind_a_point(table: pd.DataFrame, keys: Sequence[str], counts: Sequence[str]) -> list[str]:
    """How many units each point is estimated from, and its interval, in words; ``counts`` are those of the rows of panels."""
    units = tidy.resampled_name(table)
    if units is None:
        return [EXACT]
    n = counts[0] if len(set(counts)) == 1 else f"from top to bottom {' and '.join(counts)}"
    shown_apart = {field for key in keys for field in (key, *fields_of(key))}
    several = "dataset" in table and "dataset" not in shown_apart and table["dataset"].nunique() > 1
    datasets = f" of {table['dataset'].nunique()} datasets" if several else ""
    bars = "bars: 95 % bootstrap"
    each = f"{n} {units}{datasets} per point"
    return [f"{each}, {bars}"] if len(set(counts)) == 1 else [each, bars]


def labelled(table: pd.DataFrame, keys: Iterable[str | None]) -> pd.DataFrame:
    """Add a column for each key that is a template with column names in braces, and sort by its numeric columns."""
    for key in filter(None, keys):
        if fields := fields_of(key):
            columns = [table[field].map(name) if is_string_dtype(table[field]) else table[field] for field in fields]
            rows = zip(*columns, strict=True)
            table = table.assign(**{key: [key.format(**dict(zip(fields, row, strict=True))) for row in rows]})
            numbers = [field for field in fields if not is_string_dtype(table[field])]
            table = table.sort_values(numbers, kind="stable") if numbers else table
    return table


def _set_x_ticks(
    ax: Axes, choices: Sequence[pd.DataFrame], x: str, series: str | None, log: bool, step: int, inches: float
) -> None:
    """Put ticks at every ``step``-th value of ``x``, and the ends of the axis at the first and last, if there are few values.

    The values are those of the first of ``choices`` (all panels, or this one) that has few. On an axis of this many ``inches``, a label that would
    touch the one before it is left out.
    """
    if log:
        ax.set_xscale("log")
        ax.xaxis.set_minor_formatter(NullFormatter())
    for estimates in choices:
        values = _curved(estimates, x, series)
        labels = [f"{value:g}" for value in values]
        few = len(values) <= 3 or (len(values) <= TICKS and (log or is_integer_dtype(estimates[x])))
        if few and max(map(len, labels)) <= 5:
            step = step if len(values) > 4 else 1
            ticks = values[::step], labels[::step]
            ax.set_xticks(ticks[0], ticks[1] if log else _apart(*ticks, inches))
            ax.minorticks_off()
            ax.dataLim.update_from_data_x([values[0], values[-1]], ignore=False)
            ax.autoscale_view()
            return
    if log and values[-1] < 30 * values[0]:  # powers of ten alone would leave one label
        ax.xaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        ax.xaxis.set_minor_formatter(LogFormatterSciNotation(minor_thresholds=(np.inf, np.inf)))


def _apart(values: Sequence[float], labels: Sequence[str], inches: float) -> list[str]:
    """The labels of values along a linear axis, empty where one would touch another that is shown; the first and the last are.

    >>> _apart([0, 25, 50, 100, 200, 400], ["0", "25", "50", "100", "200", "400"], inches=1.4)
    ['0', '', '50', '', '200', '400']
    """
    character, gap = 0.065, 0.04  # inches
    places = [inches * (value - values[0]) / ((values[-1] - values[0]) or 1) for value in values]

    def touch(one: int, other: int) -> bool:
        width = character * (len(labels[one]) + len(labels[other])) / 2 + gap
        return abs(places[one] - places[other]) < width

    shown, last = [0], len(values) - 1
    for number in range(1, last):
        if not touch(shown[-1], number) and not touch(number, last):
            shown.append(number)
    return [label if number in (*shown, last) else "" for number, label in enumerate(labels)]


def _curved(estimates: pd.DataFrame, x: str, series: str | None) -> list[float]:
    """The distinct values of ``x``; a series with a single value is a level and does not count if others have several."""
    if series and (curved := estimates.groupby(series)[x].transform("nunique") > 1).any():
        estimates = estimates[curved]
    return sorted(estimates[x].unique())


def curves(ax: Axes, rows: pd.DataFrame, x: str, series: str | None, order: Sequence[str], apart: float) -> None:
    """Draw one line per value of ``series``; a series with a single ``x`` becomes a horizontal level.

    A known series has its own look, others get one by their place in ``order``, which lists the series of the figure. Lines are shifted by ``apart`` along ``x``, so that no
    interval hides another.
    """
    values = in_order(rows[series], order) if series else [None]
    styles = looks([*order, *values]) if series else {None: look("ours", 0)}
    several = rows[x].nunique() > 1
    for place, value in enumerate(values):
        line = (rows if value is None else rows[rows[series] == value]).sort_values(x)
        style = styles[value]
        if several and len(line) == 1:
            level(ax, tidy.records(line)[0], style, alpha=0.15)
        else:
            points(ax, line[x] + apart * (place - (len(values) - 1) / 2), line, style)


# --- live decoding -----------------------------------------------------------------------------------------------

PARTS = {
    "draft_seconds": ("drafting", PALE),
    "target_seconds": ("target's call", "#a6a6a6"),
    "transform_seconds": ("target's distributions", GREY),
    "select_seconds": ("selection", INK),
}
"""The parts of the time of a token, with label and a grey, because the colours are the schemes'."""


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
    foot = partial(_draw_time_split, form) if timed else None
    return curve_figure(table, scale, published, curve, {}, foot=foot, apart=apart)


def _draw_time_split(form: Live, ax: Axes, rows: pd.DataFrame) -> None:
    """Draw stacked bars of the microseconds per emitted token of each series, over all values of ``x``, by part of the decoding loop."""
    parts = [part for part in PARTS if part in rows]  # in older tables selection includes the target's distributions
    sums = rows.groupby(form.series, sort=False)[[*parts, "emitted"]].sum()
    sums = sums.loc[in_order(sums.index, LOOKS)]
    left = np.zeros(len(sums))
    for part in parts:
        label, colour = PARTS[part]
        width = 1e6 * (sums[part] / sums["emitted"]).to_numpy()
        ax.barh(range(len(sums)), width, left=left, color=colour, height=0.7, label=label)
        left += width
    ax.set_yticks(range(len(sums)), [name(value) for value in sums.index])
    several = rows.groupby(form.series)[form.x].nunique().max() > 1
    ax.set(xlabel="µs per token, over all points above" if several else "µs per token", ylim=(len(sums) - 0.5, -0.5))
    ax.grid(visible=False, axis="y")
