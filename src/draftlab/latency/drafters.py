"""Contenders of a measurement: a draft, and how a request is decoded with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from draftlab.core.sampling_numpy import Sampling
from draftlab.latency.lookup import LookupBackend
from draftlab.latency.loop import Generation
from draftlab.models.backend import LatencyBackend


@dataclass(frozen=True)
class Drafter:
    """A draft: a model or a lookup. ``speculate`` is ``loop.speculate`` or another function like it, with its options but without a request."""

    draft: LatencyBackend
    speculate: Callable[..., Generation]


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
    written = drafter.speculate(target, draft, prompt, length, sampling=sampling, rng=rng)
    calls = draft.steps - before if isinstance(draft, LookupBackend) else sum(block.calls for block in written.blocks)
    return written, calls
