"""Rounds of rejection, with replacement (SpecInfer) or without (RRS): each draft is tested against what its predecessors left of the target."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.joint import MOST_TUPLES, distinct_tuples, remaining_probs
from draftlab.core.verify.single import SMALLEST, accept_probs, reject_residual
from draftlab.core.verify.survivors import Order, Position, add_draft, add_unseen, scale, sum_tables
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def _rounds(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    """Accept ``x_k`` with ``min(1, q_{k-1} / p_k)``; on rejection ``q_k`` is ``(q_{k-1} - p_k)_+`` normalised."""
    left, rejected, accept = target_probs, torch.ones_like(target_probs[:, 0]), []
    for k, draft in enumerate(draft_probs.unbind(1)):
        if k:
            left = reject_residual(left, draft_probs[:, k - 1])
        drawn = tokens[:, k : k + 1]
        chance = accept_probs(left.gather(-1, drawn), draft.gather(-1, drawn))[:, 0]
        accept.append(rejected * chance)
        rejected = rejected * (1 - chance)
    return Decision(torch.stack(accept, -1), lambda rows: (left[rows] - draft_probs[rows, -1]).clamp_min(0))


def _decide_rrs(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    return _rounds(target_probs, remaining_probs(draft_probs, tokens), tokens)


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``proc = 1 - prod_k (1 - alpha_k)``. No rejected draft is y with ``prod_k (1 - (p_k - q_{k-1})_+(y) / (1 - alpha_k))``."""
    left, absent, rejected = target_probs, torch.ones_like(target_probs), torch.ones_like(target_probs[:, :1])
    for draft in draft_probs.unbind(1):
        chance = left.minimum(draft).sum(-1, keepdim=True)
        # A rejected draft follows (p - q)_+ normalised: the residual with the two distributions swapped.
        absent = absent * (1 - reject_residual(draft, left))
        left = reject_residual(left, draft)
        rejected = rejected * (1 - chance).clamp_min(0)
    proc = 1 - rejected[:, 0]
    return Acceptance(proc, proc + rejected[:, 0] * (left * (1 - absent)).sum(-1))


def _survivors(position: Position, order: Order) -> Tensor:
    """``sum_j prod_(i<j) (n_i + e_i z) c_j z prod_(i>j) (1 - p_i + p_i z) + prod_i (n_i + e_i z) q_K(y)``; the power of z counts survivors.

    In round j the draft is y and accepted with ``c = min(q_(j-1), p_j)(y)``, y and rejected with ``e = (p_j - q_(j-1))_+(y)``, and another
    token and rejected with n.
    """
    left, rejected, accepted = position.target, position.start(), []
    for j, group in enumerate(order):
        c, n, e, left = position.cached(order[: j + 1], partial(_round, position, order[: j + 1]))
        accepted.append(add_unseen(position, add_draft(rejected, group, torch.zeros_like(c), c), order[j + 1 :]))
        rejected = add_draft(rejected, group, n, e)
    return sum_tables([*accepted, scale(rejected, position.at(left))])


def _round(position: Position, order: Order) -> tuple[Tensor, Tensor, Tensor, Table]:
    """c, n and e of the last round of ``order``, and what it leaves of the target."""
    left = position.target if len(order) == 1 else position.memo[order[:-1]][-1]
    draft = position.groups[order[-1]]
    shared = left.minimum(draft)
    c = position.at(shared)
    e = position.at(draft) - c
    return c, (1 - shared.sum(-1) - e).clamp_min(0), e, reject_residual(left, draft)


def _distinct_survivors(position: Position, order: Order) -> Tensor:
    """At most one draft is y. Of two drafts it is the first, ``min(q, p)``, or the second, after any other rejected token; more are enumerated."""
    target, draft = position.target, position.groups[order[0]]
    if len(order) > 2:
        most = int((draft > 0).sum(-1).max())
        if math.perm(most, min(len(order), most)) > MOST_TUPLES:
            return rrs.enumerated_survivors(position, order)
        member = torch.zeros_like(target[:, 0])
        for part, tokens, distributions, chance in distinct_tuples(draft, len(order)):
            at = part.repeat_interleave(len(tokens) // len(part))
            y = position.token[at, None]
            emitted = rrs.distribution(target[at], distributions, tokens).gather(-1, y)[:, 0] * (tokens == y).any(-1)
            member[part] = (emitted * chance).view(len(part), -1).sum(-1)
        return add_draft(position.start(), order[0], torch.zeros_like(member), member)
    at_draft = position.at(draft)
    member = position.at(target).minimum(at_draft)
    if len(order) == 2:
        left = position.at(reject_residual(target, draft))[:, None]
        # The mass of the other tokens is summed: 1 - p loses all digits on a peaked distribution.
        before, after = (pad(table.cumsum(-1)[:, :-1], (1, 0)) for table in (draft, draft.flip(-1)))
        again = at_draft[:, None] / (before + after.flip(-1)).clamp_min(SMALLEST)
        others = (draft - target).clamp_min(0).scatter(-1, position.token[:, None], 0.0)
        member = member + (others * left.minimum(again)).sum(-1)
    return add_draft(position.start(), order[0], torch.zeros_like(member), member)


specinfer = TokenVerifier("specinfer", "independent", _rounds, _acceptance, survivors=_survivors)
"""Multi-round rejection over drafts with replacement, from one distribution or several, in the given order (SpecInfer: Miao et al. 2024, Alg. 2).

Accept ``x_k`` with ``min(1, q_{k-1} / p_k)``; after a rejection ``q_k`` is ``(q_{k-1} - p_k)_+`` normalised.
"""

rrs = TokenVerifier("rrs", "without_replacement", _decide_rrs, survivors=_distinct_survivors)
"""The same over drafts without replacement, ``p_k`` being what is left of the draft's distribution (RSD: Jeon et al. 2024).

Its acceptance has no closed form and is enumerated.
"""
