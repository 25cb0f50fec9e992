"""Sampled verification: the target draws its token without looking at the drafts, and may hit one of them."""

from __future__ import annotations

from torch import Tensor

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.survivors import Order, Position, add_unseen, scale
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    copies = (tokens[:, :, None] == tokens[:, None, :]).sum(-1)
    accept = target_probs.gather(-1, tokens) / copies
    return Decision(accept, lambda rows: target_probs[rows].scatter(-1, tokens[rows], 0.0))


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``sum q (1 - prod_k (1 - p_k))``."""
    acceptance = (target_probs * (1 - (1 - draft_probs).prod(1))).sum(-1)
    return Acceptance(acceptance, acceptance)


def _survivors(position: Position, order: Order) -> Tensor:
    """y has probability q(y), and each draft equals it by chance."""
    return scale(add_unseen(position, position.start(), order), position.at(position.target))


sampled = TokenVerifier("sampled", "independent", _decide, _acceptance, survivors=_survivors)
"""Draw a token from the target; it is accepted if it was drafted. The baseline: what agreement by chance accepts."""
