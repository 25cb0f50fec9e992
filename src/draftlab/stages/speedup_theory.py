"""Eq. 1 of OSD over a grid (Fig. 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, NotNegative, Share
from draftlab.core.settings import Settings as Base
from draftlab.stages._stage import Bench, Facts, NoInputs, Stage, column

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """Eq. 1 of OSD over a grid (Fig. 8)."""

    curves: list[tuple[Count, NotNegative]] = Field(min_length=1)
    alphas: list[Share] = Field(min_length=1)


class Row:
    """One row of the table."""

    alpha: float = column("")
    draft_len: int = column("")
    cost_ratio: float = column("")
    speedup: float = column("")


MEASURES = {
    "speedup": Measure("speedup", None, "speed-up", "times plain decoding"),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.core.costs import speedup_theory

    return speedup_theory(settings), {}


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
)
