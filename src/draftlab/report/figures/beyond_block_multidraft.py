"""Deep or wide: with eight drafted tokens per target call, one long block, several short sequences, or both together."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import live_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per draft temperature, a line per scheme over the number of sequences (of 8 / K tokens each)."""
    panel = [f"draft temperature {value:g}" for value in table["draft_temperature"]]
    return live_figure(
        table.assign(panel=panel), scale, x="num_drafts", xlabel="sequences K, of 8 / K tokens", panel="panel"
    )
