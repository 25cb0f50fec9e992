"""What a decision of each verifier costs (MDSS, App. G)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Whole
from draftlab.core.settings import Settings as Base
from draftlab.stages._stage import Bench, Facts, NoInputs, Stage, column

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """What a decision of each scheme costs (MDSS App. G)."""

    vocabs: list[Count] = Field(default=[32_000, 128_000], min_length=1)
    num_drafts: list[Count] = Field(default=[2, 4], min_length=1)
    batch: Count = 64
    rounds: Count = 40
    seed: Whole = 0


class Row:
    """One row of the table."""

    vocab: int = column("")
    filter: str = column("")
    support: int = column("")
    num_drafts: int = column("")
    batch: int = column("")
    scheme: str = column("")
    ms: float = column("", "ms", timed=True)
    ms_p90: float = column("", "ms", timed=True)


MEASURES = {
    "ms": Measure("ms", None, "time per decision", "ms"),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.multidraft.verifier_cost import verifier_cost

    return verifier_cost(settings), {}


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    exclusive=True,
)
