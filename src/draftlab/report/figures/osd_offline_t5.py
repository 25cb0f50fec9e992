"""OSD Table 1, the T5 half: alpha before and after offline distillation of an encoder-decoder."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.osd_offline import draw as draw_table_1
from draftlab.report.published import Published

PAIR = "flan-t5-xl/t5-small"


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Draw the figure of ``osd_offline`` with the values printed for T5."""
    return draw_table_1(table, scale, published, PAIR, "Flan-T5-XL / T5-small")
