"""Prompt lookup as a ``LatencyBackend``: ``models.lookup`` without torch. If it is joined to a model, the model runs only where it must."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from draftlab.latency.loop import resume
from draftlab.models.backend import LatencyBackend, Logits
from draftlab.models.ngrams import NGRAM, Ngrams

SURE = 0.5
"""The confidence below which lookup alone drafts nothing: it is 1 where something is found, else one over the vocabulary."""


class Lookup:
    """Guesses of the tokens that followed earlier, and those of ``model`` elsewhere if it is ``joined``; else ``model`` says the vocabulary.

    The model has read what it was asked about, no more: a block that lookup drafts alone costs it nothing but the next catch-up.
    """

    def __init__(self, model: LatencyBackend, *, joined: bool = False, ngram: int = NGRAM) -> None:
        self.inner, self.ngram = (model if joined else None), ngram
        self.decoder_start, self.vocab_size, self.eos = model.decoder_start, model.vocab_size, model.eos
        self.context_length, self.vocabulary, self._clock = model.context_length, model.vocabulary, model.clock
        self.steps = 0  # calls of the model that it is joined to, for a token to draft
        self._forget()

    def _forget(self) -> None:
        self.text = Ngrams(ngram=self.ngram)
        self.tokens = self.text.tokens

    def encode(self, prompt: Sequence[int]) -> None:
        self._forget()
        if self.inner:
            self.inner.encode(prompt)

    def prefill(self, tokens: Sequence[int]) -> Float32[np.ndarray, " vocab"]:
        for token in tokens:
            self.text.append(token)
        if self.inner:
            resume(self.inner, self.tokens)
        return np.zeros(self.vocab_size, dtype=np.float32)

    def extend(self, tokens: Sequence[int]) -> Logits:
        guesses = [self.text.append(token) for token in tokens]
        rows = np.zeros((len(tokens), self.vocab_size), dtype=np.float32)
        if self.inner and None in guesses:
            self.steps += 1
            rows[:] = self.inner.extend(self.tokens[len(self.inner.tokens) :])[-len(tokens) :]
        for row, guess in zip(rows, guesses, strict=True):
            if guess is not None:
                row[:] = -np.inf
                row[guess] = 0.0
        return rows

    def greedy(self, tokens: Sequence[int]) -> Int[np.ndarray, " tokens"]:
        return np.array([self.guess([token]) for token in tokens])

    def guess(self, tokens: Sequence[int], least: float = 0.0) -> int | None:
        guesses = [self.text.append(token) for token in tokens]
        if guesses[-1] is not None:
            return guesses[-1]
        if self.inner is None:
            return None if least else 0
        self.steps += 1
        return self.inner.guess(self.tokens[len(self.inner.tokens) :], least)

    def trim(self, length: int) -> None:
        self.text.trim(length)
        if self.inner and len(self.inner.tokens) > length:
            self.inner.trim(length)
        if self.inner and self.inner.tokens != self.tokens[: len(self.inner.tokens)]:
            resume(self.inner, self.tokens)  # it decoded something else meanwhile, alone

    def fill(self, sequences: int, context: int) -> None:
        self._forget()

    def probe(self, tokens: int) -> None:
        """Nothing runs: the time of the lookup is measured in the loop."""

    def clock(self) -> Callable[[], float]:
        return self._clock()

    def describe(self) -> dict[str, Any]:
        return {"engine": "lookup", "ngram": self.ngram, "joined": self.inner is not None}

    def close(self) -> None:
        """The model is closed by whoever opened it."""
