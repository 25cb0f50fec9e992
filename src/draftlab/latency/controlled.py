"""Speculative decoding at an acceptance that is set, not observed, with all of its real work.

The target's own continuation is recorded first. Each block then draws its accepted length m from the distribution that acceptance
alpha implies; the draft really decodes, but what it proposes is the recorded text with a wrong token at position m; the target
really verifies. The schedule decides, so that tables at alpha = 0.5 ... 0.9 are measured at exactly those (OSD, Tables 2, 7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from draftlab.errors import UserError
from draftlab.latency.loop import resume
from draftlab.models.backend import LatencyBackend


@dataclass(frozen=True)
class Replay:
    """Work and time of some blocks; ``disagreements`` counts blocks that the target's own choice would end elsewhere."""

    blocks: int
    tokens: int
    draft_steps: int
    draft_seconds: float
    verify_seconds: float
    seconds: float
    disagreements: int


def schedule(alpha: float, draft_len: int, blocks: int, rng: np.random.Generator) -> Int[np.ndarray, " blocks"]:
    """Accepted lengths with ``P(m) = alpha^m (1 - alpha)`` for ``m < k`` and ``P(k) = alpha^k``, stratified over ``blocks``."""
    if not 0 <= alpha < 1:
        raise UserError(f"alpha is {alpha}", remedy="give an acceptance of at least 0 and under 1")
    quantiles = (rng.permutation(blocks) + rng.random(blocks)) / blocks
    at_least = alpha ** np.arange(1, draft_len + 1)
    return np.asarray((1 - quantiles[:, None] < at_least).sum(axis=1))


def record(target: LatencyBackend, prompt: Sequence[int], tokens: int) -> list[int]:
    """``prompt`` and the target's greedy continuation, past any end-of-text token: timing needs length, not sense."""
    resume(target, prompt[:-1])
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(target.greedy(text[-1:])[0]))
    return text


def plain_steps(target: LatencyBackend, text: Sequence[int], start: int, steps: int) -> float:
    """Seconds of ``steps`` plain decoding steps along ``text`` from ``start``."""
    clock = target.clock()
    resume(target, text[: start - 1])
    started = clock()
    for token in text[start - 1 : start - 1 + steps]:
        target.greedy([token])
    return clock() - started


def replay(
    target: LatencyBackend,
    draft: LatencyBackend,
    text: Sequence[int],
    start: int,
    accepted: Iterable[int],
    draft_len: int,
) -> Replay:
    """Decode ``text`` from ``start`` in blocks that accept ``accepted`` tokens each; both caches must hold the start.

    Needs ``len(text) >= start + sum(accepted + 1) + draft_len``.
    """
    clock, kept_tokens = target.clock(), [int(kept) for kept in accepted]
    draft_seconds = verify_seconds = 0.0
    disagreements, position = 0, start
    begun = clock()
    for kept in kept_tokens:
        proposal = list(text[position : position + draft_len])
        if kept < draft_len:
            proposal[kept] = (proposal[kept] + 1) % target.vocab_size
        before = clock()
        pending = text[len(draft.tokens) : position]
        for token in proposal:
            draft.greedy(pending)
            pending = [token]
        middle = clock()
        choice = target.greedy([text[position - 1], *proposal])
        own = next((i for i, token in enumerate(proposal) if token != choice[i]), draft_len)
        disagreements += int(own != kept)
        position += kept + 1
        target.trim(position - 1)
        draft.trim(min(len(draft.tokens), position - 1))
        after = clock()
        draft_seconds += middle - before
        verify_seconds += after - middle
    return Replay(
        blocks=len(kept_tokens),
        tokens=position - start,
        draft_steps=draft_len * len(kept_tokens),
        draft_seconds=draft_seconds,
        verify_seconds=verify_seconds,
        seconds=clock() - begun,
        disagreements=disagreements,
    )
