"""Block verification: a path is judged as a whole, so a good late token can save a weak early one."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.verify.path import PathDecision, PathVerifier


def _decide(
    target_probs: Float64[Tensor, "batch positions vocab"],
    draft_probs: Float64[Tensor, "batch path vocab"],
    tokens: Int64[Tensor, "batch path"],
) -> PathDecision:
    target_at, draft_at = (
        distribution.gather(-1, tokens[..., None])[..., 0] for distribution in (target_probs[:, :-1], draft_probs)
    )
    ratio = target_at / draft_at.where(draft_at > 0, 1.0)
    weights = [torch.ones_like(ratio[:, 0])]
    for i in range(tokens.shape[1]):
        weights.append((weights[-1] * ratio[:, i]).clamp_max(1))
    weight = torch.stack(weights, -1)
    excess = (weight[:, :-1, None] * target_probs[:, :-1] - draft_probs).clamp_min(0).sum(-1)
    total = excess + 1 - weight[:, :-1]
    # 0/0: everything so far stands and the next distributions agree, so the path goes on and this stop is never the last.
    stands = torch.cat([(excess / total).where(total > 0, 1.0), weight[:, -1:]], -1)
    later = torch.cat([(1 - stands[:, 1:]).flip(-1).cumprod(-1).flip(-1), torch.ones_like(stands[:, :1])], -1)
    return PathDecision(stands * later, weight)


block = PathVerifier("block", _decide)
"""Block verification (Sun et al. 2025, Alg. 2): ``w_i = min(1, w_{i-1} q/p)``; i tokens stand for the last i with ``U_i <= h_i``,
``h_i = sum (w_i q - p)_+ / (sum (w_i q - p)_+ + 1 - w_i)``, ``h_L = w_L``. It never keeps fewer tokens on average than token by token.

It works on a path of L tokens, not on K drafts of one position.
"""
