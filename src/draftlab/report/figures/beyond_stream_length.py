"""Whether time and memory of online serving grow in proportion to the stream."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Alpha, CPU time per request and peak memory over the length of the stream."""
    return curve_figure(
        table,
        scale,
        x="served",
        above="overlap",
        below="visited",
        xlabel="requests in the stream",
        ylabel="alpha",
        also=[("CPU ms per request", "request_ms", None), ("peak memory, MB", "peak_mb", None)],
        log_x=True,
        facts=["time and memory: one run each, no interval"],
    )
