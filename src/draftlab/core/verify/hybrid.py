"""The better of K-SEQ and truncated importance sampling at each position, chosen before looking at the drafts."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from draftlab.core.verify.canonical import select_then_verify
from draftlab.core.verify.k_seq import acceptance_at, decide_at, discount, factor_along, k_seq
from draftlab.core.verify.survivors import Order, Position
from draftlab.core.verify.token import Acceptance, Decision, Rows, TokenVerifier
from draftlab.core.verify.truncated import Truncation, select, survivors


def first_is_better(
    target_probs: Float64[Tensor, "batch vocab"],
    selected: Float64[Tensor, "batch vocab"],
    other: Acceptance,
) -> Bool[Tensor, " batch"]:
    """Whether importance sampling accepts more, judged by the distributions alone: the choice ignores the drafts, so it is lossless."""
    return target_probs.minimum(selected).sum(-1) > other.proc


def _decide(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    selected, chosen = select(Truncation(), target_probs, draft_probs, tokens)
    factor = discount(target_probs, draft_probs[:, 0], tokens.shape[1])
    first = first_is_better(target_probs, selected, acceptance_at(factor, target_probs, draft_probs))
    one = select_then_verify(target_probs, selected, chosen, tokens)
    other = decide_at(factor, target_probs, draft_probs, tokens)

    def residual(rows: Rows) -> Float64[Tensor, "rows vocab"]:
        return torch.where(first[rows][:, None], one.residual(rows), other.residual(rows))

    return Decision(torch.where(first[:, None], one.accept, other.accept), residual)


def _acceptance(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> Acceptance:
    """``proc``: the larger of the two; membership has no closed form where importance sampling is chosen."""
    tokens = torch.zeros(draft_probs.shape[:2], dtype=torch.int64, device=draft_probs.device)
    selected, _ = select(Truncation(), target_probs, draft_probs, tokens)
    assert k_seq.closed_form is not None
    other = k_seq.closed_form(target_probs, draft_probs)
    first = first_is_better(target_probs, selected, other)
    proc = target_probs.minimum(selected).sum(-1).maximum(other.proc)
    return Acceptance(proc, torch.where(first, torch.nan, other.member))


def _survivors(position: Position, order: Order) -> Tensor:
    """Those of the scheme that is chosen at each position for so many drafts."""
    assert k_seq.survivors is not None
    ours = survivors(Truncation(), position, order)
    drafts = position.groups[0][:, None].expand(-1, len(order), -1)
    other = acceptance_at(factor_along(position, order), position.target, drafts)
    first = first_is_better(position.target, position.memo[Truncation(), order][0], other)
    return torch.where(first[:, None], ours, k_seq.survivors(position, order))


hybrid = TokenVerifier("hybrid", "iid", _decide, _acceptance, survivors=_survivors)
"""K-SEQ or importance sampling with a linear program over 5 tokens, whichever accepts more for these distributions."""
