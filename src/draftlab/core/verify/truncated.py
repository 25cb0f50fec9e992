"""Importance sampling with a truncated linear program: only the few tokens that matter most are optimised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.verify.bound import argsort
from draftlab.core.verify.canonical import select_then_verify
from draftlab.core.verify.single import reject_residual
from draftlab.core.verify.split import SPLITS, Solver
from draftlab.core.verify.survivors import Order, Position, scale
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier
from draftlab.errors import UserError


@dataclass(frozen=True)
class Truncation:
    """Size of the linear program in tokens, the tokens that are ranked at all, and how the program is solved.

    ``alphabet`` is the number of ranked tokens (the paper's Omega_0): outside the program, the token of higher rank wins, and between two
    tokens that are not ranked, the first draft wins. None ranks every token; ``size`` needs no full sort. The target is not changed.
    """

    size: int = 5
    alphabet: int | None = None
    solver: Solver = "direct"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size is {self.size}", remedy="put at least 1 token into the linear program")
        if self.alphabet is not None and self.alphabet < self.size:
            raise UserError(
                f"the alphabet has {self.alphabet} tokens, the linear program {self.size}",
                remedy="rank at least the tokens of the program",
            )


@dataclass(frozen=True)
class _Stage:
    """Selection between two drafts: the distribution of the selected token, the ranked tokens, each token's rank, who wins between two ranks
    below ``size``."""

    order: Int64[Tensor, "batch alphabet"]
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

    The tokens of largest ``q - a b`` enter the program and win against all others; after them, within the alphabet, the larger ``q - a b``
    wins. ``r`` is recomputed from the solution: lossless to rounding whatever the solver did.
    """
    vocab = target.shape[-1]
    size, alphabet = min(truncation.size, vocab), min(truncation.alphabet or vocab, vocab)
    score = target - first * second
    order = score.topk(alphabet, -1).indices if alphabet < vocab else argsort(-score)
    ranked = torch.stack([target, first, second], 1).gather(-1, order[:, None].expand(-1, 3, -1))
    outside = torch.ones_like(target).scatter_(-1, order, 0.0)
    beyond = (torch.stack([first, second], 1) * outside[:, None]).sum(-1, keepdim=True)
    # The mass of both drafts from each rank on, beyond the alphabet too; the product is the probability that both have that rank or a later one.
    rest = torch.cat([ranked[:, 1:], beyond], -1).flip(-1).cumsum(-1).flip(-1)
    both = rest.prod(1)
    inside, wins = _head(truncation, ranked[..., :size], rest[..., size])
    between = (both[:, size:-1] - both[:, size + 1 :]).clamp_min(0)
    selected = (first * outside * beyond[:, 1]).scatter_(-1, order, torch.cat([inside, between], -1))
    rank = torch.full_like(target, alphabet, dtype=torch.int64).scatter_(
        -1, order, torch.arange(alphabet, device=order.device).expand_as(order)
    )
    return _Stage(order, selected, rank, wins)


def _head(
    truncation: Truncation, distributions: Float64[Tensor, "batch 3 size"], rest: Float64[Tensor, "batch 2"]
) -> tuple[Float64[Tensor, "batch size"], Float64[Tensor, "batch size size"]]:
    """Solve the program: the distribution of the selected token inside it, and the probability that each token of a pair wins.

    ``distributions`` are those of target and drafts inside the program, ``rest`` the mass that the drafts have outside.
    """
    target, first, second = distributions.unbind(1)
    first_out, second_out = rest[..., None].unbind(1)
    base = first * (second + second_out) + second * first_out
    mass = first[:, :, None] * second[:, None, :]
    mass = mass + mass.transpose(1, 2)
    share = SPLITS[truncation.solver](target - base, mass)
    return base + share.sum(-1), share / mass.where(mass > 0, 1.0)


def _keep(
    stage: _Stage, held: Int64[Tensor, "batch held"], new: Int64[Tensor, "batch 1"]
) -> Float64[Tensor, "batch held"]:
    """Probability that each held token is kept against the new one."""
    size = stage.wins.shape[-1]
    mine, other = stage.rank.gather(-1, held), stage.rank.gather(-1, new)
    solved = stage.wins.flatten(1).gather(-1, mine.clamp_max(size - 1) * size + other.clamp_max(size - 1))
    return solved.where(mine.maximum(other) < size, (mine <= other).double())


def select(
    truncation: Truncation,
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> tuple[Float64[Tensor, "batch vocab"], Float64[Tensor, "batch drafts"]]:
    """Compare the token selected so far with the next draft, stage by stage: the distribution of the selected token, and which draft it is."""
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
    selected, chosen = select(truncation, target_probs, draft_probs, tokens)
    return select_then_verify(target_probs, selected, chosen, tokens)


def _acceptance(
    truncation: Truncation,
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
) -> Acceptance:
    """``proc = sum min(q, r)``; membership has no closed form."""
    tokens = torch.zeros(draft_probs.shape[:2], dtype=torch.int64, device=draft_probs.device)
    selected, _ = select(truncation, target_probs, draft_probs, tokens)
    proc = target_probs.minimum(selected).sum(-1)
    return Acceptance(proc, torch.full_like(proc, torch.nan))


def survivors(truncation: Truncation, position: Position, order: Order) -> Tensor:
    """y is selected and accepted, or another token is selected and rejected and the residual is y: by stages, the number of drafts that are y kept.

    ``held[z, m]`` is the joint probability of the token selected so far and of the drafts that are y.
    """
    selected, held = _held(truncation, position, order)
    chance = position.target.minimum(selected) / selected.where(selected > 0, 1.0)
    # At z = y accepted; elsewhere rejected, then y from the residual: where the residual has y, y itself is never rejected.
    residual = position.at(reject_residual(position.target, selected))
    rejected = torch.einsum("tv,tv...->t...", 1 - chance, held)
    accepted = held[torch.arange(len(held), device=held.device), position.token]
    return scale(accepted, position.at(chance)) + scale(rejected, residual)


def _held(truncation: Truncation, position: Position, order: Order) -> tuple[Tensor, Tensor]:
    """The distribution of the token selected among the drafts of ``order``, and jointly with the drafts that are y."""
    key = (truncation, order)
    if key in position.memo:
        return cast("tuple[Tensor, Tensor]", position.memo[key])
    group, new = order[-1], position.groups[order[-1]]
    y = position.token[:, None]
    if len(order) == 1:
        shape = [*new.shape, *[1] * len(position.groups)]
        shape[2 + group] = 2
        held = new.new_zeros(shape)
        one = new.scatter(-1, y, 0.0)
        held.select(2 + group, 0).copy_(one.view(*new.shape, *[1] * (len(position.groups) - 1)))
        held.select(2 + group, 1).copy_((new - one).view(*new.shape, *[1] * (len(position.groups) - 1)))
        position.memo[key] = new, held
        return new, held
    selected, before = _held(truncation, position, order[:-1])
    stage = _stage(truncation, position.target, selected, new)
    numbers = before.shape[2:]
    flat = before.flatten(2)
    # The new draft is another token than y (its number stays), or y (it grows by one).
    others = new.scatter(-1, y, 0.0)
    stays, grows = _fight(stage, flat, others), _fight(stage, flat, new - others)
    shape = [*new.shape, *numbers]
    zeros = new.new_zeros([*shape[: 2 + group], 1, *shape[3 + group :]])
    held = torch.cat([stays.view(shape), zeros], 2 + group) + torch.cat([zeros, grows.view(shape)], 2 + group)
    position.memo[key] = stage.selected, held
    return stage.selected, held


def _fight(
    stage: _Stage, held: Float64[Tensor, "batch vocab numbers"], new: Float64[Tensor, "batch vocab"]
) -> Float64[Tensor, "batch vocab numbers"]:
    """The token that is kept between a held one and a new one, which are independent: of two ranked tokens the one of higher rank, inside the
    program as the solution says, beyond the alphabet the held one."""
    size, order = stage.wins.shape[-1], stage.order[..., None].expand(-1, -1, held.shape[-1])
    ours, its = held.gather(1, order), new.gather(1, stage.order)
    if (ranked := stage.order.shape[1]) < held.shape[1]:
        beyond = (stage.rank == ranked).double()
        left, other = (held * beyond[..., None]).sum(1, keepdim=True), (new * beyond).sum(-1, keepdim=True)
    else:
        left, other = torch.zeros_like(ours[:, :1]), torch.zeros_like(its[:, :1])
    kept = torch.cat([its, other], 1).flip(1).cumsum(1).flip(1)[:, :-1]  # the new one has no higher rank
    gone = torch.cat([ours[:, 1:], left], 1).flip(1).cumsum(1).flip(1)  # the held one has a lower rank
    same = torch.eye(size, dtype=torch.float64, device=held.device)
    change = stage.wins * (1 - same) + same - torch.ones_like(same).triu()
    kept[:, :size] += (change @ its[:, :size, None])[..., 0]
    gone[:, :size] -= change.transpose(1, 2) @ ours[:, :size]
    after = ours * kept[..., None] + gone * its[..., None]
    if ranked == held.shape[1]:
        return torch.empty_like(held).scatter_(1, order, after)
    return (held * (beyond * other)[..., None]).scatter(1, order, after)


def truncated(truncation: Truncation) -> TokenVerifier:
    """Importance sampling with a small linear program (Khisti et al. 2025, section 4), for independent drafts; more than two are handled in stages.

    For two drafts, the only guarantee is an acceptance of at least ``alpha* - sum over the other tokens of (q - p_1 p_2)_+``.
    """
    return TokenVerifier(
        "importance_truncated",
        "independent",
        partial(_decide, truncation),
        partial(_acceptance, truncation),
        survivors=partial(survivors, truncation),
    )


importance_truncated = truncated(Truncation())
