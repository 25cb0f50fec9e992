"""Is it worth the effort: the cost of an undistilled draft relative to one that learns online, by update interval and load."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report import tidy
from draftlab.report.figures.style import GREY, Look, footer, legend, level, look, panels, points, seeds
from draftlab.report.published import Published

UNITS = {"seconds": "seconds", "gb": "bytes"}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot the undistilled draft's cost divided by each contender's; above 1 the contender pays.

    A busy server counts the cost of training, an idle server does not, because training fills its idle time.
    """
    figure, axes = panels(1, 2, height=2.0, sharey=True)
    for ax, (unit, title) in zip(axes[0], UNITS.items(), strict=True):
        busy = table.assign(cost=table[f"serve_{unit}"] + table[f"update_{unit}"])
        idle = table.assign(cost=table[f"serve_{unit}"])
        for number, (load, rows) in enumerate({"busy server": busy, "idle server": idle}.items()):
            ratios = tidy.ratio_table(rows, f"static_{unit}", "cost", ["contender", "update_interval"])
            online = ratios[ratios["contender"] == "online"].sort_values("update_interval")
            style = look("online", 0)
            online_look = Look(f"online, {load}", style.colour, ("-", ":")[number], ("o", "s")[number])
            points(ax, online["update_interval"], online, online_look)
            (larger,) = tidy.records(ratios[ratios["contender"] == "larger"])
            larger_look = Look(f"larger static draft, {load}", look("static_10", 0).colour, online_look.line)
            level(ax, larger, larger_look, alpha=0.12, linewidth=1)
        ax.axhline(1, color=GREY, linewidth=0.6)
        ax.set(xscale="log", xlabel="requests per update", title=title)
        ax.set_xticks(online["update_interval"], online["update_interval"].astype(str), minor=False)
        ax.set_xticks([], minor=True)
    axes[0, 0].set_ylabel("cost of the undistilled draft over that of this one")
    legend(figure)
    footer(
        figure,
        scale,
        f"n = {ratios['n'].min()} requests of Spider per point",
        seeds(table),
        "bars and bands: 95 % bootstrap over requests",
        "busy server: training counts",
        "idle server: training fills idle time",
    )
    return figure
