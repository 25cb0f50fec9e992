"""Contenders of a measurement: a draft, and how much of it a block drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.sampling_numpy import Sampling
from draftlab.latency.cost_aware import Rule
from draftlab.latency.lookup import LookupBackend
from draftlab.latency.loop import DraftLength, Generation, speculate
from draftlab.latency.suffixes import speculate_with_suffixes
from draftlab.latency.trees import LookedUp, speculate_with_trees
from draftlab.models.backend import LatencyBackend
from draftlab.models.suffixes import Memory


class Drafter(Protocol):
    """A draft, and how its tokens are drafted."""

    @property
    def draft(self) -> LatencyBackend:
        """The model, or a lookup."""
        ...

    def answer(
        self, target: LatencyBackend, prompt: Sequence[int], length: int, sampling: Sampling, rng: np.random.Generator
    ) -> Generation:
        """Decode ``length`` tokens."""
        ...


@dataclass(frozen=True)
class InSequences:
    """One drafted sequence for a block, which ends where the draft is less sure than ``min_prob``; in one call, if there is a ``mask``."""

    draft: LatencyBackend
    draft_len: DraftLength
    min_prob: float = 0.0
    mask: int | None = None

    def answer(
        self, target: LatencyBackend, prompt: Sequence[int], length: int, sampling: Sampling, rng: np.random.Generator
    ) -> Generation:
        how = (target, self.draft, prompt, length, self.draft_len)
        return speculate(*how, sampling=sampling, rng=rng, min_prob=self.min_prob, mask=self.mask)


@dataclass(frozen=True)
class InTrees:
    """A tree for a block, of the texts that the ``rule`` wants; with ``lookup``, only where that finds nothing."""

    draft: LatencyBackend
    tree: ConfidentTree
    rule: Rule
    lookup: LookedUp | None = None

    def answer(
        self, target: LatencyBackend, prompt: Sequence[int], length: int, sampling: Sampling, rng: np.random.Generator
    ) -> Generation:
        how = (target, self.draft, prompt, length, self.tree)
        return speculate_with_trees(*how, sampling=sampling, rng=rng, rule=self.rule, lookup=self.lookup)


@dataclass(frozen=True)
class InSuffixes:
    """One sequence for a block, from suffix decoding with this ``memory``; if ``joined``, the draft's where that is unsure."""

    draft: LatencyBackend
    draft_len: DraftLength
    memory: Memory
    joined: bool = False
    min_prob: float = 0.0

    def answer(
        self, target: LatencyBackend, prompt: Sequence[int], length: int, sampling: Sampling, rng: np.random.Generator
    ) -> Generation:
        how = (target, self.draft, prompt, length, self.draft_len, self.memory)
        return speculate_with_suffixes(*how, joined=self.joined, sampling=sampling, rng=rng, min_prob=self.min_prob)


def answer_with(
    drafter: Drafter,
    target: LatencyBackend,
    prompt: Sequence[int],
    length: int,
    sampling: Sampling,
    rng: np.random.Generator,
) -> tuple[Generation, int]:
    """The answer, and how often the draft's model was called: not where a lookup found something."""
    draft = drafter.draft
    before = draft.steps if isinstance(draft, LookupBackend) else 0
    written = drafter.answer(target, prompt, length, sampling, rng)
    calls = draft.steps - before if isinstance(draft, LookupBackend) else sum(block.calls for block in written.blocks)
    return written, calls
