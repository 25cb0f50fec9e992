"""OSD Fig. 7 and Table 6: precision and recall of the draft on the most common tokens, before and after distillation."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.plan.figure import Curves
from draftlab.report.figures.curves import curve_figure
from draftlab.report.figures.style import NAMES, PALE, in_order, look
from draftlab.report.published import Published

SHOWN = 15
"""How many tokens are shown for each dataset, as in Table 6."""


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot a panel per dataset against the rank of the token, ten ranks per point, with the tokens that gain most recall below."""
    common = table[table["common"] & (table["statistic"] == "recall")].assign(
        tens=lambda rows: (rows["rank"] - 1) // 10 * 10 + 5
    )
    form = Curves(
        x="tens",
        xlabel="rank of the token",
        above="accepted",
        below="proposed",
        ylabel="precision",
        also=[("recall", "accepted", "generated")],
        series="method",
        panel="dataset",
        facts=["at the right: the authors' means over 100 tokens"],
    )
    figure = curve_figure(common, scale, published, form, {}, foot=_draw_tokens)
    datasets = in_order(common["dataset"], NAMES)
    for row, statistic in enumerate(("precision", "recall")):
        for ax, dataset in zip(figure.axes[row * len(datasets) :], datasets, strict=False):
            ax.set_ylim(-0.05, 1.05)  # shares, although an interval over few requests may reach above 1
            for method, variant in (("original", "original"), ("distilled", "teacher_fwd")):
                means = [
                    *published.of(f"F7.top100_mean_{statistic}", dataset=dataset, variant=variant)["value"],
                    *published.of("F7x.top100_mean", dataset=dataset, statistic=statistic, variant=method)["value"],
                ]
                for mean in means:
                    ax.plot([99, 107], [mean, mean], color=look(method, 0).colour, linewidth=2)
    return figure


def _gains_in_recall(common: pd.DataFrame) -> pd.Series:
    """Compute the gain in recall of each token, largest first (OSD, Table 6)."""
    sums = common.groupby(["text", "method"])[["accepted", "generated"]].sum()
    recall = (sums["accepted"] / sums["generated"].where(sums["generated"] > 0)).unstack("method")
    return (recall["distilled"] - recall["original"].fillna(0)).dropna().sort_values(ascending=False, kind="stable")


def _draw_tokens(ax: Axes, common: pd.DataFrame) -> None:
    """Draw a bar for each of the tokens that gain most, with its text."""
    largest = _gains_in_recall(common)[:SHOWN]
    ax.barh(range(len(largest)), largest, color=PALE)
    for place, text in enumerate(largest.index):
        ax.text(0.02, place, repr(text), fontsize=5.5, va="center_baseline", parse_math=False)
    ax.set(xlabel="gain in recall", xlim=(0, 1), ylim=(SHOWN - 0.4, -0.6), xticks=[0, 0.5, 1], yticks=[])
    ax.grid(visible=False, axis="y")
