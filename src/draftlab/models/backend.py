"""The interface of an inference engine for measurements, and the check that two models can work as a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float32, Int

from draftlab.errors import UserError
from draftlab.models.cores import usable

Logits = Float32[np.ndarray, "tokens vocab"]

ENCODER_PROMPT = [0] * 64
"""The prompt of an encoder where only the decoder is measured."""


@dataclass(frozen=True)
class EngineOptions:
    """How an engine runs: on ``threads`` CPU threads, with ``gpu_layers`` layers on a GPU (-1 for all).

    The cache holds ``context_length`` tokens for each of ``sequences`` sequences, or for all of them together if ``shared``.
    """

    context_length: int = 1024
    threads: int = 1
    gpu_layers: int = 0
    sequences: int = 1
    shared: bool = False

    def __post_init__(self) -> None:
        cores = len(usable())
        if not 1 <= self.threads <= cores:
            remedy = f"use 1 to {cores}, the cores that this process may use"
            raise UserError(f"threads is {self.threads}", remedy=remedy)
        if self.context_length < 1 or self.sequences < 1:
            what = f"context_length is {self.context_length} and sequences {self.sequences}"
            raise UserError(what, remedy="give at least 1")


class LatencyBackend(Protocol):
    """One model on one engine, with a cache of ``tokens``.

    Every answer of an encoder-decoder begins with ``decoder_start`` (None for a decoder-only model). Its cache is the decoder's, and its encoder
    has read ``ENCODER_PROMPT`` until ``encode`` is called. ``vocabulary`` holds digests of the tokens: models are compared by those that both have.
    ``ends`` are the tokens that end an answer, as far as they are known.
    """

    decoder_start: int | None
    vocab_size: int
    context_length: int
    vocabulary: dict[str, str]
    ends: set[int]
    tokens: list[int]

    def encode(self, prompt: Sequence[int]) -> None:
        """Let the encoder read ``prompt``; the decoder's cache becomes empty."""
        ...

    def prefill(self, tokens: Sequence[int]) -> Float32[np.ndarray, " vocab"]:
        """Append ``tokens`` to the cache; return the logits after the last of them."""
        ...

    def extend(self, tokens: Sequence[int]) -> Logits:
        """Append ``tokens`` to the cache; return the logits after each, valid until the next call."""
        ...

    def greedy(self, tokens: Sequence[int]) -> Int[np.ndarray, " tokens"]:
        """Append ``tokens`` to the cache; return the most likely next token after each."""
        ...

    def guess(self, tokens: Sequence[int], min_prob: float = 0.0) -> int | None:
        """Append ``tokens`` to the cache; return the most likely next token, or None if its probability is below ``min_prob``."""
        ...

    def guesses(self, tokens: Sequence[int], count: int, min_prob: float = 0.0) -> list[int]:
        """Append ``tokens`` to the cache; return the most likely next token after each of the last ``count``, up to the first whose probability is
        below ``min_prob``."""
        ...

    def trim(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        ...

    def fill(self, sequences: int, context: int) -> None:
        """Replace the cache by ``sequences`` sequences of ``context`` arbitrary tokens, for ``probe``."""
        ...

    def probe(self, tokens: int) -> None:
        """Append ``tokens`` tokens to each filled sequence in one call, choose greedily after each, remove them."""
        ...

    def clock(self) -> Callable[[], float]:
        """The clock that measures this engine's work, in seconds."""
        ...

    def describe(self) -> dict[str, Any]:
        """Engine, build, device, threads and weights, for ``run.json``."""
        ...

    def close(self) -> None: ...


def argmax(logits: Logits) -> Int[np.ndarray, " tokens"]:
    """The token with the largest logit in each row; NaN or +inf logits are a ``UserError``, because the maximum would be the place of a NaN."""
    best = logits.argmax(axis=-1)
    if not np.isfinite(logits[np.arange(len(best)), best]).all():
        raise UserError("logits hold NaN, +inf or no finite value", remedy="check the model and its weights")
    return np.asarray(best)


def confident_argmax(logits: Float32[np.ndarray, " vocab"], min_prob: float) -> int | None:
    """The token with the largest logit, or None if its probability is below ``min_prob``."""
    (best,) = argmax(logits[None]).tolist()
    return None if min_prob and min_prob * float(np.exp(logits - logits[best]).sum()) > 1 else best


def confident_argmaxes(logits: Logits, min_prob: float) -> list[int]:
    """The token with the largest logit in each row, up to the first whose probability is below ``min_prob``."""
    found = list[int]()
    for row in logits:
        if (token := confident_argmax(row, min_prob)) is None:
            break
        found.append(token)
    return found


def have_same_tokens(target: LatencyBackend, draft: LatencyBackend) -> bool | None:
    """Whether two vocabularies are the same but for padding; None where no digest tells."""
    both = target.vocabulary.keys() & draft.vocabulary.keys()
    return all(target.vocabulary[name] == draft.vocabulary[name] for name in both) if both else None


def check_pair(target: LatencyBackend, draft: LatencyBackend, file: Path | None = None) -> None:
    """Raise ``UserError``, which names the draft's ``file``, if two models read token ids differently, or if only one has an encoder."""
    remedy = "use a draft that was trained with the target's tokenizer"
    if target.decoder_start != draft.decoder_start:
        kinds = ["decoder-only" if m.decoder_start is None else "an encoder-decoder" for m in (target, draft)]
        what = f"the target is {kinds[0]}, the draft {kinds[1]}"
        raise UserError(what, file=file, remedy="use two models of the same kind")
    if target.vocab_size != draft.vocab_size:
        what = f"the target has {target.vocab_size} tokens, the draft has {draft.vocab_size}"
        raise UserError(what, file=file, remedy=remedy)
    is_same = have_same_tokens(target, draft)
    if is_same is None and target.ends and draft.ends and target.ends.isdisjoint(draft.ends):
        of_target, of_draft = (" or ".join(map(str, sorted(model.ends))) for model in (target, draft))
        what = f"eos is token {of_target} in the target and {of_draft} in the draft"
        raise UserError(what, file=file, remedy=remedy)
    if is_same is False:
        what = "target and draft have vocabularies of the same size but different tokens"
        raise UserError(what, file=file, remedy=remedy)
