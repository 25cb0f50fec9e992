"""OSD Fig. 3, the T5 half: alpha along the stream of an encoder-decoder draft that learns online, and of static ones."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.plan.figure import Stream
from draftlab.report.figures.forms import stream_figure
from draftlab.report.figures.osd_offline_t5 import PAIR
from draftlab.report.figures.style import LOOKS
from draftlab.report.published import Published

LATE = {"osd": "online", "static_10pct": "static_10"}
LENGTHS = {"spider": 7000, "gsm8k": 7470, "code_search_net": 10000, "finance_alpaca": 9800}
"""The number of requests of each printed stream."""


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot ours above, and below what can be read from the printed bitmap: each curve late in the stream, and the offline line."""

    def printed(ax: Axes, dataset: str) -> None:
        records = LENGTHS.get(dataset, 10000)
        for variant, name in LATE.items():
            for level in published.of("F3.online_late_approx", pair=PAIR, dataset=dataset, variant=variant)["value"]:
                ax.plot([0.8 * records, records], [level, level], **LOOKS[name].options(marker="", linewidth=2))
        for level in published.of("F3.offline_line", pair=PAIR, dataset=dataset)["value"]:
            ax.axhline(level, **LOOKS["offline"].options(marker="", linewidth=1.1))
        ax.set_xlim(0, max(LENGTHS.values()))

    form = Stream(panel="dataset", note=" (printed: late level)")
    return stream_figure(table, scale, published, form, extra=printed)
