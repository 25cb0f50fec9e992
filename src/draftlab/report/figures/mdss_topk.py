"""MDSS v1 Table 4: block efficiency at equal temperature when both models keep their most probable tokens."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import live_figure, printed_points
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per top-k, a line per scheme; hollow marks: the printed values on Dolly."""

    def printed(ax: Axes, kept: str) -> None:
        printed_points(
            ax, published.of("v1T4.block_efficiency", top_k=kept.removeprefix("top-k ")), "num_drafts", "scheme"
        )

    return live_figure(
        table.assign(panel=[f"top-k {kept}" for kept in table["top_k"]]),
        scale,
        x="num_drafts",
        xlabel="drafts K",
        panel="panel",
        marks=printed,
        facts=["hollow: printed, Dolly"],
    )
