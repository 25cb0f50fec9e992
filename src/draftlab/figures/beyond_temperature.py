"""Estimators of alpha against the temperature of target and draft, with what live decoding counts as the truth."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.figures.forms import curve_figure
from draftlab.published import Published

ESTIMATORS = {
    "live decoding: accepted / visited": ("live", "accepted"),
    "accepted / visited": ("replay", "accepted"),
    "sum of min(target, draft)": ("replay", "overlap"),
    "OSD's repository": ("replay", "overlap_repo"),
}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per draft, a line per estimator."""
    parts = []
    for words, (measured, column) in ESTIMATORS.items():
        rows = table[table["measured"] == measured]
        parts.append(rows.assign(estimator=words, counted=rows[column]))
    return curve_figure(
        pd.concat(parts, ignore_index=True),
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
