"""OSD, App. A.4: the Arena's load against hardware, and target over draft FLOPs, as printed and recomputed."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import BLACK, BLUE, GREY, RED, footer, legend, panels
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Left: share of the hardware against the load, the trace itself at the first point; right: the ratios, the printed one as a diamond."""
    figure, axes = panels(1, 2, height=1.9)
    left, right = axes[0]
    load, ratios = table[table["part"] == "load"], table[table["part"] == "ratio"]
    names = {"serving": ("target alone", BLUE, "-"), "online": ("with drafting and training", RED, "--")}
    for system, (label, colour, line) in names.items():
        rows = load[load["system"] == system]
        left.plot(
            rows["requests_per_second"],
            rows["flops_per_second"] / rows["hardware_flops"],
            line,
            color=colour,
            label=label,
        )
    printed = float(published.of("A4.arena_flops_per_s")["value"].iloc[0])
    first = load.iloc[0]
    left.plot(
        first["requests_per_second"],
        first["flops_per_second"] / first["hardware_flops"],
        "o",
        color=BLACK,
        ms=4,
        label="Arena, recomputed",
    )
    left.plot(
        first["requests_per_second"],
        printed / first["hardware_flops"],
        "D",
        mfc="none",
        mec=BLACK,
        ms=4.5,
        label="printed",
    )
    left.axhline(1, color=GREY, linewidth=0.6)
    left.set(xscale="log", yscale="log", xlabel="requests per second", ylabel="share of the hardware")
    pairs = list(dict.fromkeys(ratios["pair"]))
    for place, pair in enumerate(pairs):
        own = ratios[(ratios["pair"] == pair) & (ratios["source"] == "recomputed")]
        right.plot(own["ratio"], [place], "o", color=BLACK, ms=4)
        value = published.of("A4.flops_ratio", pair=pair)["value"]
        right.plot(value, [place] * len(value), "D", mfc="none", mec=BLACK, ms=4.5)
    right.set(xlabel="target over draft FLOPs", ylim=(len(pairs) - 0.5, -0.5))
    right.set_yticks(range(len(pairs)), pairs)
    legend(figure, [left])
    footer(figure, scale, "exact, so no interval")
    return figure
