"""Ratios as summed numerators over summed denominators, with intervals from a bootstrap over requests.

Tokens of one request are not independent, so whole requests are drawn again, never tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def _ratio(numerator: NDArray[np.float64], denominator: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(numerator.sum(axis) / denominator.sum(axis))


def _difference(
    n1: NDArray[np.float64],
    d1: NDArray[np.float64],
    n0: NDArray[np.float64],
    d0: NDArray[np.float64],
    axis: int = -1,
) -> NDArray[np.float64]:
    return _ratio(n1, d1, axis) - _ratio(n0, d0, axis)


def _interval(samples: tuple[NDArray[np.float64], ...], statistic, seed: int) -> Interval:  # type: ignore[no-untyped-def]
    n = len(samples[0])
    estimate = float(statistic(*samples)) if n else float("nan")
    if n < 2 or not np.isfinite(estimate):
        return Interval(estimate, float("nan"), float("nan"), n)
    from scipy.stats import bootstrap  # half a second to load: exact figures do without

    result = bootstrap(
        samples,
        statistic,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        batch=max(1, 2_000_000 // n),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return Interval(estimate, float(result.confidence_interval.low), float(result.confidence_interval.high), n)


def ratio(numerator: ArrayLike, denominator: ArrayLike, *, seed: int = 0) -> Interval:
    """``sum(numerator) / sum(denominator)``, one entry per request; NaN without a positive denominator."""
    return _interval((np.asarray(numerator, float), np.asarray(denominator, float)), _ratio, seed)


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
    return _interval(tuple(np.asarray(x, float) for x in samples), _difference, seed)


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
