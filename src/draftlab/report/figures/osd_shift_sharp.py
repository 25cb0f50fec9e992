"""OSD Fig. 4: alpha when the dataset behind the stream changes at once, of the online draft and of drafts distilled on all of them."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import printed_curves, stream_figure
from draftlab.report.published import Published

SHARES = (30, 50, 70, 100)


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Above ours, below the digitised curves (Vicuna-7B / LLaMA-160M)."""

    def printed(ax: Axes, _: object) -> None:
        printed_curves(ax, published, "sharp", {"online": "online"} | {f"static_{n}pct": f"static_{n}" for n in SHARES})

    return stream_figure(table, scale, window=100, printed=printed, printed_note=" (printed: 100)")
