"""The speed-up of each draft where target and draft sample, in llama.cpp (Table 3 is greedy)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.osd_latency_dataset import PLAIN
from draftlab.report.figures.style import held
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Speed-up over the temperature, a panel per dataset, a line per contender; ``none_again`` is plain decoding against itself."""
    return curve_figure(
        table[table["contender"] != PLAIN],
        scale,
        x="temperature",
        above="plain_seconds",
        below="seconds",
        series="contender",
        panel="dataset",
        xlabel="temperature",
        ylabel="speed-up over the target alone",
        level=1.0,
        facts=held(table, ["draft_len"]),
    )
