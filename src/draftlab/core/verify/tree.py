"""Verifiers of a whole tree of drafted sequences: where the walk through it may stop, how likely, and what follows there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import Drafting, draw
from draftlab.core.verify.sequence import Standing
from draftlab.core.verify.token import drawable


@dataclass(frozen=True)
class Stop:
    """With probability ``chance`` the first ``length`` tokens of sequence ``path`` stand, and the next token follows ``weights``."""

    chance: float
    path: int
    length: int
    weights: Float64[Tensor, " vocab"]


Stops = Callable[
    [
        Float64[Tensor, "drafts positions vocab"],
        Float64[Tensor, "drafts path vocab"],
        Int64[Tensor, "drafts path"],
    ],
    list[Stop],
]


@dataclass(frozen=True)
class TreeVerifier:
    """A lossless way to verify K sequences as one tree: all stops given the drafted tokens, from which distribution and sampler follow."""

    name: str
    drafting: Drafting
    stops: Stops

    def distribution(
        self,
        target_probs: Float64[Tensor, "drafts positions vocab"],
        draft_probs: Float64[Tensor, "drafts path vocab"],
        tokens: Int64[Tensor, "drafts path"],
    ) -> dict[tuple[int, ...], float]:
        """The exact distribution of the emitted tokens (the standing ones and the one after), given the drafted sequences."""
        found: dict[tuple[int, ...], float] = defaultdict(float)
        for stop in self.stops(target_probs, draft_probs, tokens):
            stands = tuple(tokens[stop.path, : stop.length].tolist())
            weights = _weights(stop, target_probs)
            for token, chance in enumerate((stop.chance * weights / weights.sum()).tolist()):
                if chance > 0:
                    found[*stands, token] += chance
        return dict(found)

    def sample(
        self,
        target_probs: Float64[Tensor, "batch drafts positions vocab"],
        draft_probs: Float64[Tensor, "batch drafts path vocab"],
        tokens: Int64[Tensor, "batch drafts path"],
        generator: Generator,
    ) -> Standing:
        """Draw a stop of each row, and the token after it."""
        drawn = []
        for given in zip(target_probs, draft_probs, tokens, strict=True):
            stops = self.stops(*given)
            chances = torch.tensor([max(stop.chance, 0.0) for stop in stops], dtype=torch.float64, device=tokens.device)
            stop = stops[int(draw(chances, 1, generator))]
            drawn.append((stop.path, stop.length, int(draw(_weights(stop, given[0]), 1, generator))))
        return Standing(*(torch.tensor(part, device=tokens.device) for part in zip(*drawn, strict=True)))


def _weights(stop: Stop, target_probs: Float64[Tensor, "drafts positions vocab"]) -> Float64[Tensor, " vocab"]:
    return drawable(stop.weights[None], target_probs[stop.path, stop.length][None])[0]
