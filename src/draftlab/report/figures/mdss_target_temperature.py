"""MDSS Fig. 4: block efficiency and token rate against the target's temperature."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import live_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A line per scheme (the paper's figure is a plot; its numbers were not seen)."""
    return live_figure(
        table, scale, x="target_temperature", xlabel="target temperature", facts=["K = 2, drafts at 1.0"]
    )
