"""MDSS Fig. 3: block efficiency and token rate against the temperature of two identical drafts."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import live_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A line per scheme (the paper's figure is a plot; its numbers were not seen)."""
    return live_figure(table, scale, x="draft_temperature", xlabel="draft temperature", facts=["K = 2"])
