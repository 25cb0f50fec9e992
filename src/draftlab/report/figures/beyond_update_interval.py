"""How often to update, at which learning rate, with how much replay: alpha over the last fifth of the stream."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report import tidy
from draftlab.report.figures.forms import curve_figure
from draftlab.report.published import Published

PANELS = {"learning_rate": "learning rate", "buffer": "replay buffer"}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Left the learning rates, right the replay buffers, over the update interval."""
    late = table[tidy.in_window(table, 0.8, 1.0)]
    return curve_figure(
        late.assign(panel=late["sweep"].map(PANELS)),
        scale,
        x="update_interval",
        above="overlap",
        below="visited",
        series="setting",
        panel="panel",
        xlabel="requests between updates",
        ylabel="alpha, last fifth of the stream",
        log_x=True,
    )
