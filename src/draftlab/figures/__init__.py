"""Tidy table -> picture: one module per figure, named as its experiment.

A figure function takes (table, scale, published) and returns a matplotlib ``Figure``; it reads nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from draftlab.errors import UserError
from draftlab.figures import (
    mdss_acceptance,
    mdss_region,
    osd_latency_alpha,
    osd_offline,
    osd_online,
    osd_speedup_theory,
)
from draftlab.figures.style import save
from draftlab.published import Published

FIGURES: dict[str, Callable[[pd.DataFrame, str, Published], Figure]] = {
    "osd_offline": osd_offline.draw,
    "osd_online": osd_online.draw,
    "osd_speedup_theory": osd_speedup_theory.draw,
    "osd_latency_alpha": osd_latency_alpha.draw,
    "mdss_region": mdss_region.draw,
    "mdss_acceptance": mdss_acceptance.draw,
}


def draw(experiment: str, table: pd.DataFrame, scale: str, published: Published, prefix: Path) -> None:
    """Write ``prefix.pdf`` and ``prefix.png``; the same table gives the same bytes."""
    if experiment not in FIGURES:
        raise UserError(
            f"no figure for {experiment!r}", remedy=f"add one to draftlab.figures; there are {', '.join(FIGURES)}"
        )
    save(FIGURES[experiment](table, scale, published), prefix)
