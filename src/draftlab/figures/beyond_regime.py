"""Where importance sampling wins and where it loses: its acceptance less another scheme's, over both temperatures."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab import stats, tidy
from draftlab.figures.style import LOOKS, footer, panels
from draftlab.published import Published

RIVALS = ("single", "specinfer", "k_seq", "optimal")


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per rival; a cell without a bracket is a difference whose interval leaves out 0."""
    figure, axes = panels(2, 2, height=2.0, sharex=True, sharey=True)
    table = table.assign(_unit=tidy.clusters(table))
    for ax, rival in zip(axes.flat, RIVALS, strict=True):
        _panel(ax, table, rival)
        ax.set_title(f"against {LOOKS[rival].label}", fontsize=7)
    for ax in axes[1]:
        ax.set_xlabel("draft temperature")
    for ax in axes[:, 0]:
        ax.set_ylabel("target temperature")
    n = table["_unit"].nunique()
    footer(
        figure,
        scale,
        f"K = {int(table['num_drafts'].iloc[0])}, n = {n} requests",
        "importance sampling (s = 5) less the rival, in points of acceptance; (in brackets): the 95 % interval holds 0",
    )
    return figure


def _panel(ax: Axes, table: pd.DataFrame, rival: str) -> None:
    drafts, targets = (sorted(table[key].unique()) for key in ("draft_temperature", "target_temperature"))
    shown = np.zeros((len(targets), len(drafts)))
    for (target, draft), rows in table.groupby(["target_temperature", "draft_temperature"]):
        sums = rows.groupby("_unit")[["importance_truncated", rival, "positions"]].sum()
        gap = stats.ratio(sums["importance_truncated"] - sums[rival], sums["positions"])
        row, column = targets.index(target), drafts.index(draft)
        shown[row, column] = gap.estimate
        words = f"{100 * gap.estimate:+.1f}"
        ax.text(column, row, f"({words})" if gap.low <= 0 <= gap.high else words, ha="center", va="center", fontsize=6)
    ax.imshow(shown, cmap="PuOr", vmin=-0.15, vmax=0.15, origin="lower", aspect="auto", alpha=0.7)
    ax.set_xticks(range(len(drafts)), [f"{value:g}" for value in drafts])
    ax.set_yticks(range(len(targets)), [f"{value:g}" for value in targets])
    ax.grid(False)
