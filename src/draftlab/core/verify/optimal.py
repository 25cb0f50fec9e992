"""The verifier that reaches the best acceptance of K i.i.d. drafts: a tournament of random keys.

Tokens are numbered by rising ``q/p``; P and Q are the prefix sums of draft and target in this order. Every drafted token gets a random key in
[0, 1], and the largest key is selected.

1. The selected token has to follow ``r_l = q_l + M_l - M_{l-1}``, with M the smaller of the running maxima of ``P^K - Q`` from both sides:
   then ``sum min(q, r)`` is the optimum (``_peak``, ``_selected_from``).
2. Let the key of token l be uniform on its own interval ``(P_{l-1}, P_l]``. All keys together are then uniform on [0, 1], and token l is
   selected with probability ``p_l phi_l`` (``win_rate``).
3. A token that needs more than that swaps key mass with tokens that need less. All keys together stay uniform (``_key_distribution``).
4. Given the drafted tokens, their keys are independent: compute the probability that each is the largest (``_largest_key``).

The selected token is then verified as a single draft from r. ``docs/theory.md``, section 3, proves that no token swaps more than it has.
The best acceptance itself, without a verifier, is computed in ``optimum``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.optimum import optimum_iid, ranks, ratio_order
from draftlab.core.verify.single import SMALLEST, accept_probs
from draftlab.core.verify.survivors import Order, Position
from draftlab.core.verify.token import Acceptance, Decision, Rows, TokenVerifier

LARGE = 1 << 13
"""Tables with more entries are cut to the few dozen tokens whose keys move (``_moving``). Smaller tables are not: the cut takes longer than it saves."""


@dataclass(frozen=True)
class _Tournament:
    """The probability that each draft is selected; target and selected token's distribution in ratio ``order``; the drafts' ranks in it."""

    order: Int64[Tensor, "batch vocab"]
    target: Table
    selected: Table
    rank: Tokens
    chosen: Float64[Tensor, "batch drafts"]


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    result = _tournament(target_probs, draft_probs[:, 0], tokens)
    chance = accept_probs(result.target.gather(-1, result.rank), result.selected.gather(-1, result.rank))

    def residual(rows: Rows) -> Float64[Tensor, "rows vocab"]:
        excess = (result.target[rows] - result.selected[rows]).clamp_min_(0)
        return torch.empty_like(excess).scatter_(-1, result.order[rows], excess)

    return Decision(result.chosen * chance, residual)


def select_by_key(
    target_probs: Table, draft_probs: Table, tokens: Tokens
) -> tuple[Float64[Tensor, "batch drafts"], Table]:
    """The probability that each draft is selected, and the distribution of the selected token."""
    result = _tournament(target_probs, draft_probs, tokens)
    return result.chosen, torch.empty_like(result.selected).scatter_(-1, result.order, result.selected)


def _tournament(target_probs: Table, draft_probs: Table, tokens: Tokens) -> _Tournament:
    num_drafts = tokens.shape[1]
    order = ratio_order(target_probs, draft_probs)
    target, draft = target_probs.gather(-1, order), draft_probs.gather(-1, order)
    mass = draft.cumsum(-1)
    surplus = math.prod([mass] * num_drafts) - target.cumsum(-1)
    peak = _peak(surplus)
    selected, rank = _selected_from(target, peak), ranks(order).gather(-1, tokens)
    width, upper, wanted, column = draft, mass, selected, rank
    if draft.numel() > LARGE and (moving := _moving(surplus, peak, rank)) is not None:
        columns, column = moving
        width, upper, wanted = (table.gather(-1, columns) for table in (draft, mass, selected))
    win = win_rate(upper, upper - width, num_drafts)
    need = wanted.addcmul(width, win, value=-1)
    return _Tournament(order, target, selected, rank, _largest_key(_key_distribution(width, win, need, column)))


def _peak(surplus: Table) -> Table:
    """M: the running maximum of ``P^K - Q`` from the left (at least 0) or from the right, whichever is smaller."""
    return surplus.cummax(-1).values.clamp_min_(0).minimum(surplus.flip(-1).cummax(-1).values.flip(-1))


def _selected_from(target: Table, peak: Table) -> Table:
    """The distribution of the selected token, ``r_l = q_l + M_l - M_{l-1}``."""
    selected = target + peak
    selected[:, 1:].sub_(peak[:, :-1])
    return selected.clamp_min_(0)


def win_rate(upper: Table, lower: Table, num_drafts: int) -> Table:
    """``phi_l = sum_i P_l^i P_{l-1}^(K-1-i)``: a draft with its key in ``(P_{l-1}, P_l]`` is selected ``p_l phi_l`` of the time."""
    if num_drafts == 1:
        return torch.ones_like(upper)
    total, power = upper + lower, lower
    for _ in range(num_drafts - 2):
        power = power * lower
        total = total * upper + power
    return total


def _moving(surplus: Table, peak: Table, rank: Tokens) -> tuple[Int64[Tensor, "batch columns"], Tokens] | None:
    """The columns of the tokens whose keys move and of the drafted tokens, and the place of the drafted tokens among them.

    Where M equals ``P^K - Q`` before a token and after it, ``r_l = P_l^K - P_{l-1}^K = p_l phi_l``: a key in the token's own interval gives
    just what it needs. After top-p or top-k this holds for nearly all of a large vocabulary. None if most tokens have to be kept. A row with
    fewer columns ends with copies of its last token, whose need or excess comes after everything that is matched.
    """
    differs = peak != surplus
    mask = differs.clone()
    mask[:, 1:].logical_or_(differs[:, :-1])
    mask.scatter_(-1, rank, True)
    count = mask.cumsum(-1)
    width = int(count[:, -1].max())
    if 2 * width > count.shape[1]:
        return None
    number = torch.arange(1, width + 1, device=rank.device).expand(len(count), -1).contiguous()
    columns = torch.searchsorted(count, number).clamp_max_(count.shape[1] - 1)
    return columns, count.gather(-1, rank) - 1


def _key_distribution(draft: Table, win: Table, need: Table, column: Tokens) -> Float64[Tensor, "batch drafts vocab"]:
    """Probability that the key of each drafted token lies in each token's interval.

    Token i with a need (``need > 0``) and token j with an excess (``need < 0``) swap the key mass ``x_ij / (phi_j - phi_i)``. The ``x_ij``
    match cumulative needs with cumulative excesses, first come first served.
    """
    needs, excesses = pad(torch.stack([need, -need], 1).clamp_min_(0).cumsum(-1), (1, 0)).unbind(1)
    change, mass, phi, needed, exceeded = (
        table.gather(-1, column)[..., None] for table in (need, draft, win, needs, excesses)
    )
    # A drafted token takes a stretch of one cumulative scale; measure its overlap with every token's stretch of the other scale.
    has_need = change > 0
    begin = torch.where(has_need, needed, exceeded)
    others = torch.where(has_need, excesses[:, None], needs[:, None])
    matched = others.clamp(begin, begin + change.abs()).diff(dim=-1)
    # Where phi_i and phi_j nearly agree the quotient is rounding: cap each swap at the mass of the lighter token, and their sum at its own mass.
    swapped = matched.div_((win[:, None] - phi).abs_().clamp_min_(SMALLEST)).minimum(draft[:, None]).div_(mass)
    total = swapped.sum(-1, keepdim=True)
    return swapped.div_(total.clamp_min(1)).scatter_add_(-1, column[..., None], (1 - total).clamp_min_(0))


def _largest_key(key_distribution: Float64[Tensor, "batch drafts vocab"]) -> Float64[Tensor, "batch drafts"]:
    """Probability that each draft has the largest key: ``sum_l W_k(l) E prod_{j != k} (F_j(l) + W_j(l) v)``, ``v`` uniform.

    W is the key distribution and F the probability of an interval further left. The mean over ``v`` of this polynomial of degree K - 1 is a
    Gauss-Legendre sum, exact with ``ceil(K / 2)`` nodes.
    """
    num_drafts = key_distribution.shape[1]
    below = key_distribution.cumsum(-1) - key_distribution
    chosen = key_distribution.new_zeros(len(key_distribution), num_drafts - 1)
    for node, weight in _gauss_legendre((num_drafts + 1) // 2):
        others = _without_each(torch.add(below, key_distribution, alpha=node).unbind(1))
        for k in range(num_drafts - 1):
            chosen[:, k].add_((key_distribution[:, k] * others[k]).sum(-1), alpha=weight)
    return torch.cat([chosen, (1 - chosen.sum(-1, keepdim=True)).clamp_min(0)], -1)


def _without_each(factors: Sequence[Tensor]) -> list[Tensor]:
    """For each factor the product of all others, without a division; empty for a single factor."""
    if len(factors) < 2:
        return []
    before, after = (list(itertools.accumulate(some, torch.mul)) for some in (factors[:-1], factors[:0:-1]))
    inner = [left * right for left, right in zip(before[:-1], after[-2::-1], strict=True)]
    return [after[-1], *inner, before[-1]]


@cache
def _gauss_legendre(count: int) -> list[tuple[float, float]]:
    """Nodes in [0, 1] and their weights."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return [((node + 1) / 2, weight / 2) for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True)]


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    best = optimum_iid(target_probs, draft_probs[:, 0], draft_probs.shape[1])
    return Acceptance(best, best)


def _survivors(position: Position, order: Order) -> Tensor:
    """y is selected and accepted: at the optimum a residual token is never one of the drafts."""
    selected, chance = key_survivors(position, order)
    return selected * chance


def key_survivors(
    position: Position, order: Order
) -> tuple[Float64[Tensor, "positions drafts+1"], Float64[Tensor, "positions 1"]]:
    """The probability that m of k drafts equal y and one of them is selected, for each m; and the probability that y is then accepted.

    The first is ``binom(k, m) int (u - G)^(k-m) d(G^m)``, ``G(u) = P(draft y, key <= u)``: all keys together are uniform, so a draft is
    another token with a key below u with probability ``u - G(u)``. On each token's interval G is linear, and the integral is a
    Gauss-Legendre sum.
    """
    num_drafts = len(order)
    target, draft, rank = in_ratio_order(position)
    selected, win = selected_and_win_rate(target, draft, num_drafts)
    key = _key_distribution(draft, win, selected.addcmul(draft, win, value=-1), rank)[:, 0]
    at_draft = draft.gather(-1, rank)
    mine = (key * at_draft).where(at_draft > 0, 0.0)
    begin, others = mine.cumsum(-1) - mine, draft - mine
    below = others.cumsum(-1) - others
    joint = position.target.new_zeros(len(rank), num_drafts + 1)
    for node, weight in _gauss_legendre((num_drafts + 1) // 2):
        smaller, other = torch.add(begin, mine, alpha=node), torch.add(below, others, alpha=node)
        won, powers = mine * weight, [torch.ones_like(other)]
        for _ in range(num_drafts - 1):
            powers.append(powers[-1] * other)
        for m in range(1, num_drafts + 1):
            joint[:, m] += math.comb(num_drafts, m) * m * (won * powers[num_drafts - m]).sum(-1)
            if m < num_drafts:
                won = won * smaller
    return joint, accept_probs(target.gather(-1, rank), selected.gather(-1, rank))


def selected_and_win_rate(target: Table, draft: Table, num_drafts: int) -> tuple[Table, Table]:
    """``r`` and ``phi`` of two distributions in ratio order."""
    mass = draft.cumsum(-1)
    selected = _selected_from(target, _peak(mass**num_drafts - target.cumsum(-1)))
    return selected, win_rate(mass, mass - draft, num_drafts)


def in_ratio_order(position: Position) -> tuple[Table, Table, Int64[Tensor, "positions 1"]]:
    """Both distributions along a text in ratio order, and the rank of the written token; computed once."""

    def compute() -> tuple[Table, Table, Int64[Tensor, "positions 1"]]:
        order = ratio_order(position.target, position.groups[0])
        rank = ranks(order).gather(-1, position.token[:, None])
        return position.target.gather(-1, order), position.groups[0].gather(-1, order), rank

    tables: tuple[Table, Table, Int64[Tensor, "positions 1"]] = position.cached("ratio order", compute)
    return tables


optimal = TokenVerifier("optimal", "iid", _decide, _acceptance, survivors=_survivors)
"""The best acceptance that K i.i.d. drafts allow, without a linear program: select the draft with the largest key, then verify it alone."""
