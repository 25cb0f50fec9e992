"""Serving while the draft trains on another core: what online distillation costs the requests being served (reviewer rfi3)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.plan.figure import Curves
from draftlab.report.figures.forms import curve_figure
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Milliseconds per token of speculative decoding at a set acceptance, with and without training beside it."""
    trained = table[table["phase"] == "training"]
    rate = trained["training_steps"].sum() / trained["wall_seconds"].sum()
    idle = table["idle_training_steps"].sum() / table["idle_wall_seconds"].sum()
    form = Curves(
        x="alpha",
        xlabel="alpha",
        above="speculative_ms",
        ylabel="ms per token",
        series="phase",
        facts=[f"updates per second: {rate:.1f} beside serving, {idle:.1f} beside nothing"],
    )
    return curve_figure(table, scale, published, form)
