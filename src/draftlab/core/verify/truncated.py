"""Importance sampling with a truncated linear program: only the few tokens that matter most are optimised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.optimum import argsort
from draftlab.core.verify.single import reject_residual, select_then_verify, selection_acceptance
from draftlab.core.verify.survivors import Order, Position, scale
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier
from draftlab.core.verify.truncated_program import SPLITS, Solver
from draftlab.errors import UserError


@dataclass(frozen=True)
class Truncation:
    """How many tokens the linear program has, how many tokens are ranked, and how the program is solved.

    The ``alphabet`` (the paper's Omega_0) is the number of ranked tokens; None ranks all, and ``size`` needs no full sort. Outside the program
    the token of higher rank wins; between two tokens that are not ranked, the first draft wins. The target is not changed.
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
    """Selection between two drafts: the ranked tokens, the rank of every token (``alphabet`` if not ranked), the distribution of the selected
    token, and the probability that the first of two ranks below ``size`` wins."""

    order: Int64[Tensor, "batch alphabet"]
    rank: Int64[Tensor, "batch vocab"]
    selected: Table
    wins: Float64[Tensor, "batch size size"]


def _stage(truncation: Truncation, target: Table, first: Table, second: Table) -> _Stage:
    """Importance sampling between two independent drafts with distributions a and b (Khisti et al. 2025, section 4).

    Tokens are ranked by ``q - a b``. The first ``size`` enter the linear program and win against all others. After them the higher rank
    wins, within the alphabet: with ``A_i`` and ``B_i`` the masses of both drafts from rank i on, rank i is then selected with probability
    ``A_i B_i - A_(i+1) B_(i+1)``. ``r`` is recomputed from the solution, so it is exact whatever the solver did.
    """
    vocab = target.shape[-1]
    size, alphabet = min(truncation.size, vocab), min(truncation.alphabet or vocab, vocab)
    score = target - first * second
    order = score.topk(alphabet, -1).indices if alphabet < vocab else argsort(-score)
    by_rank = torch.stack([target, first, second], 1).gather(-1, order[:, None].expand(-1, 3, -1))
    is_unranked = torch.ones_like(target).scatter_(-1, order, 0.0)
    unranked = (torch.stack([first, second], 1) * is_unranked[:, None]).sum(-1, keepdim=True)

    from_rank = torch.cat([by_rank[:, 1:], unranked], -1).flip(-1).cumsum(-1).flip(-1)  # A and B
    inside, wins = _solve(truncation, by_rank[..., :size], from_rank[..., size])
    both = from_rank.prod(1)  # A B
    after = (both[:, size:-1] - both[:, size + 1 :]).clamp_min(0)
    selected = (first * is_unranked * unranked[:, 1]).scatter_(-1, order, torch.cat([inside, after], -1))

    rank = torch.full_like(target, alphabet, dtype=torch.int64).scatter_(
        -1, order, torch.arange(alphabet, device=order.device).expand_as(order)
    )
    return _Stage(order, rank, selected, wins)


def _solve(
    truncation: Truncation, probs: Float64[Tensor, "batch 3 size"], outside: Float64[Tensor, "batch 2"]
) -> tuple[Float64[Tensor, "batch size"], Float64[Tensor, "batch size size"]]:
    """Solve the program over tokens with these probabilities of target and drafts; ``outside`` is the mass of each draft on other tokens.

    Returns the distribution of the selected token inside, and the probability that the first of two tokens wins.
    """
    target, first, second = probs.unbind(1)
    first_outside, second_outside = outside[..., None].unbind(1)
    # Both drafts are this token, or one is and the other is outside; and the drafts are these two tokens, in either order.
    certain = first * (second + second_outside) + second * first_outside
    pair = first[:, :, None] * second[:, None, :]
    pair = pair + pair.transpose(1, 2)
    share = SPLITS[truncation.solver](target - certain, pair)
    return certain + share.sum(-1), share / pair.where(pair > 0, 1.0)


def _keep_probs(
    stage: _Stage, held: Int64[Tensor, "batch held"], new: Int64[Tensor, "batch 1"]
) -> Float64[Tensor, "batch held"]:
    """Probability that each held token is kept against the new one."""
    size = stage.wins.shape[-1]
    rank, other = stage.rank.gather(-1, held), stage.rank.gather(-1, new)
    solved = stage.wins.flatten(1).gather(-1, rank.clamp_max(size - 1) * size + other.clamp_max(size - 1))
    return solved.where(rank.maximum(other) < size, (rank <= other).double())


def select(
    truncation: Truncation, target_probs: Table, draft_probs: Tables, tokens: Tokens
) -> tuple[Table, Float64[Tensor, "batch drafts"]]:
    """Compare the token selected so far with the next draft, stage by stage.

    Returns the distribution of the selected token, and the probability that it is each draft.
    """
    selected, chosen = draft_probs[:, 0], torch.ones_like(tokens[:, :1], dtype=torch.float64)
    for k in range(1, tokens.shape[1]):
        stage = _stage(truncation, target_probs, selected, draft_probs[:, k])
        kept = _keep_probs(stage, tokens[:, :k], tokens[:, k : k + 1])
        chosen = torch.cat([chosen * kept, (chosen * (1 - kept)).sum(-1, keepdim=True)], -1)
        selected = stage.selected
    return selected, chosen


def selected_distribution(truncation: Truncation, target_probs: Table, draft_probs: Tables) -> Table:
    """The distribution of the selected token (r), which does not depend on the drafted tokens."""
    selected, *others = draft_probs.unbind(1)
    for draft in others:
        selected = _stage(truncation, target_probs, selected, draft).selected
    return selected


def survivors(truncation: Truncation, position: Position, order: Order) -> Tensor:
    """Either y is selected and accepted, or another token is selected and rejected and the residual is y."""
    selected, held = selection_along(truncation, position, order)
    chance = position.target.minimum(selected) / selected.where(selected > 0, 1.0)
    # The sum includes rejections of y itself, but the residual gives no mass to a token that may be rejected.
    residual = position.at(reject_residual(position.target, selected))
    rejected = torch.einsum("tv,tv...->t...", 1 - chance, held)
    accepted = held[torch.arange(len(held), device=held.device), position.token]
    return scale(accepted, position.at(chance)) + scale(rejected, residual)


def selection_along(truncation: Truncation, position: Position, order: Order) -> tuple[Table, Tensor]:
    """The distribution of the token selected among the drafts of ``order``, and its joint distribution with the number of drafts that equal y.

    Entry ``[t, z, m_1, ..., m_G]`` of the second: z is selected at position t, and m_g drafts of group g equal y.
    """
    selection: tuple[Table, Tensor] = position.cached(
        (truncation, order), lambda: _selection(truncation, position, order)
    )
    return selection


def _selection(truncation: Truncation, position: Position, order: Order) -> tuple[Table, Tensor]:
    new, axis = position.groups[order[-1]], 2 + order[-1]
    differs = new.scatter(-1, position.token[:, None], 0.0)
    equals = new - differs
    if len(order) == 1:
        counts = [1] * len(position.groups)
        return new, torch.cat([differs.view(*new.shape, *counts), equals.view(*new.shape, *counts)], axis)
    selected, held = selection_along(truncation, position, order[:-1])
    stage = _stage(truncation, position.target, selected, new)
    same, more = (_kept(stage, held.flatten(2), table).view(held.shape) for table in (differs, equals))
    none = torch.zeros_like(same.narrow(axis, 0, 1))
    return stage.selected, torch.cat([same, none], axis) + torch.cat([none, more], axis)


def _kept(
    stage: _Stage, held: Float64[Tensor, "batch vocab numbers"], new: Table
) -> Float64[Tensor, "batch vocab numbers"]:
    """The joint mass of the token kept between a held and a new one, which are independent.

    Between two ranked tokens the higher rank is kept, or inside the program what the solution says; beyond the alphabet the held token is.
    """
    size, order = stage.wins.shape[-1], stage.order[..., None].expand(-1, -1, held.shape[-1])
    by_rank, new_by_rank = held.gather(1, order), new.gather(1, stage.order)
    if (alphabet := stage.order.shape[1]) < held.shape[1]:
        is_unranked = (stage.rank == alphabet).double()
        unranked = (held * is_unranked[..., None]).sum(1, keepdim=True)
        new_unranked = (new * is_unranked).sum(-1, keepdim=True)
    else:
        unranked, new_unranked = torch.zeros_like(by_rank[:, :1]), torch.zeros_like(new_by_rank[:, :1])

    # The mass against which a held token of each rank is kept (the new one has no higher rank), and a new one (the held one has a lower rank).
    held_wins = torch.cat([new_by_rank, new_unranked], 1).flip(1).cumsum(1).flip(1)[:, :-1]
    new_wins = torch.cat([by_rank[:, 1:], unranked], 1).flip(1).cumsum(1).flip(1)
    # Inside the program, the solution in place of the order of ranks; a token is kept against itself.
    same = torch.eye(size, dtype=torch.float64, device=held.device)
    change = stage.wins * (1 - same) + same - torch.ones_like(same).triu()
    held_wins[:, :size] += (change @ new_by_rank[:, :size, None])[..., 0]
    new_wins[:, :size] -= change.transpose(1, 2) @ by_rank[:, :size]

    kept = by_rank * held_wins[..., None] + new_wins * new_by_rank[..., None]
    if alphabet == held.shape[1]:
        return torch.empty_like(held).scatter_(1, order, kept)
    return (held * (is_unranked * new_unranked)[..., None]).scatter(1, order, kept)


def truncated(truncation: Truncation) -> TokenVerifier:
    """Importance sampling with a small linear program (Khisti et al. 2025, section 4), for independent drafts.

    More than two drafts are compared stage by stage, which is lossless and not optimal. For two drafts the acceptance is at least
    ``alpha* - sum over tokens outside the program of (q - p_1 p_2)_+`` (``docs/theory.md``, section 5).
    """

    def decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
        return select_then_verify(target_probs, *select(truncation, target_probs, draft_probs, tokens), tokens)

    def acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
        return selection_acceptance(target_probs, selected_distribution(truncation, target_probs, draft_probs))

    along = partial(survivors, truncation)
    return TokenVerifier("importance_truncated", "independent", decide, acceptance, survivors=along)


importance_truncated = truncated(Truncation())
"""Select one draft by a linear program over the 5 tokens that matter most, then verify it alone."""
