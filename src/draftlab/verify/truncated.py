"""Importance sampling with a truncated linear program: only the few tokens that matter most are optimised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.errors import UserError
from draftlab.verify.canonical import select_then_verify
from draftlab.verify.split import SPLITS, Solver
from draftlab.verify.token import Acceptance, Decision, TokenVerifier

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
    """Selection between two drafts: the law of the selected token, each token's rank, who wins between two ranks below ``size``."""

    selected: Float64[Tensor, "batch vocab"]
    rank: Int64[Tensor, "batch vocab"]
    wins: Float64[Tensor, "batch size size"]


def _stage(
    truncation: Truncation,
    target: Float64[Tensor, "batch vocab"],
    first: Float64[Tensor, "batch vocab"],
    second: Float64[Tensor, "batch vocab"],
) -> _Stage:
    """Importance sampling between two independent drafts with laws a and b, the linear program over ``size`` tokens (Khisti et al. 2025, section 4).

    The tokens of largest ``q - a b`` enter the program and win against all others; outside it the ``tail`` rule decides. ``r`` is
    recomputed from the solution: lossless to rounding whatever the solver did.
    """
    size = min(truncation.size, target.shape[-1])
    score = target - first * second
    if truncation.tail == "sorted":
        order = torch.sort(score, dim=-1, descending=True, stable=True).indices
        a, b = first.gather(-1, order), second.gather(-1, order)
        a_after, b_after = _after(a), _after(b)
        won = a * b + a * b_after + b * a_after
        a_out, b_out = a_after[:, size - 1 : size], b_after[:, size - 1 : size]
        rank = torch.empty_like(order).scatter_(-1, order, _count(order))
    else:
        order = score.topk(size, -1).indices
        outside = torch.ones_like(target).scatter_(-1, order, 0.0)
        a_out, b_out = (first * outside).sum(-1, keepdim=True), (second * outside).sum(-1, keepdim=True)
        a, b = first.gather(-1, order), second.gather(-1, order)
        rank = torch.full_like(target, size, dtype=torch.int64).scatter_(-1, order, _count(order))
    a, b, head = a[:, :size], b[:, :size], order[:, :size]
    base = a * b + a * b_out + b * a_out
    mass = a[:, :, None] * b[:, None, :] + b[:, :, None] * a[:, None, :]
    room = target.gather(-1, head) - base
    share = torch.from_numpy(SPLITS[truncation.solver](room.numpy(force=True), mass.numpy(force=True))).to(mass)
    inside = base + share.sum(-1)
    if truncation.tail == "sorted":
        selected = torch.empty_like(target).scatter_(-1, order, torch.cat([inside, won[:, size:]], -1))
    else:
        selected = (first * b_out).scatter_(-1, head, inside)
    return _Stage(selected, rank, share / mass.where(mass > 0, 1.0))


def _count(order: Int64[Tensor, "batch tokens"]) -> Int64[Tensor, "batch tokens"]:
    """0, 1, 2, ... along each row."""
    return torch.arange(order.shape[-1], device=order.device).expand_as(order)


def _after(probs: Float64[Tensor, "batch vocab"]) -> Float64[Tensor, "batch vocab"]:
    """The mass after each entry."""
    return torch.nn.functional.pad(probs.flip(-1).cumsum(-1).flip(-1)[:, 1:], (0, 1))


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
    """Stage after stage, the token selected so far against the next draft: the law of the selected token, and which draft it is."""
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
