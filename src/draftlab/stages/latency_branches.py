"""What verifying several drafted branches in one call costs against one branch (multi-draft)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import Target, locate_target, reads_pair
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(Engine):
    """Cost of verifying K branches in one call (multi-draft) against one branch."""

    num_drafts: list[Count] = Field(min_length=1)
    draft_len: int = Field(gt=0)
    context: int = Field(gt=0, default=128)
    blocks: int = Field(gt=0)


class Row:
    """One row of the table."""

    num_drafts: int = column("")
    draft_len: int = column("")
    block: int = column("")
    plain_seconds: float = timing("")
    one_branch_seconds: float = timing("")
    branches_seconds: float = timing("")


MEASURES = {
    "branch_ratio": Measure(
        "branches_seconds",
        "one_branch_seconds",
        "seconds of verifying all branches in one call over those of one branch",
    ),
}


def run(settings: Settings, inputs: Target, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.latency.branches import latency_branches

    return latency_branches(settings, inputs.target)


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Target,
    locate=locate_target,
    reads=reads_pair,
    exclusive=True,
    needs_gpu_build=True,
)
