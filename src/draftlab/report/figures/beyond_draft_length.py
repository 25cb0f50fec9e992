"""What alpha, the block and the speed-up do when the draft length changes (asked by reviewer fopk)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per dataset over the draft length: alpha, tokens per target call, and the speed-up that Eq. 1 predicts at a cost ratio of 0.1."""
    return curve_figure(
        table,
        scale,
        x="draft_len",
        above="overlap",
        below="visited",
        series="method",
        panel="dataset",
        order=["original", "distilled"],
        xlabel="draft length k",
        ylabel="alpha",
        also=[
            ("tokens per target call", "emitted", "blocks"),
            ("speed-up predicted\nby Eq. 1, c = 0.1", "emitted", "cost"),
        ],
    )
