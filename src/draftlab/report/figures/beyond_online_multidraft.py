"""Specialists as non-identical drafts: tokens per target call of each arrangement of online drafts, by number of topics."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from draftlab.core import stats
from draftlab.report.figures.style import MEANINGS, counted, footer, in_order, legend, look, marks, panels, seeds
from draftlab.report.published import Published

DRAFTS = MEANINGS["drafts"]


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per number of topics, a row per arrangement; each target call verifies as many sequences as drafts are asked."""
    table = table.assign(
        topics=table.groupby("mixture")["dataset"].transform("nunique"),
        _unit=table["dataset"] + "/" + table["request_id"].astype(str),
    )
    found = stats.ratio_table(table, "emitted", "blocks", ["topics", "drafts", "scheme"], request="_unit")
    shown = sorted(found["topics"].unique())
    rows = in_order(found["drafts"].tolist(), DRAFTS)
    figure, axes = panels(1, len(shown), height=0.4 + 0.24 * len(rows), sharey=True)
    for ax, topics in zip(axes[0], shown, strict=True):
        for place, scheme in enumerate(dict.fromkeys(found["scheme"])):
            own = found[(found["topics"] == topics) & (found["scheme"] == scheme)]
            y = np.array([rows.index(drafts) for drafts in own["drafts"]]) + 0.22 * (place - 0.5)
            marks(ax, own, y, look(scheme, place))
        ax.set(title=f"{topics} topics, K = {topics}", xlabel="tokens per target call", ylim=(len(rows) - 0.5, -0.5))
        ax.set_yticks(range(len(rows)), [DRAFTS[drafts] for drafts in rows])
    legend(figure, list(axes[0]))
    footer(
        figure, scale, f"{counted(found['n'])} requests per mark", "bars: 95 % bootstrap over requests", seeds(table)
    )
    return figure
