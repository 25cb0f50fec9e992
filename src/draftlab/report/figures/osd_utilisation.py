"""OSD, App. A.4: the Arena's load against hardware, and target over draft FLOPs, as printed and recomputed."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import BLACK, BLUE, GREY, RED, Look, diamonds, footer, legend, name, panels
from draftlab.report.published import Published

SYSTEMS = {
    "serving": Look("target alone", BLUE, "-", ""),
    "online": Look("with drafting and training", RED, "--", ""),
}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot the share of the hardware against load, with the trace as the first point (left), and target over draft FLOPs (right).

    Diamonds are printed values.
    """
    figure, axes = panels(1, 2, height=1.9)
    left, right = axes[0]
    load, ratios = table[table["part"] == "load"], table[table["part"] == "ratio"]
    for system, style in SYSTEMS.items():
        rows = load[load["system"] == system]
        left.plot(rows["requests_per_second"], rows["flops_per_second"] / rows["hardware_flops"], **style.options())
    printed = float(published.of("A4.arena_flops_per_s")["value"].iloc[0])
    first = load.iloc[0]
    x, hardware = first["requests_per_second"], first["hardware_flops"]
    left.plot(x, first["flops_per_second"] / hardware, "o", color=BLACK, ms=4, label="Arena, recomputed")
    diamonds(left, x, printed / hardware)
    left.axhline(1, color=GREY, linewidth=0.6)
    left.set(xscale="log", yscale="log", xlabel="requests per second", ylabel="share of the hardware")
    pairs = list(dict.fromkeys(ratios["pair"]))
    for place, pair in enumerate(pairs):
        rows = ratios[(ratios["pair"] == pair) & (ratios["source"] == "recomputed")]
        right.plot(rows["ratio"], [place], "o", color=BLACK, ms=4)
        value = published.of("A4.flops_ratio", pair=pair)["value"]
        diamonds(right, value, [place] * len(value), None)
    right.set(xlabel="target over draft FLOPs", ylim=(len(pairs) - 0.5, -0.5))
    right.set_yticks(range(len(pairs)), list(map(name, pairs)))
    legend(figure)
    below = f"the factors that the paper names give {first['flops_per_second'] / printed:,.0f} times the load that it prints"
    footer(figure, scale, "exact, so no interval", below)
    return figure
