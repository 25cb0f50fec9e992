"""The verifier that reaches the best acceptance of K i.i.d. drafts: a tournament of random keys."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.verify.bound import excess_mass, optimum_iid, ratio_order
from draftlab.verify.canonical import select_then_verify
from draftlab.verify.token import Acceptance, Decision, TokenVerifier


def _decide(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    num_drafts = tokens.shape[1]
    order = ratio_order(target_probs, draft_probs[:, 0])
    target, draft = target_probs.gather(-1, order), draft_probs[:, 0].gather(-1, order)
    mass = draft.cumsum(-1)
    before = torch.nn.functional.pad(mass[:, :-1], (1, 0))
    excess = excess_mass(mass, target, num_drafts)
    # Running maximum from the left up to the overall maximum, from the right after it: the smaller of the two.
    peak = excess.cummax(-1).values.minimum(excess.flip(-1).cummax(-1).values.flip(-1))
    win = _win(mass, before, num_drafts)
    tight = peak == excess
    # Where the maximum is attained on both sides the law is the plain tournament's, exactly: no swap out of rounding.
    gain = (target + peak.diff(dim=-1) - draft * win).masked_fill(tight[:, 1:] & tight[:, :-1], 0.0)
    selected = torch.zeros_like(target).scatter_(-1, order, (draft * win + gain).clamp_min(0))
    rank = torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )
    chosen = _largest_key(_key_law(draft, win, gain, rank.gather(-1, tokens)))
    return select_then_verify(target_probs, selected, chosen, tokens)


def _win(mass: Float64[Tensor, "batch vocab"], before: Float64[Tensor, "batch vocab"], num_drafts: int) -> Tensor:
    """``phi_l = sum_i P_l^i P_{l-1}^(K-1-i)``: with a key in the l-th interval a draft is selected ``p_l phi_l`` of the time."""
    total, power = torch.ones_like(mass), torch.ones_like(mass)
    for _ in range(num_drafts - 1):
        power = power * before
        total = total * mass + power
    return total


def _key_law(
    draft: Float64[Tensor, "batch vocab"],
    win: Float64[Tensor, "batch vocab"],
    gain: Float64[Tensor, "batch vocab"],
    rank: Int64[Tensor, "batch drafts"],
) -> Float64[Tensor, "batch drafts vocab"]:
    """Probability that the key of each drafted token lies in each token's interval.

    A token that wants more (``gain > 0``) swaps key mass ``x_ij / (phi_j - phi_i)`` with one that has excess; the ``x_ij`` match the
    cumulative wants with the cumulative excesses, first come first served. All keys together stay uniform on [0, 1].
    """
    wanted, spare = gain.clamp_min(0).cumsum(-1), (-gain).clamp_min(0).cumsum(-1)

    def overlap(mine: Tensor, others: Tensor) -> Tensor:
        upper = mine.gather(-1, rank)[..., None]
        lower = mine.gather(-1, (rank - 1).clamp_min(0)).masked_fill(rank == 0, 0.0)[..., None]
        start = torch.nn.functional.pad(others[:, :-1], (1, 0))[:, None]
        return (others[:, None].minimum(upper) - start.maximum(lower)).clamp_min(0)

    rise = win[:, None] - win.gather(-1, rank)[..., None]
    matched = overlap(wanted, spare).where(rise > 0, 0.0) + overlap(spare, wanted).where(rise < 0, 0.0)
    swapped = matched / rise.abs().where(matched > 0, 1.0) / draft.gather(-1, rank)[..., None]
    total = swapped.sum(-1, keepdim=True)
    swapped = swapped / total.clamp_min(1)  # rounding alone lifts the total above 1, where phi_i and phi_j nearly agree
    return swapped.scatter_add(-1, rank[..., None], (1 - total).clamp_min(0))


def _largest_key(key_law: Float64[Tensor, "batch drafts vocab"]) -> Float64[Tensor, "batch drafts"]:
    """Probability that each draft has the largest key: ``sum_l W_k(l) E prod_{j != k} (F_j(l) + W_j(l) v)``, ``v`` uniform.

    The mean over ``v`` of that polynomial of degree K - 1 is a Gauss-Legendre sum, exact with ``ceil(K / 2)`` nodes.
    """
    num_drafts = key_law.shape[1]
    nodes, weights = np.polynomial.legendre.leggauss((num_drafts + 1) // 2)
    below = key_law.cumsum(-1) - key_law
    chosen = torch.zeros_like(key_law[..., 0])
    for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        smaller = below + node * key_law
        for k in range(num_drafts):
            others = [j for j in range(num_drafts) if j != k]
            chosen[:, k] += weight * (key_law[:, k] * smaller[:, others].prod(1)).sum(-1)
    return chosen


def _acceptance(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> Acceptance:
    best = optimum_iid(target_probs, draft_probs[:, 0], draft_probs.shape[1])
    return Acceptance(best, best)


optimal = TokenVerifier("optimal", "iid", _decide, _acceptance)
"""The best acceptance that K i.i.d. drafts allow, without a linear program.

Each draft gets a random key, uniform over all drafts; the largest is selected. Which keys a token uses is set so that the selected
token follows the law ``r_l = q_l + M_l - M_{l-1}`` (``M``: running maximum of ``P^K - Q`` in ratio order) that the optimum needs.
"""
