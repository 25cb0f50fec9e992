"""Requests of one task that drift from short to long, beside the same requests in any order (asked by reviewer g3SB)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import stream_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per task and order, a line per draft."""
    note = ", the stream from the shortest eighth (1/8) of the requests to the longest"
    return stream_figure(table, scale, panel="dataset_order", printed_note=note)
