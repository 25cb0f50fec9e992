"""What reviewer g3SB asked of OSD: a mixture of the datasets without any shift, and drafts distilled on another sample of it."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import stream_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """One panel, a line per draft."""
    return stream_figure(table, scale, window=100)
