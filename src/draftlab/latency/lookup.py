"""Prompt lookup as a ``LatencyBackend``: ``models.lookup`` without torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from draftlab.latency.loop import crop, unread
from draftlab.models.backend import LatencyBackend, Logits
from draftlab.models.ngrams import NGRAM, Ngrams

SURE = 0.5
"""A threshold between the confidence of a guess (1) and that of no guess (1 / vocabulary size)."""


class LookupBackend:
    """Prompt lookup over the vocabulary of ``model``; if ``joined``, the model predicts where lookup has no guess.

    The model runs only then, and reads the tokens that it missed before.
    """

    def __init__(self, model: LatencyBackend, *, joined: bool = False) -> None:
        self.inner = model if joined else None
        self.decoder_start, self.vocab_size, self.ends = model.decoder_start, model.vocab_size, model.ends
        self.context_length, self.vocabulary, self._clock = model.context_length, model.vocabulary, model.clock
        self.steps = 0  # calls in which the joined model drafted a token
        self._forget()

    def _forget(self) -> None:
        self.text = Ngrams()
        self.tokens = self.text.tokens

    def encode(self, prompt: Sequence[int]) -> None:
        self._forget()
        if self.inner:
            self.inner.encode(prompt)

    def prefill(self, tokens: Sequence[int]) -> Float32[np.ndarray, " vocab"]:
        for token in tokens:
            self.text.append(token)
        return np.zeros(self.vocab_size, dtype=np.float32)

    def extend(self, tokens: Sequence[int]) -> Logits:
        """A draft draws from the last row alone: where that is a guess, the joined model does not run, and rows without a guess are NaN."""
        guesses = [self.text.append(token) for token in tokens]
        rows = np.full((len(tokens), self.vocab_size), np.nan if self.inner else 0.0, dtype=np.float32)
        if self.inner and guesses[-1] is None:
            rows[:] = self.inner.extend(self._unread(len(tokens)))[-len(tokens) :]
        for row, guess in zip(rows, guesses, strict=True):
            if guess is not None:
                row[:] = -np.inf
                row[guess] = 0.0
        return rows

    def greedy(self, tokens: Sequence[int]) -> Int[np.ndarray, " tokens"]:
        return np.array([self.guess([token]) for token in tokens])

    def guess(self, tokens: Sequence[int], min_prob: float = 0.0) -> int | None:
        guesses = [self.text.append(token) for token in tokens]
        if guesses[-1] is not None:
            return guesses[-1]
        if self.inner is None:
            return None if min_prob else 0
        return self.inner.guess(self._unread(1), min_prob)

    def guesses(self, tokens: Sequence[int], count: int, min_prob: float = 0.0) -> list[int]:
        """Refused: a lookup reads no tokens that are not known yet."""
        raise NotImplementedError("a lookup guesses one token at a time")

    def _unread(self, last: int) -> Sequence[int]:
        """What the joined model reads in its next step: all that it missed, or the ``last`` tokens if that is too much for one call."""
        assert self.inner
        self.steps += 1
        return unread(self.inner, self.tokens, last)

    def trim(self, length: int) -> None:
        if self.inner and self.inner.tokens == self.tokens[: len(self.inner.tokens)]:
            crop([self.inner], length)  # otherwise the text is another contender's, and `resume` compares it
        self.text.trim(length)

    def fill(self, sequences: int, context: int) -> None:
        self._forget()

    def probe(self, tokens: int) -> None:
        """Do nothing: the loop measures the time of the lookup."""

    def clock(self) -> Callable[[], float]:
        return self._clock()

    def describe(self) -> dict[str, Any]:
        return {"engine": "lookup", "ngram": NGRAM, "joined": self.inner is not None}

    def close(self) -> None:
        """Do nothing: whoever opened the model closes it."""
