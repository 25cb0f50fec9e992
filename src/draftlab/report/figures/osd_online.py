"""OSD Fig. 3: alpha along the stream of the online draft, the static drafts and the offline line."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import printed_curves, stream_figure
from draftlab.report.figures.style import LOOKS
from draftlab.report.published import Published

CURVES = {"spider": "spider", "gsm8k": "gsm8k", "code_search_net": "python", "finance_alpaca": "finance"}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Above ours, below the digitised curves of the paper and its offline line (Vicuna-7B / LLaMA-160M)."""

    def printed(ax: Axes, dataset: str) -> None:
        printed_curves(
            ax, published, CURVES.get(dataset, dataset), {"osd_online": "online", "static_10pct": "static_10"}
        )
        for level in published.of("F3.offline_line", pair="vicuna-7b/llama-160m", dataset=dataset)["value"]:
            ax.axhline(level, **LOOKS["offline"].options(marker="", linewidth=1.1))

    return stream_figure(
        table, scale, panel="dataset", order=list(CURVES), printed=printed, printed_note=" (printed: 50)"
    )
