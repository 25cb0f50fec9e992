"""Ratios as summed numerators over summed denominators, with intervals from a bootstrap over requests.

Tokens of one request are not independent, so the bootstrap resamples whole requests, never tokens.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftlab.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

RESAMPLES = 2000
CONFIDENCE = 0.95
ENOUGH = 30
"""With fewer requests nothing is called better or worse: their spread leaves every answer open."""


@dataclass(frozen=True)
class Interval:
    """An estimate, its bootstrap interval (95 %) and its number of requests ``n``.

    ``freedom`` is the degrees of freedom of the standard error if they are not ``n - 1``: a difference between two sets of requests.
    """

    estimate: float
    low: float
    high: float
    n: int
    freedom: float | None = None


def _interval(columns: Sequence[ArrayLike], statistic: Callable[[Any], Any], seed: int = 0) -> Interval:
    """The ``statistic`` of the sums over requests, with the percentile interval over resampled requests, widened for few (``quantile``).

    Requests are sorted by their numbers first, so that the order of a table's rows changes nothing.
    """
    each = [np.asarray(values, float) for values in columns]
    if len({values.shape for values in each} | {(each[0].size,)}) > 1:
        what = f"numbers of different requests: shapes {[values.shape for values in each]}"
        raise UserError(what, remedy="give one number for each request, in the same order, as lists of one length")
    samples = np.array(each)
    samples = samples[:, np.lexsort(samples[::-1])]
    return _bootstrap(statistic, seed, *(values.tobytes() for values in samples))


@functools.cache  # a figure, its table and its finding need the same interval
def _bootstrap(statistic: Callable[[Any], Any], seed: int, *columns: bytes) -> Interval:
    samples = np.array([np.frombuffer(values) for values in columns])
    n = samples.shape[1]

    def of_sums(*drawn: NDArray[np.float64], axis: int = -1) -> Any:
        return statistic([values.sum(axis) for values in drawn])

    with np.errstate(invalid="ignore", divide="ignore"):
        estimate = float(of_sums(*samples))
        if n < 2 or not np.isfinite(estimate):
            return Interval(estimate, float("nan"), float("nan"), n)
        # Loading this takes half a second, which exact figures do not need.
        from scipy.stats import DegenerateDataWarning, bootstrap

        with warnings.catch_warnings(action="ignore", category=DegenerateDataWarning):
            drawn = bootstrap(
                tuple(samples),
                of_sums,
                paired=True,
                vectorized=True,
                n_resamples=RESAMPLES,
                batch=max(1, 60_000 // n),  # fits into the processor's cache
                method="percentile",
                rng=np.random.default_rng(seed),
            ).bootstrap_distribution
    # scipy's interval is NaN if the denominator of a single resample is 0; leave out that resample.
    low, high = np.nanquantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return stretch(Interval(estimate, float(low), float(high), n), quantile(1, n - 1) / quantile(1))


def stretch(interval: Interval, by: float) -> Interval:
    """Lengthen both halves of an interval.

    **Arguments:**
    - `interval`: the interval.
    - `by`: the factor of each half.

    **Returns:** the interval of the same estimate.

    >>> stretch(Interval(1.0, 0.5, 2.0, n=3), 2.0)
    Interval(estimate=1.0, low=0.0, high=3.0, n=3, freedom=None)
    """
    middle = interval.estimate
    low, high = middle - (middle - interval.low) * by, middle + (interval.high - middle) * by
    return replace(interval, low=low, high=high)


def quantile(comparisons: int, degrees: float = 0) -> float:
    """How many bootstrap standard errors a 95 % interval extends to each side.

    It is Student's quantile, because the bootstrap alone is too narrow for few units (`python -m benchmarks.coverage`). The bootstrap divides
    by ``n`` where ``n - 1`` is right, hence the root.

    **Arguments:**
    - `comparisons`: how many intervals are to hold together (Bonferroni).
    - `degrees`: degrees of freedom, requests less one; 0: as for many requests.

    **Returns:** the quantile.

    >>> round(quantile(1), 2), round(quantile(1, 9), 2)
    (1.96, 2.38)
    """
    level = 1 - (1 - CONFIDENCE) / (2 * comparisons)
    if degrees <= 0:
        return NormalDist().inv_cdf(level)
    from scipy.special import stdtrit  # slow to load

    return math.sqrt(1 + 1 / degrees) * float(stdtrit(degrees, level))


def _quotient(sums: Any) -> Any:
    return _over(sums[0], sums[1])


def _difference(sums: Any) -> Any:
    return _over(sums[0], sums[1]) - _over(sums[2], sums[3])


def _percent(sums: Any) -> Any:
    return 100 * _over(_over(sums[0], sums[1]), _over(sums[2], sums[3]))


def _over(numerator: Any, denominator: Any) -> Any:
    return numerator / np.where(denominator > 0, denominator, np.nan)


def ratio(numerator: ArrayLike, denominator: ArrayLike, *, seed: int = 0) -> Interval:
    """``sum(numerator) / sum(denominator)`` over requests; NaN without a positive denominator.

    **Arguments:**
    - `numerator`, `denominator`: one number for each request.
    - `seed`: seed of the bootstrap.

    **Returns:** the ratio, its interval, and the number of requests. Where no number is negative, the interval ends at 0; that of a share of counts
    (whole numbers, no numerator above its denominator) ends at 1.

    >>> acceptance = ratio([1, 2, 3], [2, 4, 6])
    >>> acceptance.estimate, acceptance.n
    (0.5, 3)
    """
    interval = _interval((numerator, denominator), _quotient, seed)
    above, below = np.asarray(numerator, float), np.asarray(denominator, float)
    if np.any(above < 0) or np.any(below < 0):
        return interval
    # Times may exceed each other.
    is_share = np.all(above <= below) and np.all(above % 1 == 0) and np.all(below % 1 == 0)
    highest = 1.0 if is_share else np.inf
    return replace(interval, low=float(np.maximum(interval.low, 0)), high=float(np.minimum(interval.high, highest)))


def ratio_difference(
    numerator: ArrayLike,
    denominator: ArrayLike,
    baseline_numerator: ArrayLike,
    baseline_denominator: ArrayLike,
) -> Interval:
    """Difference of two ratios over the same requests (paired). If its interval excludes 0, the ratios differ at 95 %.

    **Arguments:**
    - `numerator`, `denominator`: one number for each request.
    - `baseline_numerator`, `baseline_denominator`: the same requests in the same order.

    **Returns:** the ratio minus the baseline's, with its interval.

    >>> ratio_difference([3, 3], [4, 4], [1, 1], [4, 4]).estimate
    0.5
    """
    return _interval((numerator, denominator, baseline_numerator, baseline_denominator), _difference)


def percent_of(one: tuple[ArrayLike, ArrayLike], other: tuple[ArrayLike, ArrayLike]) -> Interval:
    """The ratio of ``one`` (numerator, denominator) as a percentage of that of ``other``, over the same requests (paired).

    **Arguments:**
    - `one`, `other`: numerators and denominators, one number for each request, in the same order.

    **Returns:** the percentage, with its interval.

    >>> percent_of(([1, 1], [2, 2]), ([1, 1], [4, 4])).estimate
    200.0
    """
    return _interval((*one, *other), _percent)


def ratio_table(
    frame: pd.DataFrame,
    numerator: str,
    denominator: str,
    by: Sequence[str],
    *,
    request: str = "request_id",
) -> pd.DataFrame:
    """The ratio of two columns in each group of ``by``; the rows of one request (its seeds) are resampled together.

    **Arguments:**
    - `frame`: one row for each observation.
    - `numerator`, `denominator`: names of two of its columns.
    - `by`: columns that identify a group.
    - `request`: column that identifies a request.

    **Returns:** a table with the columns of `by`, and `estimate`, `ci_low`, `ci_high`, `n`.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"draft": ["a", "a"], "request_id": [0, 1], "hits": [1, 2], "tries": [4, 4]})
    >>> ratio_table(rows, "hits", "tries", ["draft"])[["draft", "estimate", "n"]].to_dict("records")
    [{'draft': 'a', 'estimate': 0.375, 'n': 2}]
    """
    import pandas as pd

    rows = []
    for key, group in frame.groupby(list(by), sort=False, dropna=False):  # an axis may be empty in some rows
        known = group.dropna(subset=[numerator, denominator])  # a row without a value counts nowhere
        sums = known.groupby(request, sort=False)[[numerator, denominator]].sum()
        sums = sums[sums.any(axis=1)]  # nor does a request of 0 / 0, which would make few requests look like many
        of_group = ratio(sums[numerator], sums[denominator])
        values = {"estimate": of_group.estimate, "ci_low": of_group.low, "ci_high": of_group.high, "n": of_group.n}
        rows.append(dict(zip(by, key, strict=True)) | values)
    return pd.DataFrame(rows, columns=[*by, "estimate", "ci_low", "ci_high", "n"])


def moving_ratio(numerator: ArrayLike, denominator: ArrayLike, window: int) -> NDArray[np.float64]:
    """At each entry, the ratio over the last ``window`` entries, or over fewer at the start.

    **Arguments:**
    - `numerator`, `denominator`: one number for each entry, in order.
    - `window`: number of entries.

    **Returns:** a ratio at each entry; NaN without a positive denominator.

    >>> moving_ratio([1, 0, 1, 1], [1, 1, 1, 1], window=2)
    array([1. , 0.5, 0.5, 1. ])
    """
    import pandas as pd

    sums = pd.DataFrame({"n": np.asarray(numerator, float), "d": np.asarray(denominator, float)})
    rolled = sums.rolling(window, min_periods=1).sum()
    return np.asarray(rolled["n"] / rolled["d"].where(rolled["d"] > 0), float)
