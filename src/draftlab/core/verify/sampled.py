"""Sampled verification: the target draws its own token and checks whether it was drafted."""

from __future__ import annotations

from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.verify.survivors import Order, Position, free, scale
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def _decide(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    times = (tokens[:, :, None] == tokens[:, None, :]).sum(-1)
    accept = target_probs.gather(-1, tokens) / times
    return Decision(accept, lambda rows: target_probs[rows].scatter(-1, tokens[rows], 0.0))


def _acceptance(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> Acceptance:
    """``sum q (1 - prod_k (1 - p_k))``."""
    found = (target_probs * (1 - (1 - draft_probs).prod(1))).sum(-1)
    return Acceptance(found, found)


def _survivors(position: Position, order: Order) -> Tensor:
    """The drafts have no say: they agree with the text by chance."""
    return scale(free(position, position.nobody(), order), position.at(position.target))


sampled = TokenVerifier("sampled", "independent", _decide, _acceptance, survivors=_survivors)
"""Emit a token of the target; it was drafted or not. The baseline: what agreement by chance accepts."""
