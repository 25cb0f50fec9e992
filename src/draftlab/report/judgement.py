"""The verdict on one claim, and what a judgement says of our differences."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from draftlab.core.stats import Interval
from draftlab.report.intervals import smallest_detectable

ClaimVerdict = Literal[
    "reproduced",
    "same direction",
    "printed size excluded",
    "undecided",
    "contradicts",
    "inconsistent in print",
    "compared in other rows",
    "not run at this scale",
]
CLAIM_VERDICTS: tuple[ClaimVerdict, ...] = get_args(ClaimVerdict)
ROUNDING = 1e-12
"""Differences up to this size come from the order in which a sum was computed."""
POWER = 0.8


@dataclass(frozen=True)
class Judgement:
    """The verdict on one claim and our value (``ours``), which is None if no table covers the claim.

    ``detectable`` is the smallest difference that this run would have detected in 80 % of repeats, in its least sensitive comparison.
    """

    ours: Interval | None
    verdict: ClaimVerdict
    note: str = ""
    detectable: float = math.nan


NOT_RUN = Judgement(None, "not run at this scale")


def detectable(gaps: Sequence[Interval]) -> float:
    """The smallest difference that the least sensitive comparison would have detected; NaN if none has an interval."""
    sizes = [smallest_detectable(gap, len(gaps), POWER) for gap in gaps]
    return max(filter(math.isfinite, sizes), default=math.nan)


def signed(gap: Interval) -> str:
    """A difference with its sign and interval as text; values below ``ROUNDING`` are written as 0."""
    if math.isnan(gap.estimate):
        return "no value"
    estimate, low, high = (0.0 if abs(value) < ROUNDING else value for value in (gap.estimate, gap.low, gap.high))
    interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
    return f"{estimate:+.3g}{interval}"


def join(*notes: str) -> str:
    """The notes that say something, as one."""
    return "; ".join(filter(None, notes))
