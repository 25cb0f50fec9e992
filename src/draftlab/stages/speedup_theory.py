"""Eq. 1 of OSD over a grid (Fig. 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct, NotNegative, Share
from draftlab.core.settings import Settings as Base
from draftlab.stages._stage import Bench, Facts, NoInputs, column, stage_of

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    curves: Distinct[tuple[Count, NotNegative]] = Field(
        min_length=1, description="draft length in tokens, and cost of a draft step in target steps, of each curve"
    )
    alphas: Distinct[Share] = Field(min_length=1, description="acceptances per drafted token")


class Row:
    """A point of a curve."""

    alpha: float = column("acceptance of a drafted token", "probability")
    draft_len: int = column("drafted tokens of a block", "tokens")
    cost_ratio: float = column("time of a draft step over a target step")
    speedup: float = column("speed-up by Eq. 1", "times plain decoding")


MEASURES = {
    "speedup": Measure("speedup", None, "speed-up", "times plain decoding"),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """The speed-up at each ``alpha`` on each curve of ``draft_len`` and ``cost_ratio``."""
    import pandas as pd

    from draftlab.core.theory import speedup

    rows = [(alpha, k, c, speedup(alpha, k, c)) for k, c in settings.curves for alpha in settings.alphas]
    return pd.DataFrame(rows, columns=["alpha", "draft_len", "cost_ratio", "speedup"]), {}


STAGE = stage_of(__name__)
