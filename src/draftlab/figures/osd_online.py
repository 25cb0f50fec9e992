"""OSD Fig. 3: alpha along the stream of the online draft, the static drafts and the offline line."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.figures.style import LOOKS, footer, in_order, legend, look, name, panels, seeds
from draftlab.published import Published
from draftlab.stats import moving_ratio, ratio

PRINTED = {"osd_online": "online", "static_10pct": "static_10"}
CURVES = {"code_search_net": "python", "finance_alpaca": "finance"}
DATASETS = ("spider", "gsm8k", "code_search_net", "finance_alpaca")


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Above ours, below the digitised curves of the paper; the last fifth of each stream has its interval at the right."""
    datasets = in_order(table["dataset"].tolist(), DATASETS)
    figure, axes = panels(2, len(datasets), height=1.6, sharey=True, sharex="row")
    window = 0
    for column, dataset in enumerate(datasets):
        window = _ours(axes[0, column], table[table["dataset"] == dataset])
        _printed(axes[1, column], dataset, published)
        axes[0, column].set_title(name(dataset))
        axes[1, column].set_xlabel("records")
    axes[0, 0].set(ylabel="alpha, ours", ylim=(0, 1))
    axes[1, 0].set_ylabel("alpha, printed")
    legend(figure, list(axes.flat), columns=5)
    footer(
        figure,
        scale,
        f"moving average of {window} records (printed: 50)",
        f"{table['record'].max() + 1} records, {(table['method'] == 'offline').sum() // len(datasets)} held out",
        seeds(table),
        "at the right: last fifth of the stream, 95 % bootstrap over requests",
    )
    return figure


def _ours(ax: Axes, rows: pd.DataFrame) -> int:
    stream = rows[rows["method"] != "offline"]
    length = int(stream["record"].max()) + 1 if len(stream) else 1
    window = min(50, max(5, length // 10))
    methods = [method for method in LOOKS if method in set(rows["method"])]
    for place, method in enumerate(methods):
        sums = rows[rows["method"] == method].groupby("record")[["overlap", "visited"]].sum()
        style = look(method, place)
        if method == "offline":
            level = ratio(sums["overlap"], sums["visited"])
            ax.axhline(level.estimate, **style.options(marker="", linewidth=1.1))
            continue
        alpha = moving_ratio(sums["overlap"], sums["visited"], window)
        shown = np.arange(len(sums)) >= window - 1
        ax.plot(sums.index[shown], alpha[shown], **style.options(marker=""))
        last = sums[sums.index >= 0.8 * length]
        end = ratio(last["overlap"], last["visited"])
        x = length * (1.03 + 0.04 * place)
        ax.errorbar(
            x,
            end.estimate,
            yerr=[[end.estimate - end.low], [end.high - end.estimate]],
            fmt=style.marker,
            color=style.colour,
            markersize=3,
            capsize=1.5,
        )
    return window


def _printed(ax: Axes, dataset: str, published: Published) -> None:
    for series, method in PRINTED.items():
        curve = published.curve(CURVES.get(dataset, dataset), series)
        ax.plot(curve["x"], curve["y"], **LOOKS[method].options(marker="", linewidth=1))
    line = published.of("F3.offline_line", pair="vicuna-7b/llama-160m", dataset=dataset)["value"]
    for level in line:
        ax.axhline(level, **LOOKS["offline"].options(marker="", linewidth=1.1))
    ax.locator_params(axis="x", nbins=4)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value / 1000:g}k" if value else "0")
