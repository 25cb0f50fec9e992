"""Ratios as summed numerators over summed denominators, with intervals from a bootstrap over requests.

Tokens of one request are not independent, so whole requests are drawn again, never tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap interval (95 %) and the number of requests ``n`` behind it."""

    estimate: float
    low: float
    high: float
    n: int


def _interval(units: Sequence[ArrayLike], statistic: Callable[[Any], Any], seed: int) -> Interval:
    """``statistic`` of the units' sums, with the percentile interval of the sums of units drawn again."""
    samples = np.array([np.asarray(values, float) for values in units])
    n = samples.shape[1]
    with np.errstate(invalid="ignore", divide="ignore"):
        estimate = float(statistic(samples.sum(1)))
        if n < 2 or not np.isfinite(estimate):
            return Interval(estimate, float("nan"), float("nan"), n)
        found = statistic(np.concatenate([_draws(n, part, seed) @ samples.T for part in range(_parts(n))]).T)
    low, high = np.nanquantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(estimate, float(low), float(high), n)


def _parts(n: int) -> int:
    """In how many parts the resamples of ``n`` units are drawn, so that none takes more than about 32 MB."""
    return min(RESAMPLES, -(-RESAMPLES * n // 4_000_000))


@functools.lru_cache(maxsize=4)
def _draws(n: int, part: int, seed: int) -> NDArray[np.float64]:
    """How often each of ``n`` units is drawn, a row per resample: the same for every ratio over as many units."""
    rng = np.random.default_rng([seed, part])
    count = len(range(part, RESAMPLES, _parts(n)))
    drawn = rng.integers(0, n, (count, n)) + n * np.arange(count)[:, None]
    return np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n).astype(float)


def ratio(numerator: ArrayLike, denominator: ArrayLike, *, seed: int = 0) -> Interval:
    """``sum(numerator) / sum(denominator)``, one entry per request; NaN without a positive denominator."""
    return _interval((numerator, denominator), lambda sums: sums[0] / sums[1], seed)


def ratio_difference(
    numerator: ArrayLike,
    denominator: ArrayLike,
    baseline_numerator: ArrayLike,
    baseline_denominator: ArrayLike,
    *,
    seed: int = 0,
) -> Interval:
    """Difference of two ratios over the same requests (paired): an interval without 0 is a difference at 95 %."""
    samples = (numerator, denominator, baseline_numerator, baseline_denominator)
    return _interval(samples, lambda sums: sums[0] / sums[1] - sums[2] / sums[3], seed)


def percent_of(one: tuple[ArrayLike, ArrayLike], other: tuple[ArrayLike, ArrayLike], *, seed: int = 0) -> Interval:
    """The ratio of ``one`` (numerator, denominator) in percent of that of ``other``, over the same requests (paired)."""
    return _interval((*one, *other), lambda sums: 100 * (sums[0] / sums[1]) / (sums[2] / sums[3]), seed)


def ratio_table(
    frame: pd.DataFrame, numerator: str, denominator: str, by: Sequence[str], *, request: str = "request", seed: int = 0
) -> pd.DataFrame:
    """One row per group of ``by`` with ``estimate, ci_low, ci_high, n``; rows of one request (its seeds) form one cluster."""
    rows = []
    for key, group in frame.groupby(list(by), sort=False):
        sums = group.groupby(request, sort=False)[[numerator, denominator]].sum()
        found = ratio(sums[numerator], sums[denominator], seed=seed)
        values = {"estimate": found.estimate, "ci_low": found.low, "ci_high": found.high, "n": found.n}
        rows.append(dict(zip(by, key, strict=True)) | values)
    return pd.DataFrame(rows, columns=[*by, "estimate", "ci_low", "ci_high", "n"])


def moving_ratio(numerator: ArrayLike, denominator: ArrayLike, window: int) -> NDArray[np.float64]:
    """Ratio over the last ``window`` entries at each entry (shorter at the start): it never looks ahead."""
    sums = pd.DataFrame({"n": np.asarray(numerator, float), "d": np.asarray(denominator, float)})
    rolled = sums.rolling(window, min_periods=1).sum()
    return np.asarray(rolled["n"] / rolled["d"].where(rolled["d"] > 0), float)
