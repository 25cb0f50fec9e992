"""Where importance sampling wins and loses: its acceptance minus another scheme's, by temperature and by the target's entropy."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.core import stats
from draftlab.report import tidy
from draftlab.report.figures.style import footer, in_points, panels
from draftlab.report.published import Published
from draftlab.stages.regime import ENTROPIES

RIVALS = {"single": "one draft", "k_seq": "K-SEQ (SpecTr)", "optimal": "the optimum"}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Draw maps of the difference, a column per rival, by the target's temperature above and by its entropy below.

    Differences whose interval includes 0 are in brackets.
    """
    figure, axes = panels(2, len(RIVALS), height=1.7, sharex=True, sharey="row")
    table = table.assign(_unit=tidy.resampled_ids(table))
    for column, (rival, label) in enumerate(RIVALS.items()):
        axes[0, column].set_title(f"against {label}", fontsize=7)
        for ax, key in zip(axes[:, column], ("target_temperature", "entropy_class"), strict=True):
            _draw_map(ax, table, rival, key)
        axes[1, column].set_xlabel("draft temperature")
    classes = sorted(table["entropy_class"].unique())
    axes[1, 0].set_yticks(range(len(classes)), [ENTROPIES[place] for place in classes])
    axes[0, 0].set_ylabel("target temperature")
    axes[1, 0].set_ylabel("target entropy")
    footer(
        figure,
        scale,
        f"K = {int(table['num_drafts'].iloc[0])}, n = {table['_unit'].nunique()} requests",
        "importance sampling (s = 5) less the rival, in points of acceptance; (in brackets): the 95 % interval includes 0",
        "colours: from the largest gain to the largest loss of each panel",
    )
    return figure


def _draw_map(ax: Axes, table: pd.DataFrame, rival: str, key: str) -> None:
    """Draw one map: draft temperature across, the values of column ``key`` upward."""
    drafts, levels = (sorted(table[name].unique()) for name in ("draft_temperature", key))
    shown = np.full((len(levels), len(drafts)), np.nan)
    for (level, draft), rows in table.groupby([key, "draft_temperature"]):
        sums = rows.groupby("_unit")[["importance_truncated", rival, "positions"]].sum()
        gap = stats.ratio(sums["importance_truncated"] - sums[rival], sums["positions"])
        row, column = levels.index(level), drafts.index(draft)
        shown[row, column] = gap.estimate
        text = in_points(gap.estimate)
        is_sure = gap.low > 0 or gap.high < 0  # a single request has no interval
        ax.text(column, row, text if is_sure else f"({text})", ha="center", va="center", fontsize=6)
    largest = np.nanmax(np.abs(shown))
    ax.imshow(shown, cmap="PuOr", vmin=-largest, vmax=largest, origin="lower", aspect="auto", alpha=0.5)
    ax.set_xticks(range(len(drafts)), [f"{value:g}" for value in drafts])
    ax.set_yticks(range(len(levels)), [f"{value:g}" for value in levels])
    ax.grid(False)
