"""Importance sampling with a truncated linear program: only the few tokens that matter most are optimised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from draftlab.core.verify.bound import argsort, ranks
from draftlab.core.verify.canonical import select_then_verify
from draftlab.core.verify.split import SPLITS, Solver
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier
from draftlab.errors import UserError

Tail = Literal["sorted", "first"]
"""Who wins between two drafts outside the linear program: the one of higher rank, or the first (which needs no full sort)."""


@dataclass(frozen=True)
class Truncation:
    """Size of the linear program in tokens, the rule outside it, and how it is solved."""

    size: int = 5
    tail: Tail = "sorted"
    solver: Solver = "direct"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size is {self.size}", remedy="put at least 1 token into the linear program")


@dataclass(frozen=True)
class _Stage:
    """Selection between two drafts: the distribution of the selected token, each token's rank, who wins between two ranks below ``size``."""

    selected: Float64[Tensor, "batch vocab"]
    rank: Int64[Tensor, "batch vocab"]
    wins: Float64[Tensor, "batch size size"]


def _stage(
    truncation: Truncation,
    target: Float64[Tensor, "batch vocab"],
    first: Float64[Tensor, "batch vocab"],
    second: Float64[Tensor, "batch vocab"],
) -> _Stage:
    """Importance sampling between two independent drafts with distributions a and b, the linear program over ``size`` tokens (Khisti et al. 2025, section 4).

    The tokens of largest ``q - a b`` enter the program and win against all others; outside it the ``tail`` rule decides. ``r`` is
    recomputed from the solution: lossless to rounding whatever the solver did.
    """
    size = min(truncation.size, target.shape[-1])
    score = target - first * second
    distributions = torch.stack([target, first, second], 1)
    if truncation.tail == "sorted":
        order = argsort(-score)
        distributions = distributions.gather(-1, order[:, None].expand(-1, 3, -1))
        rest = distributions[:, 1:].sum(-1, keepdim=True) - pad(distributions[:, 1:].cumsum(-1), (1, 0))
        both = rest.prod(1)  # probability that both drafts have at least this rank; the one of higher rank wins
        inside, wins = _head(truncation, distributions[..., :size], rest[..., size])
        ranked = torch.cat([inside, (both[:, size:-1] - both[:, size + 1 :]).clamp_min(0)], -1)
        selected = torch.empty_like(target).scatter_(-1, order, ranked)
        rank = ranks(order)
    else:
        order = score.topk(size, -1).indices
        outside = torch.ones_like(target).scatter_(-1, order, 0.0)
        rest_distribution = (distributions[:, 1:] * outside[:, None]).sum(-1)
        inside, wins = _head(truncation, distributions.gather(-1, order[:, None].expand(-1, 3, -1)), rest_distribution)
        selected = (first * rest_distribution[:, 1:]).scatter_(-1, order, inside)
        places = torch.arange(size, device=order.device).expand_as(order)
        rank = torch.full_like(target, size, dtype=torch.int64).scatter_(-1, order, places)
    return _Stage(selected, rank, wins)


def _head(
    truncation: Truncation, distributions: Float64[Tensor, "batch 3 size"], rest: Float64[Tensor, "batch 2"]
) -> tuple[Float64[Tensor, "batch size"], Float64[Tensor, "batch size size"]]:
    """Solve the program: the distribution of the selected token inside it, and the probability that each token of a pair wins.

    ``distributions`` are those of target and drafts inside the program, ``rest`` the mass that the drafts have outside.
    """
    target, first, second = distributions.numpy(force=True).transpose(1, 0, 2)
    first_out, second_out = rest.numpy(force=True).T[..., None]
    base = first * (second + second_out) + second * first_out
    mass = first[:, :, None] * second[:, None, :]
    mass = mass + mass.transpose(0, 2, 1)
    share = SPLITS[truncation.solver](target - base, mass)
    inside, wins = base + share.sum(-1), share / np.where(mass > 0, mass, 1.0)
    return torch.from_numpy(inside).to(distributions.device), torch.from_numpy(wins).to(distributions.device)


def _keep(
    stage: _Stage, held: Int64[Tensor, "batch held"], new: Int64[Tensor, "batch 1"]
) -> Float64[Tensor, "batch held"]:
    """Probability that each held token is kept against the new one."""
    size = stage.wins.shape[-1]
    mine, other = stage.rank.gather(-1, held), stage.rank.gather(-1, new)
    solved = stage.wins.flatten(1).gather(-1, mine.clamp_max(size - 1) * size + other.clamp_max(size - 1))
    return solved.where(mine.maximum(other) < size, (mine <= other).double())


def _select(
    truncation: Truncation,
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> tuple[Float64[Tensor, "batch vocab"], Float64[Tensor, "batch drafts"]]:
    """Stage after stage, the token selected so far against the next draft: the distribution of the selected token, and which draft it is."""
    selected, chosen = draft_probs[:, 0], torch.ones_like(tokens[:, :1], dtype=torch.float64)
    for k in range(1, tokens.shape[1]):
        stage = _stage(truncation, target_probs, selected, draft_probs[:, k])
        kept = _keep(stage, tokens[:, :k], tokens[:, k : k + 1])
        chosen = torch.cat([chosen * kept, (chosen * (1 - kept)).sum(-1, keepdim=True)], -1)
        selected = stage.selected
    return selected, chosen


def _decide(
    truncation: Truncation,
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    selected, chosen = _select(truncation, target_probs, draft_probs, tokens)
    return select_then_verify(target_probs, selected, chosen, tokens)


def _acceptance(
    truncation: Truncation,
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
) -> Acceptance:
    """``proc = sum min(q, r)``; membership has no closed form."""
    tokens = torch.zeros(draft_probs.shape[:2], dtype=torch.int64, device=draft_probs.device)
    selected, _ = _select(truncation, target_probs, draft_probs, tokens)
    proc = target_probs.minimum(selected).sum(-1)
    return Acceptance(proc, torch.full_like(proc, torch.nan))


def truncated(truncation: Truncation) -> TokenVerifier:
    """Importance sampling with a small linear program (Khisti et al. 2025, section 4); independent drafts, more than two by stages.

    For two drafts its acceptance is at least ``alpha* - sum over the other tokens of (q - p_1 p_2)_+``, and no more is promised.
    """
    return TokenVerifier(
        "importance_truncated", "independent", partial(_decide, truncation), partial(_acceptance, truncation)
    )


importance_truncated = truncated(Truncation())
