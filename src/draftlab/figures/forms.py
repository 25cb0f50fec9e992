"""The forms that figures share: curves with intervals, and alpha along a stream. A figure is one call with its columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab import stats, tables, tidy
from draftlab.figures.style import (
    GREY,
    LOOKS,
    Look,
    counted,
    footer,
    in_order,
    legend,
    look,
    name,
    panels,
    points,
    seeds,
)

Marks = Callable[[Axes, Any], None]


def curve_figure(
    table: pd.DataFrame,
    scale: str,
    *,
    x: str,
    above: str,
    below: str | None = None,
    series: str | None = None,
    panel: str | None = None,
    order: Sequence[str] = (),
    xlabel: str,
    ylabel: str,
    log_x: bool = False,
    level: float | None = None,
    marks: Marks | None = None,
    facts: Sequence[str] = (),
) -> Figure:
    """Estimates with intervals against ``x``: a line per value of ``series``, a panel per value of ``panel``.

    An estimate is ``sum(above) / sum(below)``, or the mean of ``above``; ``order`` puts series first; ``level`` draws a line;
    ``marks(ax, panel value)`` adds what is printed.
    """
    keys = [key for key in (panel, series, x) if key is not None]
    unit = tidy.unit(table)
    table = table.assign(_one=1.0, _unit=tidy.clusters(table) if unit else "")
    found = stats.ratio_table(table, above, below or "_one", keys, request="_unit")
    shown = in_order(found[panel].tolist(), []) if panel else [None]
    figure, axes = panels(1, len(shown), height=2.0, sharey=True, width=7.0 if len(shown) > 1 else 3.6)
    for ax, value in zip(axes[0], shown, strict=True):
        rows = found if panel is None else found[found[panel] == value]
        curves(ax, rows, x, series, order)
        if marks is not None:
            marks(ax, value)
        if level is not None:
            ax.axhline(level, color=GREY, linewidth=0.6)
        if log_x:
            ticks = sorted(found[x].unique())
            ax.set_xscale("log")
            ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            ax.minorticks_off()
        ax.set(xlabel=xlabel, title="" if value is None else name(value))
    axes[0, 0].set_ylabel(ylabel)
    if series is not None:
        legend(figure, list(axes[0]), columns=4 if len(shown) > 1 else 2)
    interval = f"{counted(found['n'])} {unit}s per point, bars: 95 % bootstrap" if unit else "exact: no n, no interval"
    footer(figure, scale, interval, seeds(table), *facts)
    return figure


def curves(ax: Axes, rows: pd.DataFrame, x: str, series: str | None, order: Sequence[str] = ()) -> None:
    """One line per value of ``series``, looks by name where the name is known; a value with a single ``x`` is a level."""
    values = in_order(rows[series].tolist(), order) if series else [None]
    several = rows[x].nunique() > 1
    for place, value in enumerate(values):
        line = (rows if value is None else rows[rows[series] == value]).sort_values(x)
        style = look("ours" if value is None else value, place)
        if several and len(line) == 1:
            level = line.iloc[0]
            ax.axhline(level["estimate"], **style.options(marker=""))
            if np.isfinite(level["ci_low"]):
                ax.axhspan(level["ci_low"], level["ci_high"], color=style.colour, alpha=0.15, linewidth=0)
        else:
            points(ax, line[x], line, style)


def live_figure(
    table: pd.DataFrame,
    scale: str,
    *,
    x: str,
    xlabel: str,
    series: str = "scheme",
    panel: str | None = None,
    marks: Marks | None = None,
    facts: Sequence[str] = (),
) -> Figure:
    """Live decoding: above tokens per target call, below tokens per second, pooled over the datasets.

    ``marks(ax, panel value)`` adds printed block efficiencies to the upper row.
    """
    shown = in_order(table[panel].tolist(), []) if panel else [None]
    table = table.assign(_unit=tidy.clusters(table))
    keys = [key for key in (panel, series, x) if key is not None]
    figure, axes = panels(2, len(shown), height=1.6, sharex="col", sharey="row", width=7.0 if panel else 3.8)
    n = pd.Series(dtype=int)
    for row, (above, below) in enumerate((("emitted", "blocks"), ("emitted", "seconds"))):
        found = stats.ratio_table(table, above, below, keys, request="_unit")
        n = found["n"]
        for ax, value in zip(axes[row], shown, strict=True):
            curves(ax, found if panel is None else found[found[panel] == value], x, series, list(LOOKS))
            if row == 0:
                ax.set_title("" if value is None else name(value))
                if marks is not None:
                    marks(ax, value)
            else:
                ax.set_xlabel(xlabel)
            if pd.api.types.is_integer_dtype(table[x]):
                ax.set_xticks(sorted(found.groupby(x).size().loc[lambda sizes: sizes > 1].index))
    axes[0, 0].set_ylabel("tokens per target call")
    axes[1, 0].set_ylabel("tokens per second")
    legend(figure, list(axes.flat), columns=4 if panel else 2)
    datasets = table["dataset"].nunique()
    footer(
        figure,
        scale,
        f"{counted(n)} requests of {datasets} datasets per point",
        "bars: 95 % bootstrap",
        seeds(table),
        *facts,
    )
    return figure


def stream_figure(
    table: pd.DataFrame,
    scale: str,
    *,
    panel: str | None = None,
    order: Sequence[str] = (),
    series: str = "method",
    window: int = 50,
    printed: Marks | None = None,
    printed_note: str = "",
) -> Figure:
    """Alpha along a stream as a moving average that never looks ahead, one line per value of ``series``.

    ``panel`` gives each of its values a panel; ``printed(ax, value)`` draws the paper's curve into a second row. ``offline``
    rows are held-out requests and become a level. The last fifth of each stream stands at the right with its interval.
    """
    shown = in_order(table[panel].tolist(), order) if panel else [None]
    figure, axes = panels(1 + (printed is not None), len(shown), height=1.7, sharey=True, sharex="row", width=7.0)
    used = 0
    for column, value in enumerate(shown):
        rows = table if panel is None else table[table[panel] == value]
        used = moving(axes[0, column], rows, series, window)
        axes[0, column].set_title("" if value is None else name(value))
        if printed is not None:
            printed(axes[1, column], value)
        axes[-1, column].set_xlabel("records")
    axes[0, 0].set(ylabel="alpha" if printed is None else "alpha, ours", ylim=(0, 1))
    if printed is not None:
        axes[1, 0].set_ylabel("alpha, printed")
    legend(figure, list(axes.flat), columns=5)
    served = table if "method" not in table else table[table["method"] != "offline"]
    footer(
        figure,
        scale,
        f"moving average of {used} records{printed_note}",
        f"{int(served['record'].max()) + 1} records",
        seeds(table),
        "at the right: last fifth of the stream, 95 % bootstrap over requests",
    )
    return figure


def moving(ax: Axes, rows: pd.DataFrame, series: str, window: int) -> int:
    """Draw the moving averages of one panel; return the window, shortened for a short stream."""
    served = rows[rows[series] != "offline"]
    length = int(served["record"].max()) + 1
    window = min(window, max(5, length // 10))
    for place, value in enumerate(in_order(rows[series].tolist(), LOOKS)):
        sums = rows[rows[series] == value].groupby("record")[["overlap", "visited"]].sum()
        style = look(value, place)
        if value == "offline":
            level = stats.ratio(sums["overlap"], sums["visited"])
            ax.axhline(level.estimate, **style.options(marker="", linewidth=1.1))
            continue
        alpha = stats.moving_ratio(sums["overlap"], sums["visited"], window)
        shown = np.arange(len(sums)) >= window - 1
        ax.plot(sums.index[shown], alpha[shown], **style.options(marker=""))
        _end(ax, sums[sums.index >= 0.8 * length], length * (1.03 + 0.04 * place), style)
    _boundaries(ax, served)
    return window


def _end(ax: Axes, last: pd.DataFrame, x: float, style: Look) -> None:
    end = stats.ratio(last["overlap"], last["visited"])
    error = [[end.estimate - end.low], [end.high - end.estimate]]
    ax.errorbar(x, end.estimate, yerr=error, fmt=style.marker, color=style.colour, markersize=3, capsize=1.5)


def _boundaries(ax: Axes, served: pd.DataFrame) -> None:
    """A line where a stream of segments changes from one to the next, named by its group."""
    if "segment" not in served or served["segment"].nunique() < 2 or served["segment"].nunique() > 12:
        return
    for _, rows in served.groupby("segment", sort=True):
        start = rows["record"].min()
        if start:
            ax.axvline(start, color=GREY, linewidth=0.7, linestyle=(0, (2, 2)))
        if "group" in rows:
            ax.annotate(
                name(rows["group"].iloc[0]),
                (start, 0.98),
                xycoords=("data", "axes fraction"),
                fontsize=6,
                color=GREY,
                va="top",
                xytext=(2, 0),
                textcoords="offset points",
            )


def printed_curves(ax: Axes, published: Any, figure: str, looks: dict[str, str]) -> None:
    """The digitised curves of one published figure: ``looks`` maps its series to the look of ours."""
    for place, (series, value) in enumerate(looks.items()):
        curve = published.curve(figure, series)
        ax.plot(curve["x"], curve["y"], **look(value, place).options(marker="", linewidth=1))
    ax.locator_params(axis="x", nbins=4)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")


def overview(experiment: str, table: pd.DataFrame, scale: str) -> Figure:
    """The cells of an experiment's printed table as marks with intervals: what is drawn where no figure has been designed."""
    layout = tables.layout_of(experiment, table)
    cells = tables.summary(table, layout)
    rows = list(dict.fromkeys(cells[list(layout.rows)].itertuples(index=False, name=None)))
    series = list(dict.fromkeys(cells[list(layout.columns)].itertuples(index=False, name=None)))
    figure, axes = panels(1, 1, width=5.0, height=0.5 + 0.25 * len(rows))
    ax = axes[0, 0]
    for number, own in enumerate(series):
        words = ", ".join(map(name, own))
        chosen = cells[[tuple(cell) == own for cell in cells[list(layout.columns)].itertuples(index=False, name=None)]]
        places = [rows.index(tuple(cell)) for cell in chosen[list(layout.rows)].itertuples(index=False, name=None)]
        error = np.nan_to_num(np.stack([chosen["estimate"] - chosen["ci_low"], chosen["ci_high"] - chosen["estimate"]]))
        y = np.asarray(places) + 0.5 * ((number + 0.5) / len(series) - 0.5)
        style = look(words, number)
        ax.errorbar(
            chosen["estimate"],
            y,
            xerr=np.clip(error, 0, None),
            fmt=style.marker,
            color=style.colour,
            ms=3.5,
            capsize=1.5,
            label=words,
        )
    ax.set(
        xlabel=layout.above if layout.below is None else f"{layout.above} / {layout.below}",
        ylim=(len(rows) - 0.5, -0.5),
    )
    ax.set_yticks(range(len(rows)), [", ".join(map(name, row)) for row in rows])
    if layout.columns:
        legend(figure, [ax], columns=3)
    unit = tidy.unit(table)
    interval = f"{counted(cells['n'])} {unit}s per mark, bars: 95 % bootstrap" if unit else "exact: no n, no interval"
    footer(figure, scale, interval, seeds(table))
    return figure


def printed_points(ax: Axes, rows: pd.DataFrame, x: str, series: str) -> None:
    """Printed numbers as hollow marks in the looks of their series."""
    for settings, value in zip(rows["settings"], rows["value"], strict=True):
        style = look(settings[series], 0)
        ax.plot(float(settings[x]), value, style.marker, mfc="none", mec=style.colour, ms=4)
