"""Figures of streams: alpha along a stream of requests as a moving average, with printed curves below."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from draftlab.core import stats
from draftlab.plan.figure import StreamCurves
from draftlab.report import tidy
from draftlab.report.figures.curves import labelled
from draftlab.report.figures.printed import draw_printed, printed_curves
from draftlab.report.figures.style import GREY, LOOKS, NAMES, Look, footer, in_order, legend, looks, name, panels, seeds
from draftlab.report.published import Published


def stream_figure(table: pd.DataFrame, scale: str, published: Published, form: StreamCurves) -> Figure:
    """Plot alpha along a stream as a moving average of past requests, one line per value of ``series``; printed numbers go into a second row.

    ``offline`` rows are held-out requests and become a level. A mark at the right shows the last fifth of each stream with its interval.
    """
    panel = form.panel
    if form.by_class:
        table = renumber_by_class(table)
    if "after" in table:
        table = tidy.served(table)
    table = labelled(table, [panel])
    order = list(NAMES)
    if form.by_class:  # the longest stream first
        order = table.groupby(panel)["stream_index"].max().sort_values(ascending=False, kind="stable").index.tolist()
    shown = in_order(table[panel], order) if panel else [None]
    has_printed = bool(form.curves or form.printed)
    figure, axes = panels(1 + has_printed, len(shown), height=1.7, sharey=True, sharex="row", width=7.0)
    windows: list[int] = []
    for column, value in enumerate(shown):
        rows = table if panel is None else table[table[panel] == value]
        windows.append(_draw_moving_averages(axes[0, column], rows, form))
        axes[0, column].set_title("" if value is None else name(value))
        if form.curves:
            printed_curves(axes[1, column], published, form.curves, str(value))
        for printed in form.printed:
            draw_printed(axes[1, column], published, printed, rows, length=form.lengths.get(str(value), 0))
        if has_printed:
            axes[1, column].xaxis.set_major_locator(MaxNLocator(5 if len(shown) == 1 else 4, steps=[1, 2, 5, 10]))
            axes[1, column].xaxis.set_major_formatter(_in_thousands)  # printed streams are long
        axes[-1, column].set_xlabel("requests")
    axes[0, 0].set(ylabel="alpha, ours" if has_printed else "alpha", ylim=(0, 1), xlim=(0, None))
    if has_printed:
        axes[1, 0].set(ylabel="alpha, printed", xlim=(0, max(form.lengths.values(), default=None)))
    legend(figure)
    length = _length(table)
    if form.curves and form.curves.records:  # align the shifts of both streams
        axes[1, 0].set_xlim(0, axes[0, 0].get_xlim()[1] * form.curves.records / length)
    ticks = MaxNLocator(2 if len(shown) > 4 else 4).tick_values(0, length)
    axes[0, 0].set_xticks([tick for tick in ticks if tick <= length])
    footer(
        figure,
        scale,
        f"moving average of {'–'.join(map(str, sorted({min(windows), max(windows)})))} requests{form.note}",
        f"{_requests(table, form)} requests" + (f" of {len(shown)} classes" if form.by_class else ""),
        seeds(table),
        f"at the right: last fifth of the stream, 95 % bootstrap over {tidy.resampled_name(table)}",
    )
    return figure


def renumber_by_class(table: pd.DataFrame) -> pd.DataFrame:
    """Renumber a stream so that the requests of each class are counted separately, in steps of the largest bin."""
    summed = tidy.summed_requests(table)
    in_turn = summed.loc[table.sort_values("stream_index", kind="stable").index]
    served = in_turn.groupby([table[key] for key in ("group", "method", "seed")]).cumsum() - in_turn
    return table.assign(stream_index=served // summed.max() * summed.max())


def _step(rows: pd.DataFrame) -> int:
    """How many requests of the stream are summed in one row."""
    places = np.unique(tidy.served(rows)["stream_index"])
    return int(np.diff(places).min()) if len(places) > 1 else 1


def _requests(table: pd.DataFrame, form: StreamCurves) -> int:
    """How many requests the longest stream has; panels by group are the classes of one stream."""
    rows = tidy.served(table)
    panel = [] if form.panel in (None, "group") else [form.panel]
    return int(tidy.summed_requests(rows).groupby([rows[key] for key in (form.series, "seed", *panel)]).sum().max())


def _length(rows: pd.DataFrame) -> int:
    """How many requests the longest stream has."""
    return int(tidy.served(rows)["stream_index"].max()) + _step(rows)


def _draw_moving_averages(ax: Axes, rows: pd.DataFrame, form: StreamCurves) -> int:
    """Draw the moving averages of one panel; return the window in requests, which is shortened for a short stream."""
    step, length = _step(rows), _length(rows)
    window = max(min(form.window, max(5, length // 10)) // step, 1)
    for place, (value, style) in enumerate(looks(in_order(rows[form.series], LOOKS)).items()):
        line = rows[rows[form.series] == value]
        sums = line.groupby("stream_index")[["overlap", "visited"]].sum()
        if value == "offline":
            level = stats.ratio(sums["overlap"], sums["visited"])
            ax.axhline(level.estimate, **style.options(marker="", linewidth=1.1))
            continue
        alpha = stats.moving_ratio(sums["overlap"], sums["visited"], window)
        full = np.arange(len(sums)) >= window - 1
        ax.plot(sums.index[full], alpha[full], **style.options(marker=""))
        last = line[line["stream_index"] >= 0.8 * length]
        last_sums = last.groupby(tidy.resampled_ids(last))[["overlap", "visited"]].sum()
        _draw_interval(ax, last_sums, length * (1.03 + 0.04 * place), style)
    ax.axvline(length, color=GREY, linewidth=0.5)
    if form.panel != "group":
        _draw_boundaries(ax, tidy.served(rows))
    return window * step


def _draw_interval(ax: Axes, sums: pd.DataFrame, x: float, style: Look) -> None:
    """Draw the alpha of the last part of a stream at ``x``, with its interval."""
    end = stats.ratio(sums["overlap"], sums["visited"])
    error = [[end.estimate - end.low], [end.high - end.estimate]]
    ax.errorbar(x, end.estimate, yerr=error, fmt=style.marker, color=style.colour, markersize=3, capsize=1.5)


def _draw_boundaries(ax: Axes, served: pd.DataFrame) -> None:
    """Draw a vertical line where one segment of a stream ends and the next begins, labelled with the group of the next."""
    if "segment" not in served or not 2 <= served["segment"].nunique() <= 12:
        return
    for _, rows in served.groupby("segment", sort=True):
        start = rows["stream_index"].min()
        if start:
            ax.axvline(start, color=GREY, linewidth=0.7, linestyle=(0, (2, 2)))
        if "group" in rows:
            _write_at_top(ax, name(rows["group"].iloc[0]), start, "left")
    if "group" not in served:
        return
    last = rows.loc[rows["stream_index"] >= rows["stream_index"].median(), "group"].mode()[0]
    if last != rows["group"].iloc[0]:  # a drifting segment may end with another class than it begins with
        _write_at_top(ax, name(last), rows["stream_index"].max(), "right")


def _write_at_top(ax: Axes, text: str, x: float, side: str) -> None:
    """Write ``text`` at the top of a panel, beside ``x``."""
    ax.annotate(
        text,
        (x, 0.98),
        (2, 0),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        va="top",
        ha=side,
        fontsize=6,
        color=GREY,
    )


def _in_thousands(value: float, _: int | None) -> str:
    return f"{value / 1000:g}k" if value else "0"
