"""OSD Fig. 11: alpha along a shift that is sharp or gradual."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import printed_level, stream_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per kind of shift; diamonds below: the printed values."""

    def printed(ax: Axes, shift: str) -> None:
        printed_level(ax, published.of("F11.shift_alpha", variant=shift), "record")

    return stream_figure(table, scale, panel="shift", window=100, printed=printed, printed_note=" (printed: 100)")
