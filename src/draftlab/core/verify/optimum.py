"""The best acceptance of any lossless verifier: by one sort for i.i.d. drafts, by a linear program for any drafts.

``alpha* = min_H 1 + q(H) - g(H)`` over sets of tokens H, where ``g(H)`` is the probability that all drafts lie in H (Hu et al. 2025; Khisti
et al. 2025, Theorem 3). It is the minimum cut of a flow from drafted sets to tokens, so it holds for any number of drafts with any joint
distribution (``docs/theory.md``, sections 1 to 3). The verifier that attains it for i.i.d. drafts is in ``optimal``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

from draftlab.core.sampling import Table
from draftlab.core.verify.joint import JointDistribution


def argsort(values: Table) -> Int64[Tensor, "batch vocab"]:
    """Ascending order of each row, NaN last.

    On a CPU numpy's vectorised sort is used, which is six times as fast as torch's at 128k tokens.
    """
    if values.device.type == "cpu":
        return torch.from_numpy(np.argsort(values.detach().numpy(), -1))
    # A GPU's 0 / 0 is a negative NaN, which its sort puts first.
    return values.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf).argsort(-1)


def ranks(order: Int64[Tensor, "batch vocab"]) -> Int64[Tensor, "batch vocab"]:
    """The rank of each token in a full order."""
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )


def ratio_order(target_probs: Table, draft_probs: Table) -> Int64[Tensor, "batch vocab"]:
    """Tokens in ascending order of ``q/p``; tokens that the draft cannot produce come last."""
    return argsort(target_probs / draft_probs)  # x / 0 is infinite, 0 / 0 NaN, and both sort last


def optimum_iid(target_probs: Table, draft_probs: Table, num_drafts: int) -> Float64[Tensor, " batch"]:
    """The best acceptance of K i.i.d. drafts, ``min_H 1 + q(H) - p(H)^K`` (Khisti et al. 2025, Theorem 3; Hu et al. 2025), by one sort.

    Since ``m^K`` is convex, a prefix of the ratio order attains the minimum: ``1 - max_l (P_l^K - Q_l)``, with prefix sums P and Q. Gradients
    flow to both distributions, so ``1 - optimum_iid`` is a loss; for one draft it is the total variation.

    **Arguments:**
    - `target_probs`: the target's distribution, shape `(batch, vocab)`, float64.
    - `draft_probs`: the draft's distribution, same shape.
    - `num_drafts`: how many tokens are drafted (K), at least 1.

    **Returns:** acceptance in [0, 1], shape `(batch,)`.

    >>> target, draft = torch.tensor([[0.5, 0.5]]).double(), torch.tensor([[0.9, 0.1]]).double()
    >>> optimum_iid(target, draft, num_drafts=2)
    tensor([0.6900], dtype=torch.float64)
    """
    order = ratio_order(target_probs, draft_probs)
    mass = draft_probs.gather(-1, order).cumsum(-1)
    excess = mass**num_drafts - target_probs.gather(-1, order).cumsum(-1)
    return 1 - excess.amax(-1).clamp(0, 1)  # the sum of p may round above 1


@dataclass(frozen=True)
class Coupling:
    """The probability that each draft of each tuple is selected, and the distribution of the selected token."""

    chosen: Float64[Tensor, "tuples drafts"]
    selected: Float64[Tensor, " vocab"]


def optimal_coupling(target_probs: Float64[Tensor, " vocab"], joint: JointDistribution) -> Coupling:
    """Select drafts so that ``sum min(q, r)`` is largest, r the selected token's distribution (Khisti et al. 2025, Theorem 1).

    Solves the flow from drafted sets to tokens, ``max sum f``, ``sum_y f_Sy <= m_S``, ``sum_S f_Sy <= q_y``, by scipy's HiGHS. ``r`` is
    recomputed from the clipped solution, so a verifier that uses it is lossless whatever the solver's tolerance (1e-7).
    """
    tokens = np.sort(joint.tokens.numpy(), -1)
    tokens[:, 1:][tokens[:, 1:] == tokens[:, :-1]] = -1
    sets, which = np.unique(np.sort(tokens, -1), axis=0, return_inverse=True)
    mass = np.bincount(which.ravel(), joint.probs.numpy())
    row, column = np.nonzero(sets >= 0)
    token = sets[row, column]
    variables = np.arange(len(row))
    limits = coo_array((np.ones(2 * len(row)), (np.r_[row, len(sets) + token], np.r_[variables, variables]))).tocsr()
    target = target_probs.numpy()
    solved = linprog(  # type: ignore[call-overload]  # the stubs leave out sparse matrices
        -np.ones(len(row)), A_ub=limits, b_ub=np.r_[mass, target[: token.max() + 1]], method="highs"
    )
    if solved.x is None:
        raise RuntimeError(f"HiGHS found no solution: {solved.message}")
    flow = np.zeros(sets.shape)
    flow[row, column] = np.clip(solved.x, 0, None)
    # The mass of a set that the flow leaves is divided equally among its members; then normalise, for a distribution on each set.
    members = sets >= 0
    flow += members * ((mass - flow.sum(-1)).clip(0) / members.sum(-1))[:, None]
    total = flow.sum(-1, keepdims=True)
    share = np.where(total > 0, flow, members) / np.where(total > 0, total, members.sum(-1, keepdims=True))
    of_tuple = which.ravel()
    same = joint.tokens.numpy()[:, :, None] == sets[of_tuple][:, None, :]
    chosen = torch.from_numpy((same * (share[of_tuple] / np.maximum(same.sum(1), 1))[:, None, :]).sum(-1))
    mass_of_draft = (chosen * joint.probs[:, None]).flatten()
    return Coupling(chosen, torch.zeros_like(target_probs).index_add_(0, joint.tokens.flatten(), mass_of_draft))


def optimum_by_lp(target_probs: Float64[Tensor, " vocab"], joint: JointDistribution) -> float:
    """The best acceptance for any joint distribution of the drafts, ``sum min(q, r)`` by the linear program (Khisti et al. 2025, Theorem 1).

    Accurate to 1e-6, the solver's tolerance.

    **Arguments:**
    - `target_probs`: the target's distribution, shape `(vocab,)`, float64.
    - `joint`: every tuple of drafted tokens with its probability, from `joint_distribution`.

    **Returns:** acceptance in [0, 1].

    >>> from draftlab.core.verify.joint import joint_distribution
    >>> target, draft = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.9, 0.1]).double()
    >>> round(optimum_by_lp(target, joint_distribution(draft.expand(2, -1), "iid")), 3)
    0.69
    """
    return float(target_probs.minimum(optimal_coupling(target_probs, joint).selected).sum())
