"""MDSS v1 Table 2: block efficiency against the alphabet and the size of the linear program."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import live_figure
from draftlab.report.figures.style import BLACK
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A line per size s of the program; hollow marks: the printed values at s = 5."""

    def printed(ax: Axes, _: object) -> None:
        rows = published.of("v1T2.block_efficiency")
        alphabet = [
            (float(s["alphabet"]), value)
            for s, value in zip(rows["settings"], rows["value"], strict=True)
            if "alphabet" in s
        ]
        ax.plot(*zip(*alphabet, strict=True), "o", mfc="none", mec=BLACK, ms=4)

    sizes = [f"s = {size}" if size else "single" for size in table["lp_threshold"]]
    facts = ["K = 2", "hollow: printed at s = 5"]
    return live_figure(
        table.assign(size=sizes), scale, x="top_k", xlabel="alphabet (top-k)", series="size", marks=printed, facts=facts
    )
