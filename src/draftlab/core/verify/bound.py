"""The best acceptance that any lossless verifier can have, for i.i.d. drafts by one sort, for any drafts by subsets or a linear program.

``alpha* = min_H 1 + q(H) - g(H)`` over sets of tokens H, ``g(H)`` the probability that all drafts lie in H (Hu et al. 2025; Khisti et
al. 2025, Theorem 3). It is the minimum cut of the flow from drafted sets to tokens, so it holds for any number of drafts and any joint distribution.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from scipy.optimize import linprog
from scipy.sparse import coo_array
from torch import Tensor

from draftlab.core.sampling import check_support
from draftlab.core.verify.joint import JointDistribution, joint_distribution
from draftlab.errors import UserError

SUBSET_LIMIT = 20
"""The most tokens whose subsets are all tried."""


def argsort(values: Float64[Tensor, "batch vocab"]) -> Int64[Tensor, "batch vocab"]:
    """Ascending order of each row; on a CPU numpy's vectorised sort, six times torch's at 128k tokens."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.argsort(values.numpy(), -1))
    return values.argsort(-1)


def ranks(order: Int64[Tensor, "batch vocab"]) -> Int64[Tensor, "batch vocab"]:
    """The place of each token in a full order."""
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
    )


def ratio_order(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch vocab"]
) -> Int64[Tensor, "batch vocab"]:
    """Tokens by ``q/p`` ascending, those the draft cannot produce last."""
    return argsort(target_probs / draft_probs)  # x / 0 is infinite, 0 / 0 NaN, and both sort last


def optimum_iid(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch vocab"], num_drafts: int
) -> Float64[Tensor, " batch"]:
    """The best acceptance of K i.i.d. drafts, ``min_H 1 + q(H) - p(H)^K`` (Khisti et al. 2025, Theorem 3; Hu et al. 2025), by one sort.

    A prefix of the ratio order attains the minimum, since ``m^K`` is convex: ``1 - max_l P_l^K - Q_l``.
    """
    order = ratio_order(target_probs, draft_probs)
    mass = draft_probs.gather(-1, order).cumsum(-1)
    excess = mass**num_drafts - target_probs.gather(-1, order).cumsum(-1)
    return 1 - excess.amax(-1).clamp_min(0)


def accepts_always(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch vocab"], num_drafts: int
) -> Bool[Tensor, " batch"]:
    """Whether K i.i.d. drafts can always be accepted: ``q(H) >= p(H)^K`` for every H, to 1e-12 (Khisti et al. 2025, Theorem 2)."""
    return optimum_iid(target_probs, draft_probs, num_drafts) >= 1 - 1e-12


def optimum_without_replacement(
    target_probs: Float64[Tensor, " vocab"], draft_probs: Float64[Tensor, " vocab"], num_drafts: int
) -> float:
    """The best acceptance of K drafts without replacement, by the same prefixes of the ratio order (Hu et al. 2025).

    Two drafts at any vocabulary: the pairs whose later token is l have mass ``p_l sum_{a<l} p_a / (1 - p_a) + p_l / (1 - p_l) P_{l-1}``.
    More drafts by enumeration, so up to a million tuples.
    """
    check_support(draft_probs, num_drafts)
    order = ratio_order(target_probs[None], draft_probs[None])[0]
    draft = draft_probs[order]
    before = torch.nn.functional.pad(draft.cumsum(-1)[:-1], (1, 0))
    if num_drafts == 2:
        after = torch.nn.functional.pad(draft.flip(-1).cumsum(-1).flip(-1)[1:], (0, 1))
        odds = draft / (before + after)  # the other terms summed: 1 - p has no digits left on a peaked distribution
        inside = draft * torch.nn.functional.pad(odds.cumsum(-1)[:-1], (1, 0)) + odds * before
    else:
        joint = joint_distribution(draft.expand(num_drafts, -1), "without_replacement")
        inside = torch.zeros_like(draft).index_add_(0, joint.tokens.amax(-1), joint.probs)
    drop = torch.nn.functional.pad(inside.cumsum(-1) - target_probs[order].cumsum(-1), (1, 0))
    return 1 - float(drop.max())


def optimum_by_subsets(target_probs: Float64[Tensor, " vocab"], joint: JointDistribution) -> float:
    """``min_H 1 + q(H) - g(H)`` over all ``2^vocab`` sets H, for any joint distribution of the drafts; up to 20 tokens."""
    vocab = len(target_probs)
    if vocab > SUBSET_LIMIT:
        raise UserError(
            f"{vocab} tokens have 2^{vocab} subsets",
            remedy=f"at most {SUBSET_LIMIT}: use optimum_by_lp, or restrict first",
        )
    bits = 1 << torch.arange(vocab)
    drafted = torch.zeros(len(joint.probs), dtype=torch.int64)
    for k in range(joint.tokens.shape[1]):
        drafted |= bits[joint.tokens[:, k]]
    inside = torch.zeros(2**vocab, dtype=torch.float64).index_add_(0, drafted, joint.probs).view((2,) * vocab)
    wanted = torch.zeros(2**vocab, dtype=torch.float64).index_add_(0, bits, target_probs).view((2,) * vocab)
    for axis in range(vocab):  # sums over all subsets, one token at a time
        inside, wanted = inside.cumsum(axis), wanted.cumsum(axis)
    return 1 + float((wanted - inside).min())


@dataclass(frozen=True)
class Coupling:
    """How to select one draft of each tuple of a joint distribution, and the distribution of the selected token."""

    chosen: Float64[Tensor, "tuples drafts"]
    selected: Float64[Tensor, " vocab"]


def optimal_coupling(target_probs: Float64[Tensor, " vocab"], joint: JointDistribution) -> Coupling:
    """Select drafts so that ``sum min(q, r)`` is largest: a flow from drafted sets to tokens, ``max sum f``, ``sum_y f_Sy <= m_S``,
    ``sum_S f_Sy <= q_y`` (Khisti et al. 2025, Theorem 1), by scipy's HiGHS.

    ``r`` is recomputed from the clipped solution, so the verifier stays lossless whatever the solver's tolerance (1e-7).
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
    # What the flow leaves of a set's mass goes to its members alike, and the whole is normalised: a distribution on each set.
    members = sets >= 0
    flow += members * ((mass - flow.sum(-1)).clip(0) / members.sum(-1))[:, None]
    share = flow / flow.sum(-1, keepdims=True)
    of_tuple = which.ravel()
    same = joint.tokens.numpy()[:, :, None] == sets[of_tuple][:, None, :]
    chosen = (same * (share[of_tuple] / np.maximum(same.sum(1), 1))[:, None, :]).sum(-1)
    picked = torch.from_numpy(chosen)
    selected = torch.zeros_like(target_probs).index_add_(
        0, joint.tokens.flatten(), (picked * joint.probs[:, None]).flatten()
    )
    return Coupling(picked, selected)


def optimum_by_lp(target_probs: Float64[Tensor, " vocab"], joint: JointDistribution) -> float:
    """The best acceptance for any joint distribution of the drafts, ``sum min(q, r)`` at the linear program's solution; within 1e-6."""
    return float(target_probs.minimum(optimal_coupling(target_probs, joint).selected).sum())
