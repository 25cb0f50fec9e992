"""SpecInfer, rounds of rejection: each draft is tested against what its predecessors left of the target. ``rrs`` is the same without replacement."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.single import accept_probs, reject_residual
from draftlab.core.verify.survivors import Order, Position, add_draft, add_unseen, scale, sum_tables
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def rounds(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
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


specinfer = TokenVerifier("specinfer", "independent", rounds, _acceptance, survivors=_survivors)
"""Multi-round rejection over drafts with replacement, from one distribution or several, in the given order (SpecInfer: Miao et al. 2024, Alg. 2).

Accept ``x_k`` with ``min(1, q_{k-1} / p_k)``; after a rejection ``q_k`` is ``(q_{k-1} - p_k)_+`` normalised.
"""
