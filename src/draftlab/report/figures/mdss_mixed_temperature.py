"""MDSS Fig. 3, non-identical drafts: the first at one temperature, the second at another."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import live_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A line per scheme; a single draft has only the first temperature and is a level."""
    first = table["first_temperature"].iloc[0]
    facts = [f"first draft at {first:g}"]
    return live_figure(table, scale, x="draft_temperature", xlabel="temperature of the second draft", facts=facts)
