"""OSD Table 3: the speed-up of each draft on each dataset's own requests."""

from __future__ import annotations

import itertools

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import (
    COLUMN,
    GREY,
    LOOKS,
    NAMES,
    TITLE,
    WIDE,
    counted,
    diamonds,
    footer,
    held,
    in_order,
    legend,
    looks,
    marks,
    name,
    panels,
    seeds,
)
from draftlab.report.published import Published
from draftlab.report.tidy import ratio_table

PLAIN, AGAIN = "none", "none_again"
KEYS = ["engine", "dataset", "contender"]


def draw(table: pd.DataFrame, scale: str, published: Published, costs: bool = False) -> Figure:
    """Plot one row per dataset and one mark per contender; the grey band is plain decoding against itself, the machine's noise.

    There is a panel for each format of weights, or for each engine. Diamonds are the printed speed-ups. With ``costs`` they are those
    predicted from probed costs, and a first panel has the tokens per target call.
    """
    by = next((axis for axis in ("backend", "weights") if axis in table), None)
    table = table.assign(dataset=table.get("dataset", "requests"), engine=table[by] if by else "")
    drafts = table[~table["contender"].isin([PLAIN, AGAIN])]
    speedups = ratio_table(table[table["contender"] != PLAIN], "plain_seconds", "seconds", KEYS)
    datasets = in_order(speedups["dataset"], NAMES)
    engines = list(dict.fromkeys(table["engine"]))
    contenders = in_order(drafts["contender"], LOOKS if costs else ())
    styles = looks(contenders)
    if costs:
        figure, axes = panels(1, 2, height=0.7 + 0.11 * len(contenders) * len(datasets), sharey=True)
        tokens = ratio_table(drafts, "tokens", "blocks", KEYS[1:]).set_index(KEYS[1:])
        axes[0, 0].set(xlabel="tokens per target call")
    else:
        is_wide = len(engines) > 1 or len(contenders) > 7  # a narrow legend of more would be taller than the panel
        width, height = WIDE if is_wide else COLUMN + 1.2, 0.1 * max(4, len(contenders))
        figure, axes = panels(
            1, len(engines), width=width, height=0.7 + height * len(datasets), sharex=True, sharey=True
        )
    spread = 0.7 if costs else 0.5
    is_predicted = costs and "predicted_steps" in drafts  # where an experiment probed the costs
    for (place, dataset), (ax, engine) in itertools.product(
        enumerate(datasets), zip(axes[0, -len(engines) :], engines, strict=True)
    ):
        is_shown = (speedups["dataset"] == dataset) & (speedups["engine"] == engine)
        rows = speedups[is_shown].set_index("contender")
        for low, high in rows.loc[rows.index == AGAIN, ["ci_low", "ci_high"]].to_numpy():
            ax.fill_betweenx([place - 0.4, place + 0.4], low, high, color=GREY, alpha=0.35, label=name(AGAIN))
        for number, (contender, style) in enumerate(styles.items()):
            y = place + spread * ((number + 0.5) / len(contenders) - 0.5)
            marks(ax, rows.loc[rows.index == contender], y, style)
            if costs:
                marks(axes[0, 0], tokens.loc[tokens.index == (dataset, contender)], y, style)
            if is_predicted:
                own = drafts[(drafts["dataset"] == dataset) & (drafts["contender"] == contender)]
                ratio = own["tokens"].sum() / own["predicted_steps"].sum()
                diamonds(ax, [ratio], [y], "predicted from costs")
        if not costs and len(engines) == 1:
            printed = published.of("T3.speedup_by_dataset", dataset=dataset)
            diamonds(ax, printed["value"], [place] * len(printed), "printed (both pairs)")
        ax.set(xlabel="speed-up over the target alone", ylim=(len(datasets) - 0.5, -0.5))
        if len(engines) > 1:
            ax.set_title(f"{engine} weights" if by == "weights" else name(engine), **TITLE)
    for panel in axes[0]:
        panel.axvline(1, color=GREY, linewidth=0.6)
    axes[0, 0].set_yticks(range(len(datasets)), [name(dataset) for dataset in datasets])
    legend(figure)
    footer(
        figure,
        scale,
        f"{counted(speedups['n'])} requests per point",
        seeds(table),
        *held(table, ["draft_len"]),
        "bars: 95 % bootstrap over requests",
    )
    return figure
