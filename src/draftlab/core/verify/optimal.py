"""The verifier that reaches the best acceptance of K i.i.d. drafts: a tournament of random keys."""

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
from draftlab.core.verify.bound import optimum_iid, ranks, ratio_order
from draftlab.core.verify.single import SMALLEST, accept_probs
from draftlab.core.verify.survivors import Order, Position
from draftlab.core.verify.token import Acceptance, Decision, Rows, TokenVerifier

LARGE = 1 << 13
"""Tables of more entries are cut to the few dozen tokens of a row whose keys move (``_moved``); for smaller ones that takes longer than it saves."""


@dataclass(frozen=True)
class _Tournament:
    """Who wins, and what the winner's token is distributed as, in ratio order."""

    order: Int64[Tensor, "batch vocab"]
    target: Table
    selected: Table
    rank: Tokens
    chosen: Float64[Tensor, "batch drafts"]


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    won = _tournament(target_probs, draft_probs[:, 0], tokens)
    chance = accept_probs(won.target.gather(-1, won.rank), won.selected.gather(-1, won.rank))

    def residual(rows: Rows) -> Float64[Tensor, "rows vocab"]:
        left = (won.target[rows] - won.selected[rows]).clamp_min_(0)
        return torch.empty_like(left).scatter_(-1, won.order[rows], left)

    return Decision(won.chosen * chance, residual)


def select_by_key(
    target_probs: Table, draft_probs: Table, tokens: Tokens
) -> tuple[Float64[Tensor, "batch drafts"], Table]:
    """The probability that each draft wins the tournament, and the distribution of the winner's token."""
    won = _tournament(target_probs, draft_probs, tokens)
    return won.chosen, torch.empty_like(won.selected).scatter_(-1, won.order, won.selected)


def _tournament(target_probs: Table, draft_probs: Table, tokens: Tokens) -> _Tournament:
    num_drafts = tokens.shape[1]
    order = ratio_order(target_probs, draft_probs)
    target, draft = target_probs.gather(-1, order), draft_probs.gather(-1, order)
    mass = draft.cumsum(-1)
    excess = math.prod([mass] * num_drafts) - target.cumsum(-1)
    peak = _peak(excess)
    selected, rank = _selected_from(target, peak), ranks(order).gather(-1, tokens)
    place, own, upper, wanted = rank, draft, mass, selected
    if draft.numel() > LARGE and (moved := _moved(excess, peak, rank)) is not None:
        columns, place = moved
        own, upper, wanted = (table.gather(-1, columns) for table in (draft, mass, selected))
    win = _win(upper, upper - own, num_drafts)
    gain = wanted.addcmul(own, win, value=-1)
    return _Tournament(order, target, selected, rank, _largest_key(_key_distribution(own, win, gain, place)))


def _moved(excess: Table, peak: Table, rank: Tokens) -> tuple[Int64[Tensor, "batch columns"], Tokens] | None:
    """The places of the tokens with a key that moves and of the drafted ones, and where among them the drafted ones stand; None if they are most
    tokens. A row with fewer ends with copies of its last token: what they want or have comes after everything that is matched.

    Where the running maximum is the excess itself, before a token and after it, ``r_l = P_l^K - P_{l-1}^K = p_l phi_l``: the token wants just
    what a key in its own interval gives. After top-p or top-k this holds for nearly all of a large vocabulary.
    """
    leaves = peak != excess
    mask = leaves.clone()
    mask[:, 1:].logical_or_(leaves[:, :-1])
    mask.scatter_(-1, rank, True)
    count = mask.cumsum(-1)
    width = int(count[:, -1].max())
    if 2 * width > count.shape[1]:
        return None
    number = torch.arange(1, width + 1, device=rank.device).expand(len(count), -1).contiguous()
    columns = torch.searchsorted(count, number).clamp_max_(count.shape[1] - 1)
    return columns, count.gather(-1, rank) - 1


def _peak(excess: Table) -> Table:
    """Running maximum from the left (from 0) up to the overall maximum, from the right after it: the smaller of the two."""
    return excess.cummax(-1).values.clamp_min_(0).minimum(excess.flip(-1).cummax(-1).values.flip(-1))


def _selected_from(target: Table, peak: Table) -> Table:
    """The distribution of the selected token, ``r_l = q_l + M_l - M_{l-1}``."""
    selected = target + peak
    selected[:, 1:].sub_(peak[:, :-1])
    return selected.clamp_min_(0)


def _selected(target: Table, draft: Table, num_drafts: int) -> tuple[Table, Table]:
    """The distribution of the selected token, in ratio order, and how often a key in each token's own interval wins."""
    mass = draft.cumsum(-1)
    selected = _selected_from(target, _peak(mass**num_drafts - target.cumsum(-1)))
    return selected, _win(mass, mass - draft, num_drafts)


def _win(upper: Table, lower: Table, num_drafts: int) -> Table:
    """``phi_l = sum_i P_l^i P_{l-1}^(K-1-i)``: with a key in the l-th interval a draft is selected ``p_l phi_l`` of the time."""
    if num_drafts == 1:
        return torch.ones_like(upper)
    total, power = upper + lower, lower
    for _ in range(num_drafts - 2):
        power = power * lower
        total = total * upper + power
    return total


def _key_distribution(draft: Table, win: Table, gain: Table, rank: Tokens) -> Tables:
    """Probability that the key of each drafted token lies in each token's interval.

    A token that wants more (``gain > 0``) swaps key mass ``x_ij / (phi_j - phi_i)`` with one that has excess; the ``x_ij`` match the
    cumulative wants with the cumulative excesses, first come first served. All keys together stay uniform on [0, 1].
    """
    wants, excesses = pad(torch.stack([gain, -gain], 1).clamp_min_(0).cumsum(-1), (1, 0)).unbind(1)
    change, own, phi, wanted, exceeded = (
        table.gather(-1, rank)[..., None] for table in (gain, draft, win, wants, excesses)
    )
    # Length that the token's interval on its own cumulative scale shares with every token's interval on the other scale.
    more = change > 0
    lower = torch.where(more, wanted, exceeded)
    others = torch.where(more, excesses[:, None], wants[:, None])
    matched = others.clamp(lower, lower + change.abs()).diff(dim=-1)
    # Where phi_i and phi_j nearly agree the quotient is rounding: a swap moves no more than the lighter token has, all of them no more
    # than the token has.
    swapped = matched.div_((win[:, None] - phi).abs_().clamp_min_(SMALLEST)).minimum(draft[:, None]).div_(own)
    total = swapped.sum(-1, keepdim=True)
    return swapped.div_(total.clamp_min(1)).scatter_add_(-1, rank[..., None], (1 - total).clamp_min_(0))


def _largest_key(key_distribution: Tables) -> Float64[Tensor, "batch drafts"]:
    """Probability that each draft has the largest key: ``sum_l W_k(l) E prod_{j != k} (F_j(l) + W_j(l) v)``, ``v`` uniform.

    The mean over ``v`` of that polynomial of degree K - 1 is a Gauss-Legendre sum, exact with ``ceil(K / 2)`` nodes.
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
    """For each factor the product of all others, without a division; nothing for one alone."""
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
    """y is selected and accepted; at the optimum a residual token is never a draft."""
    selected, chance = key_survivors(position, order)
    return selected * chance


def key_survivors(
    position: Position, order: Order
) -> tuple[Float64[Tensor, "positions drafts+1"], Float64[Tensor, "positions 1"]]:
    """m of k drafts are y and one of them has the largest key, by m, and the chance that y is then accepted.

    The first is ``binom(k, m) int (u - G)^(k-m) d(G^m)``, ``G(u) = P(draft y, key <= u)``. All drafts' keys together are uniform, so another draft's key is below u with probability ``u - G(u)``. G is linear on each token's
    interval, and the integral a Gauss-Legendre sum.
    """
    num_drafts, token = len(order), position.token[:, None]
    places, target, draft = position.cached("order", lambda: in_order(position))
    rank = position.cached("rank", lambda: ranks(places).gather(-1, token))
    selected, win = _selected(target, draft, num_drafts)
    key = _key_distribution(draft, win, selected.addcmul(draft, win, value=-1), rank)[:, 0]
    own = draft.gather(-1, rank)
    mine = (key * own).where(own > 0, 0.0)
    begin, others = mine.cumsum(-1) - mine, draft - mine
    below = others.cumsum(-1) - others
    joint = position.target.new_zeros(len(token), num_drafts + 1)
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


def in_order(position: Position) -> tuple[Int64[Tensor, "positions vocab"], Tensor, Tensor]:
    """Tokens in ratio order, and both distributions in it."""
    order = ratio_order(position.target, position.groups[0])
    return order, position.target.gather(-1, order), position.groups[0].gather(-1, order)


optimal = TokenVerifier("optimal", "iid", _decide, _acceptance, survivors=_survivors)
"""The best acceptance that K i.i.d. drafts allow, without a linear program.

Each draft gets a random key, uniform over all drafts; the largest is selected. Which keys a token uses is set so that the selected
token follows the distribution ``r_l = q_l + M_l - M_{l-1}`` (``M``: running maximum of ``P^K - Q`` in ratio order) that the optimum needs.
"""
