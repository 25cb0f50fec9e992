"""What updates of a draft cost against what they save, by interval, and against a larger static draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count
from draftlab.stages._inputs import Distillation, locate_distillation, reads_distillation
from draftlab.stages._stage import Bench, Facts, Stage, column, timing
from draftlab.stages._timed import Timed

if TYPE_CHECKING:
    import pandas as pd


class Settings(Timed):
    """What updates cost against what they save, for each of ``intervals``, and against a larger static draft at the same compute.

    The stream is the first ``requests`` of the dataset; ``larger`` is distilled beforehand on as many of the next ones as the FLOPs of the online
    draft's training buy it. ``measurements``, interleaved, of every step and update give the seconds. ``context``: tokens in the caches.
    """

    intervals: list[Count] = Field(min_length=1)
    larger: str = "draft_large"
    measurements: int = Field(gt=0)
    context: int = Field(gt=0, default=128)

    @property
    def drafts_opened(self) -> list[str]:
        return [self.draft, self.larger]


class Row:
    """One row of the table."""

    record: int = column("")
    accepted: float = column("")
    visited: float = column("")
    overlap: float = column("")
    overlap_repo: float = column("")
    blocks: float = column("")
    emitted: int = column("")
    request: int = column("")
    serve_seconds: float = timing("")
    serve_gb: float = column("")
    update_seconds: float = timing("")
    update_gb: float = column("")
    contender: str = column("")
    update_interval: int = column("")
    static_seconds: float = timing("")
    static_gb: float = column("")
    seed: int = column("")


MEASURES = {
    "gain": Measure(
        "static_seconds", "cost_seconds", "seconds of the static draft over those of this one, training counted"
    ),
    "alpha": Measure("overlap", "visited", "alpha"),
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.train.break_even import break_even

    return break_even(settings, inputs, bench)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a request with its share of the training."""
    return rows.assign(cost_seconds=rows["serve_seconds"] + rows["update_seconds"])


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
