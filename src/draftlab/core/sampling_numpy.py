"""Sampling without torch, for processes that measure llama.cpp and do not load it: ``core.sampling`` in numpy, and the settings of both."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Float64

from draftlab.errors import UserError

FIRST_SORT = 1024
"""Top-p first sorts this many tokens (a sixteenth of a small vocabulary), and four times as many again while their mass is too small."""
WHOLE_SORT = 4096
"""Vocabularies up to this size are sorted whole."""
NUCLEUS_ROUNDING = 1e-12
"""The part of ``top_p`` that may be missing from the mass of a nucleus, and of ``min_p`` from a token, because of rounding."""

Probs = Float64[np.ndarray, " vocab"]


@dataclass(frozen=True)
class Sampling:
    """How logits become probabilities, in this order: ``temperature`` (0 is greedy), the ``top_k`` largest, the ``top_p`` nucleus, and
    the tokens at least ``min_p`` times as probable as the most probable one (Nguyen et al. 2025).

    A verifier needs exactly the draft probabilities from which the tokens were drawn. The filtered target counts as the target.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature is {self.temperature}", remedy="give 0 (greedy) or more")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k is {self.top_k}", remedy="keep at least 1 token, or leave top_k out")
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p is {self.top_p}", remedy="give more than 0 and at most 1")
        if not 0 <= self.min_p <= 1:
            raise UserError(f"min_p is {self.min_p}", remedy="give 0 (every token) to 1 (the most probable alone)")

    @property
    def cuts(self) -> bool:
        """Whether tokens are left out that the model may write."""
        return self.top_k is not None or self.top_p < 1 or self.min_p > 0


GREEDY = Sampling(temperature=0.0)


def to_probs(logits: Float32[np.ndarray, "*batch vocab"], sampling: Sampling) -> Float64[np.ndarray, "*batch vocab"]:
    """``core.sampling.to_probs`` in numpy, above temperature 0: softmax at a temperature, then top-k, top-p and min-p, renormalised.

    **Arguments:**
    - `logits`: the scores of the next token, shape `(*batch, vocab)`
    - `sampling`: the temperature and the filters

    **Returns:** probabilities in float64, of the same shape. **Raises:** ``UserError`` for NaN or +inf logits.

    >>> to_probs(np.float32([0, 0, -1]), Sampling(temperature=0.5, top_k=2)).tolist()
    [0.5, 0.5, 0.0]
    """
    wide = np.asarray(logits, dtype=np.float64)
    highest = wide.max(axis=-1, keepdims=True)
    if not np.isfinite(highest).all():
        raise UserError("logits hold NaN, +inf or no finite value", remedy="check the model and its weights")
    with np.errstate(over="ignore"):  # at a tiny temperature all but the largest become -inf
        probs = _normalised(np.exp((wide - highest) / sampling.temperature))
    if sampling.top_k is not None or sampling.top_p < 1:
        probs = _truncate(probs, min(sampling.top_k or probs.shape[-1], probs.shape[-1]), sampling.top_p)
    if sampling.min_p:
        least = sampling.min_p * (1 - NUCLEUS_ROUNDING) * probs.max(-1, keepdims=True)
        probs = _normalised(np.where(probs >= least, probs, 0.0))
    return probs


def _truncate(
    probs: Float64[np.ndarray, "*batch vocab"], top_k: int, top_p: float
) -> Float64[np.ndarray, "*batch vocab"]:
    vocab = probs.shape[-1]
    count = most_to_sort(top_k, vocab)
    while True:
        ids = np.argpartition(-probs, count - 1, axis=-1)[..., :count]
        ids = np.take_along_axis(ids, np.argsort(-np.take_along_axis(probs, ids, -1), axis=-1), -1)
        values = np.take_along_axis(probs, ids, -1)
        if top_k < vocab:
            values = _normalised(values)
        mass = values.cumsum(-1)
        if count >= top_k or (mass[..., -1] >= top_p * (1 - NUCLEUS_ROUNDING)).all():
            break
        count = min(4 * count, vocab)
    kept = values * ((mass - values < top_p * (1 - NUCLEUS_ROUNDING)) if top_p < 1 else 1.0)
    found = np.zeros_like(probs)
    np.put_along_axis(found, ids, _normalised(kept), -1)
    return found


def _normalised(weights: Float64[np.ndarray, "*batch vocab"]) -> Float64[np.ndarray, "*batch vocab"]:
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def most_to_sort(top_k: int, vocab: int) -> int:
    """How many of the most probable tokens a filter sorts at first: as many as it keeps at most, or fewer of a large vocabulary.

    **Arguments:**
    - `top_k`: the tokens that the filter keeps at most; ``vocab`` where only ``top_p`` cuts
    - `vocab`: the size of the vocabulary

    **Returns:** the number of tokens, 1 to ``vocab``.

    >>> most_to_sort(50, 32_000), most_to_sort(32_000, 32_000), most_to_sort(500, 500)
    (50, 1024, 500)
    """
    return top_k if top_k < vocab else vocab if vocab <= WHOLE_SORT else min(FIRST_SORT, -(-vocab // 16))


def draw(weights: Probs, rng: np.random.Generator) -> int:
    """A token, with probability proportional to its weight; a weight of 0 is never drawn.

    **Arguments:**
    - `weights`: numbers of 0 or more, of which one is positive
    - `rng`: the source of the draw

    **Returns:** the token's id.

    >>> draw(np.array([0.0, 3.0, 0.0]), np.random.default_rng(0))
    1
    """
    cumulative = weights.cumsum()
    index = int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))
    return min(index, int(np.flatnonzero(weights)[-1]))
