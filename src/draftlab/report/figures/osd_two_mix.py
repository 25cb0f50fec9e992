"""OSD Fig. 9: alpha on both datasets of a mixed stream of which the draft learns from one, then from the other."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import printed_curves, stream_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per dataset; below the digitised curves, whose average looks ahead."""

    def printed(ax: Axes, dataset: str) -> None:
        printed_curves(ax, published, "mix", {f"alpha_{dataset.removesuffix('_alpaca')}": "online"})

    return stream_figure(table, scale, panel="group", printed=printed, printed_note=" (printed: 50, looking ahead)")
