"""Serving at a set acceptance while a draft trains on another core, and while none does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.stages._inputs import TargetAndDraft, locate_pair, reads_pair
from draftlab.stages._stage import Bench, Facts, Stage, column, timing
from draftlab.stages.latency_alpha import Settings as AlphaSettings

if TYPE_CHECKING:
    import pandas as pd


class Settings(AlphaSettings):
    """Serving at controlled acceptance while a draft trains on another core, and while none does."""

    update_batch: int = Field(gt=0, default=8, description="requests per update of the training process")
    update_tokens: int = Field(gt=0, default=64, description="tokens of each of them")


class Row:
    """One row of the table."""

    phase: str = column("")
    alpha: float = column("")
    draft_len: int = column("")
    block: int = column("")
    plain_before_seconds: float = timing("")
    plain_after_seconds: float = timing("")
    plain_steps: int = column("")
    tokens: int = column("")
    draft_steps: int = column("")
    draft_seconds: float = timing("")
    verify_seconds: float = timing("")
    seconds: float = timing("")
    disagreements: int = column("")
    rounds: int = column("")
    verify_probe_seconds: float = timing("")
    verify_probes: int = column("")
    draft_probe_seconds: float = timing("")
    draft_probes: int = column("")
    training_steps: int = column("")
    wall_seconds: float = timing("")
    idle_training_steps: int = column("")
    idle_wall_seconds: float = timing("")


MEASURES = {
    "token_ms": Measure("speculative_ms", None, "time per token", "ms"),
    "speedup": Measure("plain", "speculative", "speed-up", "times plain decoding"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.latency.interference import latency_interference

    return latency_interference(settings, inputs.target, inputs.draft)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Times per token in ms and speed-ups of each block, and what Eq. 1 (OSD) promises more than was measured."""

    from draftlab.core import theory
    from draftlab.latency.summary import block_ratios

    rows = block_ratios(rows)
    promised = [
        theory.speedup(*cell) for cell in zip(rows["alpha"], rows["draft_len"], rows["cost_ratio"], strict=True)
    ]
    return rows.assign(
        plain_ms=1e3 * rows["plain"],
        speculative_ms=1e3 * rows["speculative"],
        eq1=promised,
        eq1_gap=promised - rows["speedup"],
    )


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
