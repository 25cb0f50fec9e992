"""How many drafted tokens a request accepts: from one probability, or from histograms that engines record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float64, Int

from draftlab.core.stats import Interval, ratio
from draftlab.errors import UserError

LONGEST = 32
"""Acceptance is tabulated for blocks of up to so many drafted tokens."""
EXTRAPOLATED = "acceptance was recorded up to length {}, beyond it is extrapolated"


@dataclass(frozen=True)
class AcceptanceCurves:
    """``survival[i, j]``: how likely request class i accepts at least j + 1 drafted tokens; a request belongs to one class.

    ``tokens``: how much each class wrote, in any unit. ``requests``: how many it was measured on (0: not measured, or unknown). ``recorded``: up
    to how many drafted tokens it was measured (0: not at all); the rest is extrapolated.
    """

    survival: Float64[np.ndarray, "classes length"]
    tokens: Float64[np.ndarray, " classes"]
    requests: int = 0
    recorded: int = 0

    def classes(self, requests: int, rng: np.random.Generator) -> Int[np.ndarray, " requests"]:
        """A class for each request, in random order, as often as the class has ``tokens``.

        The lengths of requests are drawn apart from their classes. If class i comes with probability p_i, has length l_i and wrote t_i tokens,
        requests then take ``1 / sum(p_i / l_i)`` tokens per step, which is ``sum t_i / sum(t_i / l_i)``, as measured, for p_i in proportion to t_i.
        """
        upto = self.tokens.cumsum() / self.tokens.sum()
        evenly = (np.arange(requests) + rng.random()) / max(requests, 1)
        return rng.permutation(np.searchsorted(upto[:-1], evenly, side="right"))

    def draw(
        self, classes: Int[np.ndarray, " batch"], draft_len: int, rng: np.random.Generator
    ) -> Int[np.ndarray, " batch"]:
        """How many of ``draft_len`` tokens are accepted: ``P(at least j) = survival[:, j - 1]``, with one random number each."""
        chance = rng.random(len(classes))
        accepted: Int[np.ndarray, " batch"] = (chance < self._by_length[:draft_len].take(classes, axis=1)).sum(axis=0)
        return accepted

    @cached_property
    def _by_length(self) -> Float64[np.ndarray, "length classes"]:
        """``survival`` with a row for each length: a draw adds whole rows, which numpy does several times as fast as within short rows."""
        return np.ascontiguousarray(self.survival.T)

    def length(self, draft_len: int) -> float:
        """Tokens per step of the target, the target's token included: all tokens over all steps.

        A class that accepts less takes more steps for its tokens, so this is the harmonic mean of the lengths of the classes.

        >>> AcceptanceCurves(np.array([[1.0, 1.0], [0.0, 0.0]]), tokens=np.array([30.0, 30.0])).length(2)
        1.5
        """
        return float(self.tokens.sum() / self._steps(draft_len).sum())

    def interval(self, draft_len: int) -> Interval:
        """``length``, with its 95 % interval over recorded requests: NaN if there are none, or only their sum.

        >>> AcceptanceCurves(np.array([[0.5], [0.5]]), tokens=np.array([30.0, 60.0]), requests=2).interval(1)
        Interval(estimate=1.5, low=1.5, high=1.5, n=2, freedom=None)
        """
        found = ratio(self.tokens, self._steps(draft_len))
        return found if self.requests else replace(found, low=float("nan"), high=float("nan"), n=0)

    def marginals(self, draft_len: int) -> Float64[np.ndarray, " length"]:
        """How often a step accepts at least 1, 2, ... tokens; they add up to ``length - 1``."""
        steps = self._steps(draft_len)
        return np.asarray(steps @ self.survival[:, :draft_len] / steps.sum())

    def _steps(self, draft_len: int) -> Float64[np.ndarray, " classes"]:
        return np.asarray(self.tokens / (1 + self.survival[:, :draft_len].sum(axis=1)))


def from_alpha(alpha: float | Sequence[float]) -> AcceptanceCurves:
    """Each drafted token is accepted with probability ``alpha``: one for all requests, or one for each."""
    alphas = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    if not len(alphas) or not ((alphas >= 0) & (alphas <= 1)).all():
        raise UserError(f"alpha is {alpha}", remedy="give an acceptance between 0 and 1")
    return AcceptanceCurves(alphas[:, None] ** np.arange(1, LONGEST + 1), tokens=np.ones(len(alphas)))


def from_histograms(histograms: Sequence[Sequence[float]]) -> AcceptanceCurves:
    """From the numbers of steps that accepted 0, 1, 2, ... tokens: one histogram per request (or one for all).

    Beyond a histogram's last bucket nothing was drafted; the last conditional acceptance of all requests together is used there.
    """
    every = [np.asarray(counts, dtype=np.float64) for counts in histograms]
    for counts, steps in zip(histograms, every, strict=True):
        if steps.ndim != 1 or len(steps) < 2 or not np.isfinite(steps).all() or steps.min() < 0 or steps.sum() <= 0:
            raise UserError(
                f"a histogram of accepted lengths is {list(counts)}", remedy="give the steps that accepted 0, 1, 2, ..."
            )
    if not every:
        raise UserError("no histogram of accepted lengths", remedy="give at least one request")
    last = sum(steps[-1] for steps in every) / max(sum(steps[-2:].sum() for steps in every), 1e-12)
    rows = []
    for steps in every:
        at_least = steps[::-1].cumsum()[::-1] / steps.sum()
        beyond = at_least[-1] * last ** np.arange(1, LONGEST + 2 - len(steps))
        rows.append(np.concatenate([at_least[1:], beyond])[:LONGEST])
    tokens = [float(steps @ np.arange(1, len(steps) + 1)) for steps in every]
    return AcceptanceCurves(np.stack(rows), np.array(tokens), recorded=max(map(len, every)) - 1)


def alphas_of_blocks(
    blocks: Float64[np.ndarray, " requests"], tokens: Int[np.ndarray, " requests"], draft_len: int
) -> Float64[np.ndarray, " requests"]:
    """The alpha at which each answer of ``tokens`` tokens takes ``blocks`` blocks on average; an answer may end within its last block.

    A block emits j tokens with probability e_j, so n tokens take ``B(n) = 1 + sum over j of e_j B(n - j)`` blocks. B falls with alpha, and is inverted
    between neighbouring alphas of a grid. One token takes one block at every alpha; 0 is returned.

    >>> alphas_of_blocks(np.array([2.0, 6.0]), np.array([6, 6]), draft_len=4)
    array([1., 0.])
    """
    alphas = np.linspace(0, 1, 1001)
    powers = alphas ** np.arange(draft_len + 1)[:, None]
    emits = powers - np.pad(powers[1:], ((0, 1), (0, 0)))
    expected = np.zeros((int(tokens.max(initial=0)) + 1, len(alphas)))
    for n in range(1, len(expected)):
        known = expected[max(n - draft_len - 1, 0) : n][::-1]
        expected[n] = 1 + (emits[: len(known)] * known).sum(axis=0)
    pairs = zip(blocks, tokens, strict=True)
    return np.array([np.interp(count, expected[n, ::-1], alphas[::-1]) for count, n in pairs])
