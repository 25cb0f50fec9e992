"""What an interval says: on which side of a level it lies, what it would have detected, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Literal

import numpy as np

from draftlab.core import stats
from draftlab.core.stats import Interval

Side = Literal["more", "less", "level"]


def undecided(interval: Interval) -> Interval:
    """The estimate from a single unit, whose spread is not known."""
    return replace(interval, low=-math.inf, high=math.inf)


def shift(interval: Interval, by: float) -> Interval:
    """Move an interval by a constant."""
    return replace(interval, estimate=interval.estimate + by, low=interval.low + by, high=interval.high + by)


def correct(interval: Interval, comparisons: int) -> Interval:
    """Widen an interval so that all ``comparisons`` together have 95 % (Bonferroni)."""
    degrees = _degrees(interval)
    return stats.stretch(interval, stats.quantile(comparisons, degrees) / stats.quantile(1, degrees))


def smallest_detectable(interval: Interval, comparisons: int, power: float) -> float:
    """The smallest difference that would be detected with probability ``power``, from the interval's width; NaN without an interval."""
    degrees = _degrees(interval)
    error = (interval.high - interval.low) / (2 * stats.quantile(1, degrees))
    return (stats.quantile(comparisons, degrees) + NormalDist().inv_cdf(power)) * error


def _degrees(interval: Interval) -> float:
    """The degrees of freedom of an interval's standard error."""
    return interval.n - 1 if interval.freedom is None else interval.freedom


def bounds(interval: Interval) -> tuple[float, float]:
    """Both ends of an interval; the estimate twice if there is no interval."""
    known = not np.isnan(interval.low)
    return (interval.low, interval.high) if known else (interval.estimate, interval.estimate)


def decide(interval: Interval, level: float = 0.0) -> Side:
    """The side of ``level`` on which an interval lies; ``level`` if it contains it. Without an interval the estimate decides."""
    low, high = bounds(interval)
    return "more" if low > level else "less" if high < level else "level"


def digits_of(intervals: Sequence[Interval], otherwise: int) -> int:
    """How many decimals to show: the last one is at most a third of the median interval width; ``otherwise`` without intervals."""
    widths = [width for interval in intervals if 1e-9 < (width := interval.high - interval.low) < math.inf]
    return min(max(1 - math.floor(math.log10(3 * float(np.median(widths)))), 0), 6) if widths else otherwise


def show(interval: Interval, digits: int, *, alone: bool = False, sign: str = "") -> str:
    """An estimate as text, followed by its interval if it has one and ``alone`` is false; ``sign`` "+" marks a difference.

    A difference has up to two digits more where an end of its interval would be shown as 0, so that a reader sees on which side it lies.

    >>> show(Interval(0.52, -0.02, 1.04, n=12), 1, sign="+")
    '+0.52 [-0.02, +1.04]'
    """
    if alone or not np.isfinite(interval.low):
        return f"{interval.estimate:{sign}z.{digits}f}"
    text = f"{sign}z.{telling(interval, digits) if sign else digits}f"
    return f"{interval.estimate:{text}} [{interval.low:{text}}, {interval.high:{text}}]"


def telling(interval: Interval, digits: int) -> int:
    """``digits``, or up to two more, with which no end of the interval besides 0 itself is shown as 0."""
    ends = [end for end in (interval.low, interval.high) if end != 0]
    return next((more for more in range(digits, digits + 3) if all(round(end, more) != 0 for end in ends)), digits)
