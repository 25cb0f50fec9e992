"""A released draft beside a small distilled one: tokens per target call, and the speed-up measured and predicted from probed costs."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.core.stats import ratio_table
from draftlab.report.figures.osd_latency_dataset import AGAIN, PLAIN, draw_noise
from draftlab.report.figures.style import (
    GREY,
    LOOKS,
    NAMES,
    counted,
    diamonds,
    footer,
    held,
    in_order,
    legend,
    look,
    marks,
    name,
    panels,
)
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot one row per dataset and one mark per contender; the grey band is plain decoding against itself, diamonds are predictions."""
    drafts = table[~table["contender"].isin([PLAIN, AGAIN])]
    keys = ["dataset", "contender"]
    tokens = ratio_table(drafts, "tokens", "blocks", keys)
    speed = ratio_table(table[table["contender"] != PLAIN], "plain_seconds", "seconds", keys)
    predicted = drafts.groupby(keys)[["tokens", "predicted_steps"]].sum() if "predicted_steps" in drafts else None
    datasets = in_order(table["dataset"].tolist(), NAMES)
    contenders = in_order(drafts["contender"].tolist(), LOOKS)
    figure, axes = panels(1, 2, height=0.7 + 0.11 * len(contenders) * len(datasets), sharey=True)
    for place, dataset in enumerate(datasets):
        rows = speed[speed["dataset"] == dataset].set_index("contender")
        for ends in rows.loc[rows.index == AGAIN, ["ci_low", "ci_high"]].to_numpy():
            draw_noise(axes[0, 1], place, *ends)
        for number, contender in enumerate(contenders):
            y = place + 0.7 * ((number + 0.5) / len(contenders) - 0.5)
            style = look(contender, number)
            marks(axes[0, 0], tokens[(tokens["dataset"] == dataset) & (tokens["contender"] == contender)], y, style)
            marks(axes[0, 1], rows.loc[rows.index == contender], y, style)
            if predicted is not None:
                steps = predicted.loc[(dataset, contender)]
                diamonds(axes[0, 1], [steps["tokens"] / steps["predicted_steps"]], [y], "predicted from costs")
    for ax in axes[0]:
        ax.axvline(1, color=GREY, linewidth=0.6)
    axes[0, 0].set(xlabel="tokens per target call", ylim=(len(datasets) - 0.5, -0.5))
    axes[0, 1].set(xlabel="speed-up over the target alone")
    axes[0, 0].set_yticks(range(len(datasets)), [name(dataset) for dataset in datasets])
    legend(figure, list(axes[0]))
    footer(
        figure,
        scale,
        f"{counted(speed['n'])} requests per point",
        *held(table, ["draft_len"]),
        "bars: 95 % bootstrap over requests",
    )
    return figure
