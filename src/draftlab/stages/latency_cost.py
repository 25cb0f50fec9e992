"""What a draft step, a target step and verifying several tokens cost, at context lengths and batch sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import TargetAndDraft, locate_pair, reads_pair
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(Engine):
    """Time of a draft step, a target step and of verifying several tokens, at context lengths and batch sizes."""

    context: list[Count] = Field(min_length=1)
    batch: list[Count] = Field(min_length=1)
    verified: list[Count] = Field(min_length=1)
    blocks: int = Field(gt=0)


class Row:
    """One row of the table."""

    context: int = column("")
    batch: int = column("")
    block: int = column("")
    verified: int = column("")
    plain_before_seconds: float = timing("")
    verify_seconds: float = timing("")
    draft_seconds: float = timing("")
    plain_after_seconds: float = timing("")


MEASURES = {
    "verify_ratio": Measure("verify_seconds", "plain_seconds", "seconds of verifying over those of a plain step"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.latency.cost import latency_cost

    return latency_cost(settings, inputs.target, inputs.draft)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of one plain step of the target around each probe."""
    return rows.assign(plain_seconds=(rows["plain_before_seconds"] + rows["plain_after_seconds"]) / 2)


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=TargetAndDraft,
    locate=locate_pair,
    reads=reads_pair,
    derive=derive,
    exclusive=True,
    needs_gpu_build=True,
)
