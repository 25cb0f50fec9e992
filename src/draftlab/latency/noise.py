"""When two measured times differ: a paired comparison, and how often it errs on the same thing against itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.stats import t

from draftlab.experiments import LatencyNull
from draftlab.latency.backend import LatencyBackend
from draftlab.latency.controlled import plain_steps
from draftlab.latency.pair import describe, open_pair

CONFIDENCE = 0.99
PROMPT = 64


@dataclass(frozen=True)
class Comparison:
    """``ratio`` = first over second, with its interval (99 %)."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> Literal["faster", "slower", "within noise"]:
        """Whether the second is faster or slower than the first, beyond the noise."""
        return "faster" if self.low > 1 else "slower" if self.high < 1 else "within noise"


def compare(first: ArrayLike, second: ArrayLike) -> Comparison:
    """Compare paired times by a t interval of the mean log ratio; entry i of both was taken within the same moment."""
    ratios = np.log(np.asarray(first, float)) - np.log(np.asarray(second, float))
    margin = float(t.ppf((1 + CONFIDENCE) / 2, len(ratios) - 1) * ratios.std(ddof=1) / np.sqrt(len(ratios)))
    mean = float(ratios.mean())
    return Comparison(*(float(np.exp(x)) for x in (mean, mean - margin, mean + margin)))


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
