"""OSD, ICLR thread: drafts of several sizes before and after distillation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.plan.figure import Curves
from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.style import INK
from draftlab.report.published import Published

Printed = Sequence[tuple[str, dict[str, int], dict[str, Any]]]
DISTILLED = {"marker": "^", "label": "printed, LLaMA-160M distilled"}
AS_IT_WAS = {"marker": "v", "label": "printed, TinyLlama-1.1B undistilled"}
PRINTED: Printed = (
    ("R.big_draft_vanilla", {"llama-160m+osd": 1}, DISTILLED),
    ("R.big_draft_vanilla", {"tinyllama-1.1b/vanilla": 2}, AS_IT_WAS),
)
"""For each claim and printed variant: the rank of its size among our drafts, and its look."""


def draw(table: pd.DataFrame, scale: str, published: Published, marked: Printed = PRINTED) -> Figure:
    """Plot alpha against the draft's parameters, a panel per dataset; printed values are hollow and placed by the rank of their size."""
    unit, words = (1e3, "thousands") if table["parameters"].max() < 1e6 else (1e6, "millions")
    table = table.assign(size=(table["parameters"] / unit).round().astype(int))
    sizes = sorted(table["size"].unique())

    def printed(ax: Axes, dataset: str) -> None:
        for claim, places, style in marked:
            found = [published.of(claim, dataset=dataset, variant=variant)["value"].max() for variant in places]
            x = [sizes[min(place, len(sizes) - 1)] for place in places.values()]
            ax.plot(x, found, linestyle="", mfc="none", mec=INK, ms=4, **style)

    form = Curves(
        x="size",
        xlabel=f"parameters, {words}",
        above="overlap",
        below="visited",
        ylabel="alpha",
        series="method",
        panel="dataset",
        log_x=True,
        facts=["printed values are placed by size rank"],
    )
    return curve_figure(table, scale, published, form, extra=printed)
