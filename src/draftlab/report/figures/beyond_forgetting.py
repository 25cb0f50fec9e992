"""What is left of what a draft had learnt once the stream has moved on: alpha on held-out requests of each dataset."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.style import LOOKS
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per dataset in the order of the stream, over the requests served."""
    return curve_figure(
        table[table["measured_on"] == "held_out"],
        scale,
        x="after",
        above="overlap",
        below="visited",
        series="method",
        panel="group",
        order=list(LOOKS),
        xlabel="requests served",
        ylabel="alpha, held out",
    )
