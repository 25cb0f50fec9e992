"""OSD, ICLR thread: T5 drafts of several sizes before and after distillation."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.osd_draft_size import draw as draw_sizes
from draftlab.report.published import Published

SIZES = {"t5-small-60M": 0, "t5-base-220M": 1, "t5-large-770M": 2}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Draw the figure of ``osd_draft_size`` with the values printed for T5."""
    look = {"marker": "D", "label": "printed, T5 60M, 220M, 770M distilled"}
    return draw_sizes(table, scale, published, [("R.t5_size", SIZES, look)])
