"""How often a 95 % interval over few requests contains the truth, alone and widened by Student's quantile: python -m benchmarks.coverage

The requests are made: lengths are log-normal, each request has an acceptance of its own, and alpha is accepted over visited tokens.
"""

from __future__ import annotations

import numpy as np
import tyro

from benchmarks import markdown_table
from draftlab.core import stats
from draftlab.progress import progress

ALPHA = 0.7
SPREAD = 8.0
"""The acceptance of a request has a Beta distribution with this sum of its two parameters: a standard deviation of 0.15."""
LENGTH = 40
"""The median of visited tokens."""


def requests(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Accepted and visited tokens of some requests."""
    visited = np.ceil(LENGTH * rng.lognormal(0, 0.8, count)).astype(int)
    return rng.binomial(visited, rng.beta(SPREAD * ALPHA, SPREAD * (1 - ALPHA), count)), visited


def coverage(count: int, samples: int) -> tuple[float, float]:
    """The shares of samples of ``count`` requests whose interval contains alpha: as the bootstrap gives it, and as tables show it."""
    rng = np.random.default_rng(count)
    narrow = stats.quantile(1) / stats.quantile(1, count - 1)
    hits = np.zeros(2)
    for _ in progress(range(samples), f"{count} requests"):
        shown = stats.ratio(*requests(count, rng))
        hits += [one.low <= ALPHA <= one.high for one in (stats.stretch(shown, narrow), shown)]
    alone, widened = hits / samples
    return alone, widened


def main(counts: tuple[int, ...] = (3, 5, 10, 20, 30, 100), samples: int = 2000) -> None:
    """Print a row for each number of requests."""
    rows = [[str(count), *(f"{share:.0%}" for share in coverage(count, samples))] for count in counts]
    print(markdown_table(["requests", "bootstrap alone", "widened"], rows), end="")


if __name__ == "__main__":
    tyro.cli(main)
