"""Load of a request trace against hardware, with the draft's training (OSD, App. A.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Settings as Base
from draftlab.core.settings import Share
from draftlab.stages._stage import Bench, Facts, NoInputs, Stage, column

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """Load of a request trace against hardware (OSD, App. A.4), with the draft's training, over loads from 1 to ``most`` times as large."""

    tokens_per_request: float = Field(gt=0)
    requests: float = Field(gt=0)
    days: float = Field(gt=0)
    flops_per_token: float = Field(gt=0)
    hardware_flops: float = Field(gt=0)
    draft_flops_per_token: float = Field(gt=0)
    draft_len: int = Field(gt=0)
    alpha: Share
    most: float = Field(gt=1)
    pairs: list[tuple[str, float, float, float, float]] = Field(
        description="pair, parameters of target and draft in billions, the block length that is printed, the alpha that it stands for"
    )


class Row:
    """One row of the table."""

    part: str = column("")
    system: str = column("")
    load: float = column("")
    requests_per_second: float = column("")
    flops_per_second: float = column("")
    hardware_flops: float = column("")
    pair: str = column("")
    source: str = column("")
    block_length: float = column("")
    ratio: float = column("")


MEASURES = {
    "load": Measure("flops_per_second", "hardware_flops", "FLOP/s asked for, as a share of the hardware's"),
    "flops_per_second": Measure("flops_per_second", None, "FLOP/s asked for", "FLOP/s"),
    "ratio": Measure("ratio", None, "target over draft FLOPs"),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.core.costs import utilisation

    return utilisation(settings), {}


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
)
