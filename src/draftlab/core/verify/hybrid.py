"""K-SEQ or truncated importance sampling, whichever accepts more before the residual draw; the choice does not depend on the drafts."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.k_seq import acceptance_at, decide_at, discount, factor_along, k_seq
from draftlab.core.verify.single import select_then_verify
from draftlab.core.verify.survivors import Order, Position
from draftlab.core.verify.token import Acceptance, Decision, Rows, TokenVerifier
from draftlab.core.verify.truncated import Truncation, select, selected_distribution, selection_along, survivors

PROGRAM = Truncation()
"""The linear program of importance sampling: over 5 tokens."""
TIE = 1e-12
"""If both accept as much, K-SEQ is chosen. Sums of equal rows of a batch may differ by rounding, and the choice must not."""


def _importance_is_better(target_probs: Table, selected: Table, other: Acceptance) -> Bool[Tensor, " batch"]:
    """Whether importance sampling accepts more. Only the distributions decide, not the drafts, so the choice between both is lossless."""
    return target_probs.minimum(selected).sum(-1) > other.proc + TIE


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    selected, chosen = select(PROGRAM, target_probs, draft_probs, tokens)
    factor = discount(target_probs, draft_probs[:, 0], tokens.shape[1])
    importance = _importance_is_better(target_probs, selected, acceptance_at(factor, target_probs, draft_probs))
    one = select_then_verify(target_probs, selected, chosen, tokens)
    other = decide_at(factor, target_probs, draft_probs, tokens)

    def residual(rows: Rows) -> Float64[Tensor, "rows vocab"]:
        return torch.where(importance[rows][:, None], one.residual(rows), other.residual(rows))

    return Decision(torch.where(importance[:, None], one.accept, other.accept), residual)


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``proc`` is the larger of both. ``member`` has no closed form where importance sampling is chosen."""
    assert k_seq.closed_form is not None
    selected = selected_distribution(PROGRAM, target_probs, draft_probs)
    other = k_seq.closed_form(target_probs, draft_probs)
    importance = _importance_is_better(target_probs, selected, other)
    proc = target_probs.minimum(selected).sum(-1).maximum(other.proc)
    return Acceptance(proc, torch.where(importance, torch.nan, other.member))


def _survivors(position: Position, order: Order) -> Tensor:
    """The survivors of the scheme that is chosen at each position for this number of drafts."""
    assert k_seq.survivors is not None
    one = survivors(PROGRAM, position, order)
    drafts = position.groups[0][:, None].expand(-1, len(order), -1)
    other = acceptance_at(factor_along(position, order), position.target, drafts)
    importance = _importance_is_better(position.target, selection_along(PROGRAM, position, order)[0], other)
    return torch.where(importance[:, None], one, k_seq.survivors(position, order))


hybrid = TokenVerifier("hybrid", "iid", _decide, _acceptance, survivors=_survivors)
"""K-SEQ, or importance sampling with a linear program over 5 tokens: whichever accepts more for the two distributions of a position, before
the residual draw."""
