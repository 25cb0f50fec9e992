"""Time per token and speed-up over the draft length, for weights of 32, 16, 8 and 4 bits."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.style import held
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A line per type of weights; draft length 0 is plain decoding."""
    return curve_figure(
        table,
        scale,
        x="draft_len",
        above="plain",
        below="speculative",
        series="weights",
        xlabel="draft length k (0: no draft)",
        ylabel="speed-up",
        also=[("ms per token", "speculative_ms", None)],
        facts=held(table, ["alpha"]),
    )
