"""Updates that a trainer apart from the server delivers some requests late (asked by the area chair)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Alpha of the whole stream over the lag, a line per dataset."""
    return curve_figure(
        table,
        scale,
        x="lag",
        above="overlap",
        below="visited",
        series="dataset",
        xlabel="requests until an update arrives",
        ylabel="alpha",
    )
