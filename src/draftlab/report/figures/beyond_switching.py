"""How often the datasets of a stream may take turns before online learning stops paying (asked by reviewer rfi3)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.style import LOOKS
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Alpha of the whole stream over the requests between two switches."""
    return curve_figure(
        table,
        scale,
        x="period",
        above="overlap",
        below="visited",
        series="method",
        order=list(LOOKS),
        xlabel="requests between two switches",
        ylabel="alpha",
        log_x=True,
    )
