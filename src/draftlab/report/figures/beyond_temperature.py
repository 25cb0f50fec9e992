"""Estimators of alpha against the temperature of target and draft, with what live decoding counts as the truth."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.published import Published
from draftlab.stages.offline import ESTIMATORS


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per draft, a line per estimator."""
    return curve_figure(
        table,
        scale,
        x="temperature",
        above="counted",
        below="visited",
        series="estimator",
        panel="method",
        order=list(ESTIMATORS),
        xlabel="temperature",
        ylabel="estimate of alpha",
    )
