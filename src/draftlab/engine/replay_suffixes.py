"""Suffix decoding along recorded answers (``models.suffixes``): what it drafts from every position, alone or before a draft model."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from draftlab.engine.answers import Answer
from draftlab.engine.recording import TargetPass
from draftlab.engine.replay_lengths import Drafted
from draftlab.models.suffixes import LEAST, Memory, Suffixes

BETWEEN = 16 * 2**20
"""Bytes that are read between two timed searches. A step of the target reads its weights, and drives the memory out of the processor's caches."""
EVERY = 8
"""Every so many positions a search is timed."""


def continue_everywhere(
    recorded: TargetPass, remembered: Sequence[Answer], depth: int, least: float = LEAST
) -> Drafted:
    """Draft up to ``depth`` tokens, together at least as probable as ``least``, at every position of every answer.

    They come from the answer's own text and the ``remembered`` answers other than itself.

    Where it drafts nothing, as where a draft knows nothing, all tokens are equally probable. The answers may be sampled: a token that was not drawn
    is accepted with the target's probability of it, which is how often the text goes on with it.
    """
    memory = Memory(answer.answer_ids for answer in remembered)
    numbers = {id(answer): number for number, answer in enumerate(remembered)}
    positions, vocab = sum(recorded.lengths), recorded.vocab_size
    accepted = np.zeros(positions, dtype=np.int64)
    confidence, spread = np.full((positions, depth), 1 / vocab), np.full((positions, depth), np.log(vocab))
    margin, found = np.zeros((positions, depth)), np.zeros((positions, depth), dtype=bool)
    at = 0
    for answer in recorded.answers:
        text = Suffixes(answer.prompt_ids, memory, without=numbers.get(id(answer)))
        for place, token in enumerate(answer.answer_ids):
            tokens, counts = text.path(depth, least)
            left = answer.answer_ids[place:]
            agrees = [a == b for a, b in zip(tokens, left, strict=False)]
            accepted[at] = [*agrees, False].index(False)
            for step, times in enumerate(counts):
                shares = np.array(times) / sum(times)
                confidence[at, step], margin[at, step] = shares[0], shares[0] - shares[1:2].sum()
                spread[at, step], found[at, step] = -(shares * np.log(shares)).sum(), True
            text.append(token)
            at += 1
    return Drafted(recorded.lengths, accepted, confidence, spread, margin, found)


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
    """The blocks of ``first`` at the positions that take them, and those of ``other`` elsewhere."""
    table = takes_first[:, None]
    return Drafted(
        first.lengths,
        np.where(takes_first, first.accepted, other.accepted),
        np.where(table, first.confidence, other.confidence),
        np.where(table, first.entropy, other.entropy),
        np.where(table, first.margin, other.margin),
        np.where(table, first.found, other.found),
    )
