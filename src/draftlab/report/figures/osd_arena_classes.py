"""OSD Figs. 2 and 10: shares of languages and topics among the requests, in equal slices of time."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import SEQUENCE, footer, name, panels
from draftlab.report.published import Published

PRINTED = {"language": "F2.language_share", "topic": "F2.topic_share"}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Draw a panel per way to classify requests: a stacked bar per slice of time, one for all slices, and one of the printed shares."""
    shown = list(dict.fromkeys(table["group_by"]))
    unprinted: list[str] = []
    figure, axes = panels(1, len(shown), height=2.2, sharey=True)
    for ax, label in zip(axes[0], shown, strict=True):
        rows = table[table["group_by"] == label]
        counts = rows.pivot_table(index="slice", columns="group", values="count", aggfunc="sum", fill_value=0)
        shares = counts.div(counts.sum(axis=1), axis=0)
        order = counts.sum().sort_values(ascending=False).index.tolist()
        claimed = published.of(PRINTED.get(label, ""))
        printed = {
            settings["variant"]: value for settings, value in zip(claimed["settings"], claimed["value"], strict=True)
        }
        together = counts.sum() / counts.to_numpy().sum()
        places = [*range(len(shares)), len(shares) + 1, len(shares) + 2.5]
        base = np.zeros(len(places))
        for place, group in enumerate(order):
            found = [share for variant, share in printed.items() if str(group).lower().startswith(variant)]
            if printed and not found:
                unprinted.append(name(group))
            heights = np.array([*shares[group], together[group], sum(found)])
            look = {"facecolor": SEQUENCE[place % len(SEQUENCE)].colour, "edgecolor": "white", "linewidth": 0.5}
            ax.bar(places, heights, bottom=base, width=0.9, label=name(group), **look)
            base += heights
        ax.set(title=label, xlabel="slice of time", ylim=(0, 1))
        ticks = {0: "first", places[-3]: "last", places[-2]: "all", places[-1]: "printed"}
        ax.set_xticks(list(ticks), list(ticks.values()), rotation=40, ha="right", rotation_mode="anchor")
        ax.grid(axis="x", visible=False)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), reverse=True)
    axes[0, 0].set_ylabel("share of requests")
    requests = int(table.groupby("group_by")["count"].sum().max())
    footer(
        figure,
        scale,
        f"{requests} requests",
        "counts, so no interval",
        "shares of generated requests are settings, not findings",
        f"printed shares leave out {' and '.join(unprinted)}" if unprinted else "",
    )
    return figure
