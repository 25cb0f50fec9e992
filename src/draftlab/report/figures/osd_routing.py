"""OSD Fig. 6: what a draft per class, routed by a classifier, gains over one shared draft, class by class."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import gap_figure
from draftlab.report.published import Published

PAIRS = {"equal updates in all": ("separate", "shared"), "equal updates of each": ("separate_fast", "shared")}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A map per kind of traffic; the printed gains stand below."""
    printed = {
        variant: published.of("F6.single_vs_separate_mean", variant=variant)["value"].to_numpy()
        for variant in ("separate_drafts", "single_draft")
    }
    gains = 100 * (printed["separate_drafts"] - printed["single_draft"])
    facts = [f"printed (Fig. 6, digitised): {gains.min():+.1f} to {gains.max():+.1f} on five topics"]
    return gap_figure(table, scale, PAIRS, panel="traffic", x="group", xlabel="class of the request", facts=facts)
