"""Suffix decoding of one request on any engine (``models.suffixes``), alone or before a draft model, lossless at every temperature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from draftlab.core.sampling_numpy import GREEDY, Probs, Sampling
from draftlab.engine.loop import Verification
from draftlab.latency.lookup import SURE
from draftlab.latency.loop import DraftLength, Generation, RequestPair, generate, start
from draftlab.models.backend import LatencyBackend, check_pair
from draftlab.models.suffixes import Memory, Suffixes


def speculate_with_suffixes(
    target: LatencyBackend,
    draft: LatencyBackend,
    prompt: Sequence[int],
    max_new_tokens: int,
    draft_len: DraftLength,
    memory: Memory,
    *,
    joined: bool = False,
    sampling: Sampling = GREEDY,
    rng: np.random.Generator | None = None,
    min_prob: float = 0.0,
) -> Generation:
    """``loop.speculate`` with blocks that suffix decoding drafts from the text and the ``memory``.

    A block ends before its tokens together are less probable than ``min_prob``. If ``joined``, the ``draft`` drafts the blocks whose first token is
    not ``SURE``, each as ``loop.speculate`` does. Otherwise the draft is never asked, and may be a ``LookupBackend``.
    """
    check_pair(target, draft)
    text, rng = start([target, draft], prompt, max_new_tokens), rng or np.random.default_rng(0)
    pair = SuffixPair(target, draft, text, draft_len, sampling, rng, min_prob, memory=memory, joined=joined)
    return generate((target, draft), pair, max_new_tokens, ())


@dataclass(kw_only=True)
class SuffixPair(RequestPair):
    """``loop.RequestPair`` with suffix decoding for some blocks, or for all."""

    memory: Memory
    joined: bool

    def __post_init__(self) -> None:
        self.seen = Suffixes(self.text, self.memory)

    def propose(self, left: Sequence[int]) -> tuple[list[int], list[Probs]]:
        tokens, counts = self.seen.path(min(self.draft_len(self.blocks), self.room), self.min_prob)
        if self.joined and (not tokens or counts[0][0] < SURE * sum(counts[0])):
            return super().propose(left)
        self.calls, self.drafted = 0, len(tokens)
        return tokens, [self._certain(token) for token in tokens] if self.sampling.temperature else []

    def _certain(self, token: int) -> Probs:
        """The distribution of a draft that always proposes this token."""
        probs = np.zeros(self.target.vocab_size)
        probs[token] = 1.0
        return probs

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        super().settle(verification, kept)
        for token in self.text[len(self.seen.tokens) :]:
            self.seen.append(token)
