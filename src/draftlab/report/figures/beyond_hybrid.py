"""The better of K-SEQ and importance sampling, chosen at each position from the two distributions before any token is drafted."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report import tidy
from draftlab.report.figures.curves import curves
from draftlab.report.figures.style import LOOKS, counted, footer, in_order, legend, panels
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot acceptance and the shortfall from the optimum, with a column per K and kind of pair (recorded or synthetic)."""
    kinds = table["dataset"].eq("synthetic").map({True: "synthetic", False: "models"})
    panel = [f"{kind}, K = {drafts}" for kind, drafts in zip(kinds, table["num_drafts"], strict=True)]
    table = table.assign(panel=panel)
    shown = list(dict.fromkeys(panel))
    figure, axes = panels(2, len(shown), height=1.6, sharex=True, sharey="row")
    for row, above in enumerate(("acceptance_sum", "shortfall_sum")):
        estimates = tidy.ratio_table(table, above, "positions", ["panel", "scheme", "draft_temperature"])
        # The optimum has no shortfall, and 0 has no place on a log axis.
        estimates = estimates[estimates["estimate"] > 1e-6]
        order = in_order(estimates["scheme"], LOOKS)
        for ax, value in zip(axes[row], shown, strict=True):
            curves(ax, estimates[estimates["panel"] == value], "draft_temperature", "scheme", order, 0.02)
    for upper, lower, value in zip(*axes, shown, strict=True):
        upper.set_title(value)
        lower.set(xlabel="draft temperature", yscale="log")
    axes[0, 0].set_ylabel("acceptance")
    axes[1, 0].set_ylabel("shortfall from the optimum")
    legend(figure)
    n = tidy.resampled_ids(table).groupby(table["panel"]).nunique()
    footer(figure, scale, f"{counted(n)} requests per point", "bars: 95 % bootstrap")
    return figure
