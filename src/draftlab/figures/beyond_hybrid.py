"""The better of K-SEQ and importance sampling, chosen at each position from the two laws before any draft is seen."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.figures.forms import curve_figure
from draftlab.figures.style import LOOKS
from draftlab.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per K and kind of pair (recorded from models, synthetic laws), a line per scheme."""
    kinds = table["dataset"].eq("synthetic").map({True: "laws", False: "models"})
    panel = [f"{kind}, K = {drafts}" for kind, drafts in zip(kinds, table["num_drafts"], strict=True)]
    return curve_figure(
        table.assign(panel=panel),
        scale,
        x="draft_temperature",
        above="acceptance_sum",
        below="positions",
        series="scheme",
        panel="panel",
        order=list(LOOKS),
        xlabel="draft temperature",
        ylabel="acceptance",
    )
