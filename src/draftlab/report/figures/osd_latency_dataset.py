"""OSD Table 3: the speed-up of each draft on each dataset's own requests."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import (
    COLUMN,
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
    seeds,
)
from draftlab.report.published import Published
from draftlab.report.tidy import ratio_table

PLAIN, AGAIN = "none", "none_again"
KEYS = ["dataset", "contender"]


def draw(table: pd.DataFrame, scale: str, published: Published, costs: bool = False) -> Figure:
    """Plot one row per dataset and one mark per contender; the grey band is plain decoding against itself, the machine's noise.

    Diamonds are the printed speed-ups. With ``costs`` they are those predicted from probed costs, and a first panel has the tokens per target call.
    """
    table = table.assign(dataset=table.get("dataset", "requests"))
    drafts = table[~table["contender"].isin([PLAIN, AGAIN])]
    speedups = ratio_table(table[table["contender"] != PLAIN], "plain_seconds", "seconds", KEYS)
    datasets = in_order(speedups["dataset"].tolist(), NAMES)
    contenders = in_order(drafts["contender"].tolist(), LOOKS if costs else ())
    if costs:
        figure, axes = panels(1, 2, height=0.7 + 0.11 * len(contenders) * len(datasets), sharey=True)
        tokens = ratio_table(drafts, "tokens", "blocks", KEYS).set_index(KEYS)
        axes[0, 0].set(xlabel="tokens per target call")
    else:
        figure, axes = panels(1, 1, width=COLUMN + 1.2, height=0.7 + 0.4 * len(datasets))
    ax, spread = axes[0, -1], 0.7 if costs else 0.5
    is_predicted = costs and "predicted_steps" in drafts  # where an experiment probed the costs
    for place, dataset in enumerate(datasets):
        rows = speedups[speedups["dataset"] == dataset].set_index("contender")
        for low, high in rows.loc[rows.index == AGAIN, ["ci_low", "ci_high"]].to_numpy():
            ax.fill_betweenx([place - 0.4, place + 0.4], low, high, color=GREY, alpha=0.35, label=name(AGAIN))
        for number, contender in enumerate(contenders):
            y = place + spread * ((number + 0.5) / len(contenders) - 0.5)
            marks(ax, rows.loc[rows.index == contender], y, look(contender, number))
            if costs:
                marks(axes[0, 0], tokens.loc[[(dataset, contender)]], y, look(contender, number))
            if is_predicted:
                own = drafts[(drafts["dataset"] == dataset) & (drafts["contender"] == contender)]
                ratio = own["tokens"].sum() / own["predicted_steps"].sum()
                diamonds(ax, [ratio], [y], "predicted from costs")
        if not costs:
            printed = published.of("T3.speedup_by_dataset", dataset=dataset)
            diamonds(ax, printed["value"], [place] * len(printed), "printed (both pairs)")
    for panel in axes[0]:
        panel.axvline(1, color=GREY, linewidth=0.6)
    ax.set(xlabel="speed-up over the target alone", ylim=(len(datasets) - 0.5, -0.5))
    axes[0, 0].set_yticks(range(len(datasets)), [name(dataset) for dataset in datasets])
    legend(figure, list(axes[0]))
    footer(
        figure,
        scale,
        f"{counted(speedups['n'])} requests per point",
        seeds(table),
        *held(table, ["draft_len"]),
        "bars: 95 % bootstrap over requests",
    )
    return figure
