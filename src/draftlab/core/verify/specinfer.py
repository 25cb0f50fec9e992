"""Rounds of rejection: each draft is tried against what the ones before it left of the target."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.verify.single import accept_probs, reject_residual
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def _rounds(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
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


def remaining_probs(
    draft_probs: Float64[Tensor, "batch drafts vocab"], tokens: Int64[Tensor, "batch drafts"]
) -> Float64[Tensor, "batch drafts vocab"]:
    """The distribution that draft k was drawn from without replacement: ``p`` without ``x_1..x_{k-1}``, the remaining terms summed again."""
    rest = draft_probs.clone()
    for k in range(1, tokens.shape[1]):
        rest[:, k:].scatter_(-1, tokens[:, k - 1, None, None].expand(-1, tokens.shape[1] - k, 1), 0.0)
    total = rest.sum(-1, keepdim=True)
    return rest / total.where(total > 0, 1.0)


def _decide_rrs(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    return _rounds(target_probs, remaining_probs(draft_probs, tokens), tokens)


def _acceptance(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> Acceptance:
    """``proc = 1 - prod_k (1 - alpha_k)``; a token is absent from the rejected drafts with ``prod_k (1 - (p_k - q_{k-1})_+ / (1 - alpha_k))``."""
    left, absent, rejected = target_probs, torch.ones_like(target_probs), torch.ones_like(target_probs[:, :1])
    for draft in draft_probs.unbind(1):
        chance = left.minimum(draft).sum(-1, keepdim=True)
        # The rejected draft follows (p - q)_+ normalised: again the residual, with the two distributions swapped.
        absent = absent * (1 - reject_residual(draft, left))
        left = reject_residual(left, draft)
        rejected = rejected * (1 - chance).clamp_min(0)
    proc = 1 - rejected[:, 0]
    return Acceptance(proc, proc + rejected[:, 0] * (left * (1 - absent)).sum(-1))


specinfer = TokenVerifier("specinfer", "independent", _rounds, _acceptance)
"""Multi-round rejection over drafts with replacement, from one distribution or several (SpecInfer: Miao et al. 2024, Alg. 2), in the given order."""

rrs = TokenVerifier("rrs", "without_replacement", _decide_rrs)
"""Recursive rejection over drafts without replacement (RSD: Jeon et al. 2024); acceptance by enumeration only."""
