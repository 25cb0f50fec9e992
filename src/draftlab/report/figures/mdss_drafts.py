"""MDSS v1 Table 1: block efficiency and token rate against the number of drafts."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import live_figure, printed_points
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A line per scheme, the single draft as a level; hollow marks: the printed values on Dolly."""

    def printed(ax: Axes, _: object) -> None:
        printed_points(ax, published.of("v1T1.block_efficiency"), "num_drafts", "scheme")

    return live_figure(table, scale, x="num_drafts", xlabel="drafts K", marks=printed, facts=["hollow: printed, Dolly"])
