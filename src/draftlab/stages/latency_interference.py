"""Serving at a set acceptance, with and without a draft training on another core.

The paper updates the draft while it serves, and does not measure the effect of one on the other. Here a second process runs the
draft's own updates. It is paused and resumed around the same speculative rounds, so that both phases run on the same machine.

Seconds are CPU time of the serving thread, which has a core to itself. They include what training costs it through caches, memory and
a sibling hardware thread, but not the time taken by other processes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.errors import UserError
from draftlab.progress import progress
from draftlab.stages import latency_alpha
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.latency.trainer import Trainer
    from draftlab.models.backend import LatencyBackend

IDLE_SECONDS = 0.3


class Settings(latency_alpha.Settings):
    update_batch: int = Field(gt=0, default=8, description="requests per update of the training process")
    update_tokens: int = Field(gt=0, default=64, description="tokens of each of these requests")


class Row(latency_alpha.BlockColumns):
    """One block of a phase; the phases alternate as alone, training, training, alone."""

    phase: Literal["alone", "training"] = column("whether the draft trains at the same time")
    training_steps: int = column("updates while the block ran", "updates", timed=True)
    wall_seconds: float = timing("wall-clock time of the block")
    idle_training_steps: int = column("updates while nothing was served", "updates", timed=True)
    idle_wall_seconds: float = timing("time during which nothing was served")


MEASURES = {
    "token_ms": Measure("speculative_ms", None, "time per token", "ms"),
    "speedup": Measure("plain", "speculative", "speed-up", "times plain decoding"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """``measure`` a pair on one core while the training process has another."""
    from draftlab.latency.pair import describe, open_pair
    from draftlab.latency.trainer import training
    from draftlab.models.cores import can_pin, pinned

    if not inputs.draft.is_dir():
        raise UserError(
            "the draft is not a folder", file=inputs.draft, remedy="give the draft's folder, so that it can be trained"
        )
    pair = open_pair(inputs.target, inputs.draft, settings=settings, context_length=settings.context_length)
    with pinned(1) as others, pair as (target, draft):
        if not others:
            raise UserError("no second core to train on", remedy="let the process use two cores")
        spare = others[-1] if can_pin() else None
        with training(inputs.draft, settings.update_batch, settings.update_tokens, spare) as trainer:
            rows = measure(target, draft, trainer, settings)
        return rows, describe(target, draft) | {"training_core": spare}


def measure(target: LatencyBackend, draft: LatencyBackend, trainer: Trainer, settings: Settings) -> pd.DataFrame:
    """One row per (phase, alpha, draft_len, block); ``idle_`` columns count updates while nothing is served."""
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(settings.seed)
    text, plans = latency_alpha.prepare(target, draft, settings, 2 * settings.blocks, rng)
    rows: list[dict[str, Any]] = []
    for block in progress(range(settings.blocks), "blocks"):
        trainer.run(True)
        idle = trainer.steps_during(lambda: time.sleep(IDLE_SECONDS))
        for half, phase in enumerate(("alone", "training", "training", "alone")):
            trainer.run(phase == "training")
            for (alpha, draft_len), plan in plans.items():
                row = {"phase": phase, "alpha": alpha, "draft_len": draft_len, "block": block}
                rounds = plan[2 * block + half % 2].tolist()
                spent = trainer.steps_during(
                    lambda: row.update(latency_alpha.measure_block(target, draft, text, rounds, draft_len))  # noqa: B023
                )
                rows.append(row | spent | {f"idle_{name}": value for name, value in idle.items()})
    return pd.DataFrame(rows)


STAGE = stage_of(
    __name__,
    inputs=TargetAndDraft,
    derived=latency_alpha.Derived,
    derive=latency_alpha.derive,
    exclusive=True,
    needs_gpu_build=True,
)
