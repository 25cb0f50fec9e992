"""Draws the numbers and digitised curves that a paper prints, beside ours."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes

from draftlab.plan.figure import Printed, PrintedCurves
from draftlab.report.figures.style import GREY, INK, diamonds, look, looks
from draftlab.report.published import Published


def draw_printed(
    ax: Axes, published: Published, form: Printed, rows: pd.DataFrame, order: Sequence[str] = (), length: int = 0
) -> None:
    """Draw printed numbers beside our ``rows`` of one panel; ``order`` lists its series, ``length`` is that of the printed stream."""
    settings = {setting: rows[column].iloc[0] for setting, column in form.match.items()}
    numbers = published.of(form.claim, **form.where | settings)
    if numbers.empty:  # as for the user's prompts
        return
    if form.ranks:
        sizes = sorted(rows[form.x].unique())
        x = [sizes[min(rank, len(sizes) - 1)] for rank in form.ranks.values()]
        largest = [published.of(form.claim, **settings, variant=variant)["value"].max() for variant in form.ranks]
        ax.plot(x, largest, form.marker, mfc="none", mec=INK, ms=4, label=form.label)
        return
    style = looks(order).get(form.like) or look(form.like, 0)
    if form.late:
        for value in numbers["value"]:
            ax.plot([0.8 * length, length], [value, value], **style.options(marker="", linewidth=2))
        return
    if form.x is None:
        for value in numbers["value"]:
            ax.axhline(value, **style.options(marker="", linewidth=1.1))
        return
    numbers = numbers[[form.x in printed for printed in numbers["settings"]]]
    if form.series:
        printed_points(ax, numbers, form.x, form.series)
        return
    x = [float(printed[form.x]) for printed in numbers["settings"]]
    if form.like:
        ax.plot(x, numbers["value"], style.marker, mfc="none", mec=style.colour, ms=4)
    else:
        diamonds(ax, x, numbers["value"], form.label, mec=INK, mew=0.9)


def printed_points(ax: Axes, numbers: pd.DataFrame, x: str, series: str) -> None:
    """Draw printed numbers as hollow marks with the looks of their series."""
    for settings, value in zip(numbers["settings"], numbers["value"], strict=True):
        style = look(settings[series], 0)
        ax.plot(float(settings[x]), value, style.marker, mfc="none", mec=style.colour, ms=4)


def printed_curves(ax: Axes, published: Published, form: PrintedCurves, panel: str) -> None:
    """Draw the digitised curves of one published figure with the looks of our series."""
    panel = form.panels.get(panel, panel)
    for place, (series, value) in enumerate(form.series.items()):
        curve = published.curve(form.figure.format(panel=panel), series.format(panel=panel))
        if curve.empty:
            ax.annotate("not printed", (0.5, 0.5), xycoords="axes fraction", ha="center", fontsize=6, color=GREY)
            ax.spines[:].set_visible(False)
        ax.plot(curve["x"], curve["y"], **look(value, place).options(marker="", linewidth=1))
    for start in form.shifts:
        ax.axvline(start, color=GREY, linewidth=0.7, linestyle=(0, (2, 2)))
