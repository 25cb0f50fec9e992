"""The speed-up of every draft length, measured and by Eq. 1 with and without the cost of verification."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per alpha over the draft length."""
    return curve_figure(
        table,
        scale,
        x="draft_len",
        above="plain",
        below="token_seconds",
        series="way",
        panel="at",
        order=["measured", "refined", "eq1"],
        xlabel="draft length k",
        ylabel="speed-up over the target alone",
        level=1.0,
    )
