"""OSD Table 9: the time of one update of the draft beside the target's time for the requests between two updates."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.core.stats import ratio
from draftlab.report.figures.style import BLUE, COLUMN, GREY, RED, Look, footer, legend, name, panels, seeds
from draftlab.report.published import Published

UPDATE, SERVED = Look("one update of the draft", RED, "", "s"), Look("target, requests of one interval", BLUE, "", "o")
PAIRS = {
    "vicuna-7b/llama-160m": "Vicuna-7B / LLaMA-160M, printed",
    "vicuna-33b/tinyllama-1.1b": "Vicuna-33B / TinyLlama-1.1B, printed",
}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot one row per draft and per printed pair, in seconds on a log axis.

    The number between the two marks is how many updates take as long as the target's inference between two updates.
    """
    drafts = list(dict.fromkeys(table["draft"]))
    figure, axes = panels(1, 1, width=COLUMN + 0.6, height=0.9 + 0.2 * len(drafts))
    ax = axes[0, 0]
    for place, draft in enumerate(drafts):
        rows = table[table["draft"] == draft]
        one = pd.Series(1.0, index=rows.index)
        update, served = ratio(rows["update_seconds"], one), ratio(rows["interval_seconds"], one)
        for seconds, style in ((update, UPDATE), (served, SERVED)):
            error = [[seconds.estimate - seconds.low], [seconds.high - seconds.estimate]]
            ax.errorbar(seconds.estimate, place, xerr=error, **style.options(linestyle="", capsize=2))
        _write_ratio(ax, update.estimate, served.estimate, place)
    for place, pair in enumerate(PAIRS, start=len(drafts)):
        short, long = (
            float(published.of(claim, pair=pair)["value"].iloc[0])
            for claim in ("T9.draft_update_time", "T9.target_time_8req")
        )
        for printed, style in ((short, UPDATE), (long, SERVED)):
            ax.plot(printed, place, style.marker, mfc="none", mec=style.colour)
        _write_ratio(ax, short, long, place)
    ax.set(xscale="log", xlabel="seconds", ylim=(len(PAIRS) + len(drafts) - 0.5, -0.6))
    labels = [*(f"ours, {name(draft)} draft" for draft in drafts), *PAIRS.values()]
    ax.set_yticks(range(len(labels)), labels)
    legend(figure)
    footer(
        figure,
        scale,
        f"{int(table['update_interval'].iloc[0])} requests per update, n = {update.n} blocks",
        seeds(table),
        "bars: 95 % bootstrap",
    )
    return figure


def _write_ratio(ax: Axes, short: float, long: float, place: int) -> None:
    """Write the ratio of both times on a line between the two marks."""
    ax.plot([short, long], [place, place], color=GREY, linewidth=0.6, zorder=0)
    white = {"facecolor": "white", "edgecolor": "none", "pad": 1}
    ax.text((short * long) ** 0.5, place, f"{long / short:.0f}x", ha="center", va="center", bbox=white)
