"""Which positions the online loss sees: rejected ones, all, the ends of blocks, or as the repository indexes them."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import stream_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per dataset, a line per choice."""
    return stream_figure(table, scale, panel="dataset", series="loss_positions")
