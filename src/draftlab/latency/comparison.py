"""Paired comparison of two measured times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

CONFIDENCE = 0.99


@dataclass(frozen=True)
class PairedRatio:
    """``ratio`` of the first times to the second, with its interval (99 %)."""

    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """Whether one of the two is faster beyond the noise."""
        return self.low > 1 or self.high < 1


def compare(first: ArrayLike, second: ArrayLike) -> PairedRatio:
    """Compare paired times by a t interval of the mean log ratio; entries i of both were measured one right after the other."""
    from scipy.stats import t  # half a second to load

    ratios = np.log(np.asarray(first, float)) - np.log(np.asarray(second, float))
    margin = float(t.ppf((1 + CONFIDENCE) / 2, len(ratios) - 1) * ratios.std(ddof=1) / np.sqrt(len(ratios)))
    mean = float(ratios.mean())
    return PairedRatio(*(float(np.exp(x)) for x in (mean, mean - margin, mean + margin)))
