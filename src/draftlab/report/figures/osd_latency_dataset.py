"""OSD Table 3: the speed-up of each draft on each dataset's own requests."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.core.stats import ratio_table
from draftlab.report.figures.style import (
    COLUMN,
    GREY,
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

PLAIN, AGAIN = "none", "none_again"


def draw_noise(ax: Axes, place: float, low: float, high: float) -> None:
    """Draw the grey band of a row: the noise of the machine, measured by plain decoding against itself."""
    ax.fill_betweenx([place - 0.4, place + 0.4], low, high, color=GREY, alpha=0.35, label=name(AGAIN))


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot one row per dataset and one mark per contender; the grey band is plain decoding against itself, the machine's noise."""
    table = table.assign(dataset=table.get("dataset", "requests"))
    speedups = ratio_table(table[table["contender"] != PLAIN], "plain_seconds", "seconds", ["dataset", "contender"])
    datasets = in_order(speedups["dataset"].tolist(), NAMES)
    contenders = [value for value in dict.fromkeys(speedups["contender"]) if value != AGAIN]
    figure, axes = panels(1, 1, width=COLUMN + 1.2, height=0.7 + 0.4 * len(datasets))
    ax = axes[0, 0]
    for place, dataset in enumerate(datasets):
        rows = speedups[speedups["dataset"] == dataset].set_index("contender")
        if AGAIN in rows.index:
            draw_noise(ax, place, *rows.loc[AGAIN, ["ci_low", "ci_high"]])
        for number, contender in enumerate(contenders):
            y = place + 0.5 * ((number + 0.5) / len(contenders) - 0.5)
            marks(ax, rows.loc[[contender]], y, look(contender, number))
        printed = published.of("T3.speedup_by_dataset", dataset=dataset)
        diamonds(ax, printed["value"], [place] * len(printed), "printed (both pairs)")
    ax.axvline(1, color=GREY, linewidth=0.6)
    ax.set(xlabel="speed-up over the target alone", ylim=(len(datasets) - 0.5, -0.5))
    ax.set_yticks(range(len(datasets)), [name(dataset) for dataset in datasets])
    legend(figure, [ax])
    footer(
        figure,
        scale,
        f"{counted(speedups['n'])} requests per point",
        seeds(table),
        *held(table, ["draft_len"]),
        "bars: 95 % bootstrap over requests",
    )
    return figure
