"""Block verification: a path is judged as a whole, so that a good late token can save a weak early one."""

from __future__ import annotations

import torch

from draftlab.core.verify.path import DraftPath, PathDecision, PathTokens, PathVerifier, TargetPath


def _decide(target_probs: TargetPath, draft_probs: DraftPath, tokens: PathTokens) -> PathDecision:
    target_at, draft_at = (probs.gather(-1, tokens[..., None])[..., 0] for probs in (target_probs[:, :-1], draft_probs))
    ratio = target_at / draft_at.where(draft_at > 0, 1.0)
    weights = [torch.ones_like(ratio[:, 0])]
    for i in range(tokens.shape[1]):
        weights.append((weights[-1] * ratio[:, i]).clamp_max(1))
    weight = torch.stack(weights, -1)
    excess = (weight[:, :-1, None] * target_probs[:, :-1] - draft_probs).clamp_min(0).sum(-1)
    total = excess + (1 - weight[:, :-1])  # (excess + 1) - w would round a small excess away
    # 0 / 0 means that w_i = 1 and that both next distributions agree. The next token is then kept too, so the path never ends here.
    keep = torch.cat([(excess / total).where(total > 0, 1.0), weight[:, -1:]], -1)
    later = torch.cat([(1 - keep[:, 1:]).flip(-1).cumprod(-1).flip(-1), torch.ones_like(keep[:, :1])], -1)
    return PathDecision(keep * later, weight)


block = PathVerifier("block", _decide)
"""Block verification of one path of L tokens (Sun et al. 2025, Alg. 2); it keeps at least as many tokens on average as ``single_path``.

With ``w_0 = 1`` and ``w_i = min(1, w_{i-1} q/p)``, it keeps the largest i with ``U_i <= h_i``, where ``U_i`` is uniform,
``h_i = S_i / (S_i + 1 - w_i)`` with ``S_i = sum (w_i q - p)_+``, and ``h_L = w_L``. The next token follows ``(w_i q - p)_+``.
"""
