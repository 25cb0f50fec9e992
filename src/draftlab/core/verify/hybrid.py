"""The better of K-SEQ and truncated importance sampling at each position, chosen before the drafts are looked at."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.verify.k_seq import k_seq
from draftlab.core.verify.token import Acceptance, Decision, Rows, TokenVerifier
from draftlab.core.verify.truncated import importance_truncated


def _both(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> tuple[Acceptance, Acceptance]:
    """Acceptance of importance sampling and of K-SEQ: from the distributions alone, the drafts have no say, so the choice is lossless."""
    one, other = importance_truncated.closed_form, k_seq.closed_form
    assert one is not None
    assert other is not None
    return one(target_probs, draft_probs), other(target_probs, draft_probs)


def _decide(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    ours, its = _both(target_probs, draft_probs)
    first = ours.proc > its.proc
    one, other = (scheme.decide(target_probs, draft_probs, tokens) for scheme in (importance_truncated, k_seq))

    def residual(rows: Rows) -> Float64[Tensor, "rows vocab"]:
        return torch.where(first[rows][:, None], one.residual(rows), other.residual(rows))

    return Decision(torch.where(first[:, None], one.accept, other.accept), residual)


def _acceptance(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> Acceptance:
    """``proc``: the larger of the two; membership has no closed form where importance sampling is chosen."""
    one, other = _both(target_probs, draft_probs)
    return Acceptance(one.proc.maximum(other.proc), torch.where(one.proc > other.proc, torch.nan, other.member))


hybrid = TokenVerifier("hybrid", "iid", _decide, _acceptance)
"""K-SEQ or importance sampling with a linear program over 5 tokens, whichever accepts more for these distributions."""
