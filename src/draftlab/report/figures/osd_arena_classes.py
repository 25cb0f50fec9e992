"""OSD Figs. 2 and 10: shares of languages and topics among the requests, in equal slices of time."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import SEQUENCE, footer, name, panels
from draftlab.report.published import Published

HATCHES = ("", "///", "...", "\\\\\\", "xxx", "ooo", "++")
PRINTED = {"language": "F2.language_share", "topic": "F2.topic_share"}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """One panel per way to class requests: a stacked bar per slice, then all slices together; printed shares below."""
    shown = list(dict.fromkeys(table["group_by"]))
    figure, axes = panels(1, len(shown), height=2.2, sharey=True)
    facts: list[str] = []
    for ax, label in zip(axes[0], shown, strict=True):
        rows = table[table["group_by"] == label]
        counts = rows.pivot_table(index="slice", columns="group", values="count", aggfunc="sum", fill_value=0)
        shares = counts.div(counts.sum(axis=1), axis=0)
        order = counts.sum().sort_values(ascending=False).index.tolist()
        printed = published.of(PRINTED.get(label, ""))
        together = counts.sum() / counts.to_numpy().sum()
        places = [*range(len(shares)), len(shares) + 1]
        base = np.zeros(len(places))
        for place, group in enumerate(order):
            heights = np.array([*shares[group], together[group]])
            style = SEQUENCE[place % len(SEQUENCE)]
            look = {
                "facecolor": "white",
                "edgecolor": style.colour,
                "hatch": HATCHES[place % len(HATCHES)],
                "linewidth": 0.6,
            }
            ax.bar(places, heights, bottom=base, width=0.9, label=name(group), **look)
            base += heights
        ax.set(title=label, xlabel="slice of time", ylim=(0, 1))
        ax.set_xticks([0, len(shares) - 1, len(shares) + 1], ["first", "last", "all"])
        ax.grid(axis="x", visible=False)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
        if len(printed):
            words = [
                f"{name(s['variant'])} {v:.0%}" for s, v in zip(printed["settings"], printed["value"], strict=True)
            ]
            facts.append(f"printed {label}s: " + ", ".join(words))
    axes[0, 0].set_ylabel("share of requests")
    footer(
        figure,
        scale,
        f"{int(table.groupby('group_by')['count'].sum().max())} requests",
        "counts, so no interval",
        "of generated requests the shares are settings of the generator",
        *facts,
    )
    return figure
