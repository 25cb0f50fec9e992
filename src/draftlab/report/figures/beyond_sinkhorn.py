"""Entropic transport instead of the linear program: the shortfall from the optimum against the cost of a decision."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report import tidy
from draftlab.report.figures.style import LOOKS, counted, footer, in_order, legend, look, panels, points
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Draw a panel per K and a line per sharpness of the kernel, with a mark per number of iterations.

    Schemes that reach the optimum are vertical lines.
    """
    is_sinkhorn = table["scheme"] == "sinkhorn"
    named = table["scheme"].where(~is_sinkhorn, "Sinkhorn, sharpness " + table["sharpness"].map("{:g}".format))
    table = table.assign(contender=named)
    keys = ["num_drafts", "contender", "iterations"]
    shortfalls = tidy.ratio_table(table, "shortfall_sum", "positions", keys)
    sums = table.groupby(keys)[["seconds", "positions"]].sum()
    shortfalls["us"] = (
        1e6 * (sums["seconds"] / sums["positions"]).reindex(pd.MultiIndex.from_frame(shortfalls[keys])).to_numpy()
    )
    shown = sorted(shortfalls["num_drafts"].unique())
    figure, axes = panels(1, len(shown), height=2.2, sharey=True)
    for ax, drafts in zip(axes[0], shown, strict=True):
        rows = shortfalls[shortfalls["num_drafts"] == drafts]
        for place, contender in enumerate(in_order(rows["contender"], LOOKS)):
            line, style = rows[rows["contender"] == contender].sort_values("iterations"), look(contender, place)
            if line["estimate"].max() < 1e-6:
                ax.axvline(line["us"].iloc[0], **style.options(marker=""))
                continue
            points(ax, line["us"], line, style)
            if contender not in LOOKS:  # all lines begin at one point, which is named once
                for end in line.iloc[[-1] if ax.texts else [0, -1]].itertuples():
                    near = {"textcoords": "offset points", "ha": "center", "fontsize": 5.5}
                    ax.annotate(f"{end.iterations:g}", (end.us, end.estimate), (0, 6), **near)
        ax.set(title=f"K = {drafts}", xlabel="CPU µs per position", xscale="log", yscale="log")
        ax.margins(y=0.1)  # room for the numbers
    axes[0, 0].set_ylabel("shortfall from the optimum")
    legend(figure)
    footer(
        figure,
        scale,
        f"{counted(shortfalls['n'])} requests per point, bars: 95 % bootstrap",
        "numbers: fewest and most iterations",
        "vertical line: no shortfall",
    )
    return figure
