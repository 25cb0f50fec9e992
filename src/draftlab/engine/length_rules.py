"""Rules for where a drafted block ends, all from what a draft shows for nothing: its probabilities of the tokens that it proposes.

A rule scores each drafted token, and a block ends before the first one whose score is below a threshold. A new rule is a function here and a line in
``RULES``. docs/theory.md, section 13, says when a threshold on ``joint`` is the best that a rule can do.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float64
from scipy.optimize import minimize
from scipy.special import expit, log_expit, logit

from draftlab.engine.replay_lengths import Drafted, NextLength
from draftlab.errors import UserError, called
from draftlab.files.registries import find

Scores = Float64[np.ndarray, "positions depth"]
LengthRule = Callable[[Drafted, Drafted], Scores]
"""Scores from 0 to 1 of what was drafted (the second argument). The first is what the draft proposed along the stream, for rules that learn from it."""


def confident(stream: Drafted, drafted: Drafted) -> Scores:
    """The draft's probability of the token (``assistant_confidence_threshold`` of transformers; Kangaroo, arXiv 2404.18911)."""
    return drafted.confidence


def joint(stream: Drafted, drafted: Drafted) -> Scores:
    """The draft's probability of all tokens of the block up to this one (the value of a node in EAGLE-2, arXiv 2406.16858)."""
    return np.asarray(drafted.confidence.cumprod(1))


def entropy(stream: Drafted, drafted: Drafted) -> Scores:
    """exp(-H), where H is the entropy of the draft's distribution (AdaEDL, arXiv 2410.18351, and SVIP, arXiv 2411.18462, stop at a threshold of H)."""
    return np.asarray(np.exp(-drafted.entropy))


def margin(stream: Drafted, drafted: Drafted) -> Scores:
    """How much more probable the token is than the next one."""
    return drafted.margin


def fitted(stream: Drafted, drafted: Drafted) -> Scores:
    """The probability that all tokens of the block up to this one are accepted, by a logistic regression that learns from the stream.

    SpecDec++ (arXiv 2405.19715) stops at a threshold of this probability, and trains a head of the draft to predict it. The regression sees only what
    the other rules see, and whether the token was found in a text, not the tokens before it.
    """
    accepts = acceptance_model(stream)
    return np.asarray(accepts(drafted).cumprod(1))


RULES: dict[str, LengthRule] = {
    "confident": confident,
    "entropy": entropy,
    "margin": margin,
    "joint": joint,
    "fitted": fitted,
}


ROUNDING = 1e-5
"""By how much a score may leave the range: those in single precision do."""


def scores_of(rule: str, stream: Drafted, drafted: Drafted) -> Scores:
    """What a rule returns; ``UserError`` if that is not one score from 0 to 1 for each drafted token."""
    function = find(rule, RULES, ("stream", "drafted"))
    scores, shape = np.asarray(called(f"length rule {rule}", function, stream, drafted)), drafted.confidence.shape
    returned = f"shape {scores.shape}" if scores.shape != shape else ""
    if not returned and not ((scores >= -ROUNDING) & (scores <= 1 + ROUNDING)).all():  # NaN fails both
        returned = "nan" if np.isnan(scores).any() else f"scores from {scores.min():.6g} to {scores.max():.6g}"
    if returned:
        remedy = f"return a score from 0 to 1 for each drafted token: shape {shape}"
        raise UserError(f"length rule {rule} returned {returned}", remedy=remedy)
    return scores


def schedule(first: int, longest: int) -> NextLength:
    """Two tokens more after a block that was accepted whole, one fewer after any other (``num_assistant_tokens_schedule="heuristic"`` of transformers)."""
    length = first

    def choose(position: int, before: tuple[int, int] | None) -> int:
        nonlocal length
        if before is not None:
            drafted, accepted = before
            length = min(length + 2, longest) if accepted == drafted else max(length - 1, 1)
        return length

    return choose


def acceptance_model(stream: Drafted) -> Callable[[Drafted], Scores]:
    """Fit P(a drafted token is accepted | those before it in its block are) by logistic regression, with a ridge penalty of 1 on standardised features."""
    known = np.arange(stream.depth) < np.minimum(stream.accepted + 1, stream.left)[:, None]
    accepted = (stream.accepted[:, None] > np.arange(stream.depth))[known].astype(np.float64)
    features = _features(stream)[known]
    mean, scale = features.mean(0), features.std(0)
    scale[scale == 0] = 1.0  # a feature that never differs; its weight stays 0

    def loss(weights: Float64[np.ndarray, " features+1"]) -> tuple[float, Float64[np.ndarray, " features+1"]]:
        score = standard @ weights[1:] + weights[0]
        error = expit(score) - accepted
        value = -(log_expit(score) - (1 - accepted) * score).sum() + weights[1:] @ weights[1:] / 2
        return float(value), np.concatenate([[error.sum()], standard.T @ error + weights[1:]])

    standard = (features - mean) / scale
    weights = minimize(loss, np.zeros(features.shape[1] + 1), jac=True, method="L-BFGS-B").x
    return lambda drafted: np.asarray(expit((_features(drafted) - mean) / scale @ weights[1:] + weights[0]))


def _features(drafted: Drafted) -> Float64[np.ndarray, "positions depth features"]:
    """What is known of a drafted token before the target reads it."""
    sure = logit(drafted.confidence.clip(1e-6, 1 - 1e-6))
    return np.stack([sure, drafted.entropy, drafted.margin, drafted.found], -1).astype(np.float64)
