"""OSD Fig. 8: the speed-up of Eq. 1 against alpha, for several draft lengths and cost ratios."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import GREY, SEQUENCE, footer, panels
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot several draft lengths at one cost ratio (left) and several cost ratios at one draft length (right); circles are printed."""
    figure, axes = panels(1, 2, height=2.1, sharey=True)
    common = {key: table[key].mode()[0] for key in ("draft_len", "cost_ratio")}
    for ax, varied, fixed, sign, curve in (
        (axes[0, 0], "draft_len", "cost_ratio", "k", "analysis_k"),
        (axes[0, 1], "cost_ratio", "draft_len", "c", "analysis_c"),
    ):
        chosen = table[table[fixed] == common[fixed]]
        for style, value in zip(SEQUENCE, sorted(chosen[varied].unique()), strict=False):
            rows = chosen[chosen[varied] == value].sort_values("alpha")
            ax.plot(rows["alpha"], rows["speedup"], **style.options(marker="", label=f"{sign} = {value:g}"))
            printed = published.curve(curve, f"{sign}={value:g}")
            ax.plot(printed["x"], printed["y"], "o", mfc="none", mec=style.colour, markersize=3.5)
        ax.axhline(1, color=GREY, linewidth=0.6)
        ax.plot([], [], "o", mfc="none", mec=GREY, markersize=3.5, label="printed")
        other = "c" if fixed == "cost_ratio" else "k"
        ax.set(title=f"{other} = {common[fixed]:g}", xlabel="alpha", xlim=(0.05, 0.95))
        ax.legend(loc="upper left")
    axes[0, 0].set_ylabel("speed-up (Eq. 1)")
    footer(figure, scale, "exact: no sampling, so no n and no interval", "k: draft length, c: cost ratio")
    return figure
