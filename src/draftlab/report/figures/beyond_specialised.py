"""Specialised against shared drafts: at equal data, at equal updates, over the size of the draft."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import gap_figure
from draftlab.report.published import Published

PAIRS = {
    "equal data for each draft": ("separate", "shared_quarter"),
    "equal updates in all": ("separate", "shared"),
    "equal updates of each": ("separate_long", "shared"),
}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A map per dataset: what its own draft accepts more than the shared one, over the size of the draft."""
    return gap_figure(table, scale, PAIRS, panel="group", x="draft", xlabel="size of the draft", span=0.15)
