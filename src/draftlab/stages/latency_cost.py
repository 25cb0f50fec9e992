"""What a draft step, a target step and the verification of several tokens cost, by context length and batch size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing

if TYPE_CHECKING:
    import pandas as pd

FILLER = 32
"""The most tokens of prompt and answer for which the time around the models' calls is measured."""


class Settings(Engine):
    role: str = Field("draft", description="the draft of the pair that an experiment takes")
    context: Distinct[Count] = Field(min_length=1, description="context lengths, in tokens")
    batch: Distinct[Count] = Field(min_length=1, description="numbers of requests in a call")
    verified: Distinct[Annotated[int, Field(ge=2)]] = Field(
        min_length=1, description="numbers of tokens of a request that one call of the target verifies"
    )
    blocks: int = Field(gt=0, description="number of measurements of each step, in shuffled order")
    moment: int = Field(
        0,
        description="number of this repetition; experiments repeat the measurement, because costs drift within minutes",
    )


class Row:
    """One probe of a block, and the measurements around it."""

    context: int = column("tokens in the cache of each sequence", "tokens")
    batch: int = column("sequences in one call", "sequences")
    block: int = column("the block of interleaved work, from 0")
    verified: int = column("tokens of each sequence that one call verifies", "tokens")
    plain_before_seconds: float = timing("a plain step of the target before the probe")
    verify_seconds: float = timing("one call of the target that verifies")
    draft_seconds: float = timing("a draft step; of a draft that proposes a block in one pass, an equal share of it")
    caught_up_seconds: float = timing(
        "a draft step of a block whose first call reads two tokens, as after a block that was accepted whole; at batch 1",
        optional=True,
    )
    turns_seconds: float = timing(
        "a plain step and the verification in turns, each of another shape than the call before; at batch 1",
        optional=True,
    )
    plain_after_seconds: float = timing("a plain step of the target after the probe")
    loop_seconds: float = timing("a block's time in which no model runs: the loop itself", optional=True)
    lookup_seconds: float = timing("finding a block's tokens in the text so far, as prompt lookup does", optional=True)


class Derived:
    plain_seconds: float = timing("a plain step of the target around the probe")


MEASURES = {
    "verify_ratio": Measure("verify_seconds", "plain_seconds", "seconds of verifying over those of a plain step"),
    "draft_ratio": Measure("draft_seconds", "plain_seconds", "seconds of a draft step over those of a plain step"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Calibrate the pair over the grid of contexts, batches and verified tokens."""
    from draftlab.latency.cost import around_calls, calibrate
    from draftlab.latency.pair import describe, open_pair
    from draftlab.models.config import drafts_in_parallel

    grid = settings.context, settings.batch, settings.verified
    context, sequences = max(settings.context) + max(settings.verified), max(settings.batch)
    pair = open_pair(inputs.target, inputs.draft, settings=settings, context_length=context, sequences=sequences)
    with pair as (target, draft):
        around = around_calls(target, min(max(max(settings.context) // 2, 1), FILLER), settings.seed)
        rows = calibrate(target, draft, *grid, settings.blocks, settings.seed, drafts_in_parallel(inputs.draft))
        return rows.assign(**around), describe(target, draft)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of one plain step of the target around each probe."""
    return rows.assign(plain_seconds=(rows["plain_before_seconds"] + rows["plain_after_seconds"]) / 2)


STAGE = stage_of(__name__, inputs=TargetAndDraft, exclusive=True, needs_gpu_build=True)
