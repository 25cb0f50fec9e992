"""Entropic transport instead of the linear program: acceptance against iterations, the optimum and importance sampling as levels."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.figures.forms import curve_figure
from draftlab.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per K; the sharpness of the kernel tells the lines apart."""
    is_sinkhorn = table["scheme"] == "sinkhorn"
    named = table["scheme"].where(~is_sinkhorn, "Sinkhorn, sharpness " + table["sharpness"].map("{:g}".format))
    return curve_figure(
        table.assign(contender=named, panel=[f"K = {drafts}" for drafts in table["num_drafts"]]),
        scale,
        x="iterations",
        above="acceptance_sum",
        below="positions",
        series="contender",
        panel="panel",
        xlabel="iterations",
        ylabel="acceptance",
    )
