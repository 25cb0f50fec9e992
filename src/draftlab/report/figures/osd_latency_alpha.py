"""OSD Tables 2 and 7: speed-up measured in llama.cpp at controlled acceptance, beside Eq. 1."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.core import theory
from draftlab.report.figures.style import BLUE, GREY, INK, RED, Look, footer, legend, name, panels, points, seeds
from draftlab.report.published import Published
from draftlab.report.tidy import ratio_table

MEASURED, EQ1, REFINED = (
    Look("measured", BLUE, "", "o"),
    Look("Eq. 1", RED, "--", ""),
    Look("Eq. 1 with the measured cost v of verifying a block", INK, ":", ""),
)
PAIRS = ("vicuna-7b/llama-160m", "vicuna-33b/tinyllama-1.1b")
ALPHAS = np.linspace(0.5, 0.9, 41)


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot a panel per draft length and one per printed pair: measured, Eq. 1, and Eq. 1 with the measured cost of a block."""
    lengths = sorted(table["draft_len"].unique())
    figure, axes = panels(1, len(lengths) + len(PAIRS), height=2.0, sharey=True)
    speedups = ratio_table(table, "plain", "speculative", ["draft_len", "alpha"])
    for ax, length in zip(axes[0], lengths, strict=False):
        rows = speedups[speedups["draft_len"] == length].sort_values("alpha")
        points(ax, rows["alpha"], rows, MEASURED)
        costs = table[table["draft_len"] == length][["cost_ratio", "verify_ratio"]].median()
        c, v = float(costs["cost_ratio"]), float(costs["verify_ratio"])
        ax.plot(ALPHAS, [theory.speedup(a, int(length), c) for a in ALPHAS], **EQ1.options())
        ax.plot(ALPHAS, [theory.speedup(a, int(length), c, v) for a in ALPHAS], **REFINED.options())
        ax.set_title(f"ours, k = {length}, c = {c:.3f}, v = {v:.2f}", fontsize=7)
    for ax, pair in zip(axes[0][len(lengths) :], PAIRS, strict=True):
        _printed(ax, pair, published)
    for ax in axes[0]:
        ax.axhline(1, color=GREY, linewidth=0.6)
        ax.set_xlabel("alpha")
    axes[0, 0].set_ylabel("speed-up over the target alone")
    legend(figure)
    footer(
        figure,
        scale,
        f"n = {int(speedups['n'].min())} interleaved blocks per point",
        seeds(table),
        "bars: 95 % bootstrap over blocks",
        "k: draft length, c and v: a draft step and a block over a plain step of the target",
    )
    return figure


def _printed(ax: Axes, pair: str, published: Published) -> None:
    for claim, style in (("T2.speedup_by_alpha", MEASURED), ("T7.theory_speedup", EQ1)):
        rows = published.of(claim, pair=pair)
        ax.plot([float(s["alpha"]) for s in rows["settings"]], rows["value"], **style.options(mfc="white"))
    ax.set_title(f"printed, {name(pair)}", fontsize=7)
