"""Suffix decoding along recorded answers (``models.suffixes``): what it drafts from every position, alone or before a draft model."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from draftlab.engine.answers import Answer
from draftlab.engine.loop import agreed
from draftlab.engine.recording import TargetPass
from draftlab.engine.replay_lengths import SHOWN, Drafted
from draftlab.models.suffixes import Memory, Suffixes

BETWEEN = 16 * 2**20
"""Bytes that are read between two timed searches. A step of the target reads its weights, and drives the memory out of the processor's caches."""
EVERY = 8
"""Every so many positions a search is timed."""


def continue_everywhere(recorded: TargetPass, remembered: Sequence[Answer], depth: int, least: float = 0.0) -> Drafted:
    """Draft up to ``depth`` tokens, together at least as probable as ``least``, at every position of every answer.

    They come from the answer's own text and the ``remembered`` answers other than itself.

    Where it drafts nothing, as where a draft knows nothing, all tokens are equally probable. The answers may be sampled: a token that was not drawn
    is accepted with the target's probability of it, which is how often the text goes on with it.
    """
    return continue_within(recorded, remembered, [(depth, least)])[0]


def continue_within(
    recorded: TargetPass, remembered: Sequence[Answer], limits: Sequence[tuple[int, float]]
) -> list[Drafted]:
    """``continue_everywhere`` for each pair of a ``depth`` and a ``least``, with one search at each position."""
    memory = Memory(answer.answer_ids for answer in remembered)
    numbers = {id(answer): number for number, answer in enumerate(remembered)}
    drafted = [_nothing(recorded, depth) for depth, _ in limits]
    at = 0
    for answer in recorded.answers:
        text = Suffixes(answer.prompt_ids, memory, without=numbers.get(id(answer)))
        for place, token in enumerate(answer.answer_ids):
            for own, path in zip(drafted, text.paths(limits), strict=True):
                own.accepted[at] = agreed(path.tokens, answer.answer_ids[place:])
                for step, times in enumerate(path.counts):
                    own.confidence[at, step], own.margin[at, step], own.entropy[at, step] = _certainty(tuple(times))
                    own.found[at, step] = True
            text.append(token)
            at += 1
    return drafted


@functools.lru_cache(2**16)
def _certainty(times: tuple[int, ...]) -> tuple[float, float, float]:
    """The share of the most frequent token, how much more frequent it is than the next one, and the entropy of the shares."""
    shares = np.array(times) / sum(times)
    return shares[0], shares[0] - shares[1:2].sum(), -(shares * np.log(shares)).sum()


def _nothing(recorded: TargetPass, depth: int) -> Drafted:
    """Nothing drafted at any position."""
    shape, vocab = (sum(recorded.lengths), depth), recorded.vocab_size
    even, spread = np.full(shape, 1 / vocab), np.full(shape, np.log(vocab))
    return Drafted(
        recorded.lengths, np.zeros(shape[0], np.int64), even, spread, np.zeros(shape), np.zeros(shape, dtype=bool)
    )


def search_seconds(recorded: TargetPass, remembered: Sequence[Answer], longest: int) -> float:
    """The CPU seconds in which a server finds the tokens of a block, on average, with caches as cold as after a step of the target."""
    memory, weights = Memory(answer.answer_ids for answer in remembered), np.ones(BETWEEN // 8)
    seconds = []
    for answer in recorded.answers:
        text = Suffixes(answer.prompt_ids, memory)
        for place, token in enumerate(answer.answer_ids):
            if place % EVERY == 0:
                weights.sum()
                begin = time.process_time()
                text.path(longest)
                seconds.append(time.process_time() - begin)
            text.append(token)
    return float(np.mean(seconds))


def first_or_else(first: Drafted, other: Drafted, takes_first: Bool[np.ndarray, " positions"]) -> Drafted:
    """The blocks of ``first`` at the positions that take them, which end with what was found, and those of ``other`` elsewhere."""
    shown = {name: np.where(takes_first[:, None], getattr(first, name), getattr(other, name)) for name in SHOWN}
    accepted = np.where(takes_first, first.accepted, other.accepted)
    most = np.where(takes_first, first.without_model(), other.depth)
    return Drafted(first.lengths, accepted, **shown, most=most)
