"""The acceptance of a draft that keeps learning, after more requests than it has seen.

``logit alpha(n) = a + b log(1 + n / SCALE)``: with each doubling of the requests learnt from, the odds of acceptance grow by about the same
factor. ``a`` and ``b`` are fitted to one stream, ``b`` near that of recorded streams. The interval covers the error of the fit and, growing with
the distance, how far recorded streams left their line. The constants were chosen on the streams of scale laptop; `benchmarks.forecasts` checks
them with slopes from other datasets, and on SmolLM2.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from scipy.optimize import least_squares

from draftlab.core.stats import ENOUGH
from draftlab.serving.verdict_format import Range

SCALE, SLOPE, SPREAD, DRIFT = 15.0, 0.48, 0.03, 0.13
"""Requests; the expected ``b`` and its spread; how far a stream leaves its line, in logits per unit of ``log(1 + n / SCALE)``."""
BINS = 8
LEAST = 2 * ENOUGH
"""The fewest requests for which a curve is fitted."""
MISFIT = 5.5
"""A mean squared error of the parts, in standard errors, above which a stream does not grow like the recorded ones."""
FURTHEST = 10
"""A forecast extends at most to this many times the requests seen."""
DOUBLING = 0.5
"""How far the next gain of the log-odds by a doubling lies from the mean one before it: the root mean square of the logarithm of their ratio.
`python -m benchmarks.forecasts` gives that of the published drafts that were distilled on fewer and more requests."""


@dataclass(frozen=True)
class Curve:
    """A fitted stream of ``seen`` requests: (a, b) and their covariance."""

    seen: int
    fitted: Float64[np.ndarray, 2]
    covariance: Float64[np.ndarray, "2 2"]

    def at(self, requests: float) -> Range:
        """The forecast acceptance after ``requests`` requests, and its 95 % interval."""
        place = np.array([1.0, np.log1p(requests / SCALE)])
        drift = DRIFT * max(place[1] - np.log1p(self.seen / SCALE), 0.0)
        margin = 1.96 * np.sqrt(place @ self.covariance @ place + drift**2)
        middle = float(self.fitted @ place)
        low, estimate, high = (float(1 / (1 + np.exp(-(middle + m)))) for m in (-margin, 0.0, margin))
        return Range(estimate=estimate, low=low, high=high)

    def enough(self, gain: float) -> float | None:
        """The number of requests after which twice as many add less than ``gain``; None if that is beyond the forecast."""
        tried = self.seen * np.geomspace(1, FURTHEST / 2, 100)
        return next((float(n) for n in tried if self.at(2 * n).estimate - self.at(n).estimate < gain), None)


def fit(
    accepted: Float64[np.ndarray, " rows"],
    visited: Float64[np.ndarray, " rows"],
    requests_of_row: int = 1,
    slope: float = SLOPE,
    spread: float = SPREAD,
) -> Curve | str:
    """The curve of a stream's requests in their order (or of sums of neighbouring ones), or the reason why there is none.

    ``b`` is expected to be ``slope``, give or take ``spread``; an infinite spread expects nothing.
    """
    seen = len(visited) * requests_of_row
    if seen < LEAST or not visited.sum() > 0:
        return f"{seen} requests are too few for a curve; {LEAST} are needed"
    places, alphas, errors = [], [], []
    for part in np.array_split(np.arange(len(visited)), min(BINS, len(visited) // 3)):
        total = max(float(visited[part].sum()), 1.0)
        alpha = float(accepted[part].sum()) / total
        places.append(np.log1p((part.mean() + 0.5) * requests_of_row / SCALE))
        alphas.append(alpha)
        errors.append(np.sqrt(((accepted[part] - alpha * visited[part]) ** 2).sum()) / total)
    x, y, error = np.array(places), np.array(alphas), np.maximum(errors, 0.005)

    def residuals(line: Float64[np.ndarray, 2]) -> Float64[np.ndarray, " bins"]:
        return np.append((1 / (1 + np.exp(-(line[0] + line[1] * x))) - y) / error, (line[1] - slope) / spread)

    solution = least_squares(residuals, [0.0, slope])
    if 2 * solution.cost / len(x) > MISFIT:
        return "acceptance does not grow here the way it did on recorded streams"
    jacobian = np.asarray(solution.jac)
    return Curve(seen, solution.x, np.linalg.inv(jacobian.T @ jacobian))


def twice(
    fewer: Float64[np.ndarray, " draws"], all_: Float64[np.ndarray, " draws"], doublings: float
) -> Float64[np.ndarray, " draws"]:
    """What twice the requests would add to acceptance, if the odds grow by the same factor as in each of the ``doublings`` from fewer to all.

    One draw for each draw of both acceptances, of which the first is the estimate.
    """
    before, now = (np.log(alpha / (1 - alpha)) for alpha in (np.clip(draws, 1e-6, 1 - 1e-6) for draws in (fewer, all_)))
    spread = np.exp(DOUBLING * np.random.default_rng(0).normal(size=len(now)))
    spread[0] = 1.0
    after = now + (now - before) / doublings * spread
    return np.asarray(1 / (1 + np.exp(-after)) - 1 / (1 + np.exp(-now)))
