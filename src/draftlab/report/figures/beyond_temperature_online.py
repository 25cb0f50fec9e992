"""Online distillation when target and draft sample, beside greedy decoding."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import stream_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per temperature, a line per draft."""
    panel = "temperature " + table["temperature"].map("{:g}".format)
    return stream_figure(table.assign(panel=panel), scale, panel="panel")
