"""Medusa heads against a draft, each before and after it learnt from what it served (OSD, Table 4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Dataset
from draftlab.stages._inputs import Distillation, locate_distillation, reads_distillation
from draftlab.stages._stage import Bench, Facts, Stage, column, timing
from draftlab.stages._timed import Timed

if TYPE_CHECKING:
    import pandas as pd


class Settings(Timed):
    """Heads on the target against a draft, before and after both learnt from ``requests`` of the stream (OSD, Table 4).

    ``heads_learning_rate``: of the heads. They first learn the target's answers to ``warm_requests`` of each dataset of ``warm``, as released heads
    do theirs. ``widths``: guesses of each head in the tree. ``live_requests`` held-out requests are decoded, ``at_once`` by every contender in turn.
    ``verifiers`` of the tree at temperature 1. ``timed_updates``: interleaved updates that tell what an epoch takes.
    """

    warm: list[Dataset] = Field(min_length=1)
    warm_requests: int = Field(gt=0)
    heads_learning_rate: float = Field(gt=0)
    widths: list[Count] = Field(min_length=1)
    verifiers: list[Literal["rrs", "greedy", "typical"]] = ["rrs", "typical"]
    live_requests: int = Field(gt=0)
    at_once: int = Field(gt=0, default=5)
    timed_updates: int = Field(gt=0)

    @property
    def datasets(self) -> list[Dataset]:
        return [self.dataset, *self.warm]


class Row:
    """One row of the table."""

    accepted: float = column("")
    visited: float = column("")
    overlap: float = column("")
    overlap_repo: float = column("")
    blocks: float = column("")
    emitted: float = column("")
    block: int = column("")
    requests: int = column("")
    contender: str = column("")
    verifier: str = column("")
    is_lossless: int = column("")
    temperature: float = column("")
    seconds: float = timing("")
    plain_seconds: float = timing("")
    same_text: int = column("")
    parameters: float = column("")
    epoch_seconds: float = timing("")
    seed: int = column("")
    dataset: str = column("")


MEASURES = {
    "speedup": Measure("plain_seconds", "seconds", "speed-up", "times plain decoding"),
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
    "alpha": Measure("overlap", "visited", "alpha"),
    "parameters": Measure("parameters_billion", None, "parameters beside the target", "10^9"),
    "epoch_minutes": Measure("epoch_minutes", None, "time of an epoch", "min"),
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.train.medusa import medusa

    return medusa(settings, inputs, bench)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Sizes and times in the units of the papers, and requests that read as plainly decoded."""
    return rows.assign(parameters_billion=rows["parameters"] / 1e9, epoch_minutes=rows["epoch_seconds"] / 60)


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Distillation,
    locate=locate_distillation,
    reads=reads_distillation,
    derive=derive,
    exclusive=True,
)
