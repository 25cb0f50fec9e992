"""OSD Fig. 5: alpha along the requests of each topic, with a draft of its own, with one shared by all, and untrained."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import of_class, printed_curves, stream_figure
from draftlab.report.published import Published

CURVES = {  # the repository's curve of Business is the run of the Chinese requests once more: left out
    "Computers and Technology": "computer",
    "Education": "education",
    "Games": "game",
    "Social Networking and Messaging": "social",
}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per topic; below the digitised curve of its own draft."""

    def printed(ax: Axes, group: str) -> None:
        printed_curves(ax, published, "arena_class", {CURVES.get(group, ""): "separate"})

    return stream_figure(
        of_class(table), scale, panel="group", window=40, printed=printed, printed_note=" of the class (printed: 40)"
    )
