"""The best acceptance computed independently of the package: over all sets of tokens, and by the ratio order without replacement."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from draftlab.core.sampling import check_support
from draftlab.core.verify.joint import JointDistribution, joint_distribution
from draftlab.core.verify.optimum import optimum_iid, ratio_order


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
        odds = draft / (before + after)  # the other terms are summed: 1 - p has no digits left on a peaked distribution
        inside = draft * torch.nn.functional.pad(odds.cumsum(-1)[:-1], (1, 0)) + odds * before
    else:
        joint = joint_distribution(draft.expand(num_drafts, -1), "without_replacement")
        inside = torch.zeros_like(draft).index_add_(0, joint.tokens.amax(-1), joint.probs)
    drop = torch.nn.functional.pad(inside.cumsum(-1) - target_probs[order].cumsum(-1), (1, 0))
    return 1 - float(drop.max())


def optimum_by_subsets(target_probs: Float64[Tensor, " vocab"], joint: JointDistribution) -> float:
    """``min_H 1 + q(H) - g(H)`` over all ``2^vocab`` sets H, for any joint distribution of the drafts; up to 20 tokens."""
    vocab = len(target_probs)
    bits = 1 << torch.arange(vocab)
    drafted = torch.zeros(len(joint.probs), dtype=torch.int64)
    for k in range(joint.tokens.shape[1]):
        drafted |= bits[joint.tokens[:, k]]
    inside = torch.zeros(2**vocab, dtype=torch.float64).index_add_(0, drafted, joint.probs).view((2,) * vocab)
    wanted = torch.zeros(2**vocab, dtype=torch.float64).index_add_(0, bits, target_probs).view((2,) * vocab)
    for axis in range(vocab):  # sums over all subsets, one token at a time
        inside, wanted = inside.cumsum(axis), wanted.cumsum(axis)
    return 1 + float((wanted - inside).min())
