"""Speculative decoding with all of its work, at an acceptance that is set instead of observed.

The target's greedy text is recorded first. Each block then draws its accepted length m from the distribution that acceptance alpha implies.
The draft decodes, but the proposal is the recorded text with a wrong token at position m. The target verifies it, but the schedule decides what
is accepted, so that tables at alpha = 0.5 ... 0.9 are measured at exactly these values (OSD, Tables 2, 7).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from draftlab.engine.loop import Timed, Verification, agreed, steps
from draftlab.errors import UserError
from draftlab.latency.loop import crop, resume
from draftlab.models.backend import LatencyBackend

UNTIMED = 2
"""Calls of a shape before one is timed. On a GPU, llama.cpp runs the first step by step, records a CUDA graph in the second (5 ms for
Vicuna-7B on an H100), and replays it from the third on."""


@dataclass(frozen=True)
class Measured:
    """Work and time of some blocks; ``disagreements`` counts blocks in which the target's choice differs from the schedule."""

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


def continue_text(target: LatencyBackend, prompt: Sequence[int], tokens: int) -> list[int]:
    """``prompt`` and the target's greedy continuation, which end-of-text tokens do not end."""
    resume(target, prompt[:-1])
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(target.greedy(text[-1:])[0]))
    return text


def plain_steps(target: LatencyBackend, text: Sequence[int], start: int, steps: int) -> float:
    """Seconds of ``steps`` plain decoding steps along ``text`` from ``start``, after as many that are not counted.

    The first steps after calls of another shape are slower: the engine changes its graph, and the weights return to the processor's caches.
    """
    clock, started = target.clock(), 0.0
    for _ in ("settle", "count"):
        resume(target, text[: start - 1])
        started = clock()
        for token in text[start - 1 : start - 1 + steps]:
            target.greedy([token])
    return clock() - started


def decode_scheduled(
    target: LatencyBackend,
    draft: LatencyBackend,
    text: Sequence[int],
    start: int,
    accepted: Iterable[int],
    draft_len: int,
) -> Measured:
    """Decode ``text`` from ``start`` in blocks that accept ``accepted`` tokens each; both caches must hold the text before it.

    The clock starts after ``UNTIMED`` calls of the shape in which the target verifies, so that the engine has its graph for it.

    Needs ``len(text) >= start + sum(accepted + 1) + draft_len``.
    """
    lengths, clock = [int(length) for length in accepted], target.clock()
    for _ in range(UNTIMED):
        target.greedy(text[start - 1 : start + draft_len])
        resume(target, text[: start - 1])
    pair = ScheduledPair(target, draft, text, start, iter(lengths), draft_len)
    timed, started = Timed(pair, clock), clock()
    blocks = sum(1 for _ in steps(timed, 1, sum(lengths) + len(lengths), ()))
    seconds = clock() - started
    draft_seconds, *others = np.diff(timed.laps).sum(0).tolist()
    return Measured(
        blocks=blocks,
        tokens=pair.position - start,
        draft_steps=draft_len * blocks,
        draft_seconds=draft_seconds,
        verify_seconds=sum(others),
        seconds=seconds,
        disagreements=pair.disagreements,
    )


@dataclass
class ScheduledPair:
    """The loop's verbs along a recorded ``text``: both models do all of their work, and ``lengths`` sets how much of each block is accepted."""

    target: LatencyBackend
    draft: LatencyBackend
    text: Sequence[int]
    position: int
    lengths: Iterator[int]
    draft_len: int
    accepted: int = 0
    disagreements: int = 0

    def propose(self, left: Sequence[int]) -> list[int]:
        self.accepted = next(self.lengths)
        proposal = list(self.text[self.position : self.position + self.draft_len])
        if self.accepted < self.draft_len:
            proposal[self.accepted] = (proposal[self.accepted] + 1) % self.target.vocab_size
        pending = self.text[len(self.draft.tokens) : self.position]
        for token in proposal:
            self.draft.guess(pending)
            pending = [token]
        return proposal

    def read(self, proposal: list[int]) -> Int[np.ndarray, " tokens"]:
        return self.target.greedy([self.text[self.position - 1], *proposal])

    def verify(self, proposal: list[int], reading: Int[np.ndarray, " tokens"]) -> Verification:
        self.disagreements += agreed(reading, proposal) != self.accepted
        return Verification([proposal], [0], [self.accepted], [self.text[self.position + self.accepted]])

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        self.position += self.accepted + 1
        crop((self.target, self.draft), self.position - 1)
