"""How often a comparison of two measured times errs on the same thing against itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from draftlab.latency.controlled import plain_steps
from draftlab.latency.pair import describe, open_pair
from draftlab.models.backend import LatencyBackend

if TYPE_CHECKING:
    from draftlab.stages.latency_null import Settings as LatencyNull

PROMPT = 64


def latency_null(settings: LatencyNull, target: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """``measure_null`` of a target in llama.cpp, and the run's description."""
    with open_pair(target, settings=settings, context_length=PROMPT + settings.steps) as (model,):
        return measure_null(model, settings), describe(model)


def measure_null(target: LatencyBackend, settings: LatencyNull) -> pd.DataFrame:
    """One row per (repeat, pair): seconds of plain steps called A and of the same steps called B, in the order A B B A."""
    text = np.random.default_rng(settings.seed).integers(0, target.vocab_size, PROMPT + settings.steps).tolist()
    plain_steps(target, text, PROMPT, settings.steps)
    rows = []
    for repeat in range(settings.repeats):
        for pair in range(settings.pairs):
            a, b, b_again, a_again = (plain_steps(target, text, PROMPT, settings.steps) for _ in range(4))
            rows.append({"repeat": repeat, "pair": pair, "a_seconds": a + a_again, "b_seconds": b + b_again})
    return pd.DataFrame(rows)
