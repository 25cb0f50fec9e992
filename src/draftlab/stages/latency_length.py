"""Speed-up at a set acceptance against the length of the answer (OSD, Table 8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Under1
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import TargetAndDraft, locate_pair, reads_pair
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(Engine):
    """Speed-up at controlled acceptance against the length of the answer, after a prefix (OSD, Table 8)."""

    alpha: list[Under1] = Field(min_length=1)
    length: list[Count] = Field(min_length=1)
    prefix: int = Field(gt=0, default=512)
    draft_len: int = Field(gt=0)
    blocks: int = Field(gt=0)
    rounds: int = Field(gt=0)


class Row:
    """One row of the table."""

    alpha: float = column("")
    draft_len: int = column("")
    begin: int = column("")
    end: int = column("")
    block: int = column("")
    plain_before_seconds: float = timing("")
    plain_after_seconds: float = timing("")
    plain_steps: int = column("")
    seconds: float = timing("")
    rounds: int = column("")


MEASURES = {
    "speedup": Measure("plain", "speculative", "speed-up", "times plain decoding"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.latency.length import latency_length

    return latency_length(settings, inputs.target, inputs.draft)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds to decode ``length`` tokens plainly and speculatively, per block."""

    from draftlab.latency.summary import summarise_length

    return summarise_length(rows)


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
