"""OSD Table 9: the time of one update of the draft beside the target's time for the requests between two updates."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.figures.style import BLUE, COLUMN, RED, footer, legend, panels, seeds
from draftlab.published import Published
from draftlab.stats import ratio

PAIRS = {
    "vicuna-7b/llama-160m": "Vicuna-7B / LLaMA-160M, printed",
    "vicuna-33b/tinyllama-1.1b": "Vicuna-33B / TinyLlama-1.1B, printed",
}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """One row per pair, seconds on a log axis; the number between the two marks is how many times the update fits."""
    rows = []
    one = pd.Series(1.0, index=table.index)
    update, served = ratio(table["update_seconds"], one), ratio(table["interval_seconds"], one)
    rows.append(("ours", update, served))
    figure, axes = panels(1, 1, width=COLUMN + 0.6, height=1.3)
    ax = axes[0, 0]
    for found, colour, marker, label in (
        (update, RED, "s", "one update of the draft"),
        (served, BLUE, "o", "target, requests of one interval"),
    ):
        error = [[found.estimate - found.low], [found.high - found.estimate]]
        ax.errorbar(found.estimate, 0, xerr=error, fmt=marker, color=colour, capsize=2, label=label)
    ax.annotate(
        f"{served.estimate / update.estimate:.0f}x",
        ((served.estimate * update.estimate) ** 0.5, 0),
        ha="center",
        va="bottom",
        xytext=(0, 2),
        textcoords="offset points",
    )
    for place, pair in enumerate(PAIRS, start=1):
        short, long = (
            float(published.of(claim, pair=pair)["value"].iloc[0])
            for claim in ("T9.draft_update_time", "T9.target_time_8req")
        )
        ax.plot(short, place, "s", mfc="none", mec=RED)
        ax.plot(long, place, "o", mfc="none", mec=BLUE)
        ax.annotate(
            f"{long / short:.0f}x",
            ((short * long) ** 0.5, place),
            ha="center",
            va="bottom",
            xytext=(0, 2),
            textcoords="offset points",
        )
    ax.set(xscale="log", xlabel="seconds", ylim=(len(PAIRS) + 0.5, -0.6))
    ax.set_yticks(range(len(PAIRS) + 1), ["ours", *PAIRS.values()])
    legend(figure, [ax], columns=1)
    footer(
        figure,
        scale,
        f"{int(table['update_interval'].iloc[0])} requests per update, n = {update.n} blocks",
        seeds(table),
        "bars: 95 % bootstrap",
    )
    return figure
