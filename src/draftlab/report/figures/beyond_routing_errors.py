"""How many requests may go to a wrong draft before separate drafts lose what they gain."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Alpha of the whole stream over the share of requests misrouted on purpose; one shared draft is the level."""
    rate = table["method"].str.removeprefix("errors_").where(table["method"] != "shared", "0").astype(float)
    return curve_figure(
        table.assign(rate=rate, draft=table["method"].where(table["method"] == "shared", "separate")),
        scale,
        x="rate",
        above="overlap",
        below="visited",
        series="draft",
        order=["separate", "shared"],
        xlabel="requests sent to another draft, %",
        ylabel="alpha",
    )
