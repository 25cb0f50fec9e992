"""Sampled verification: the target draws its token without looking at the drafts, and may hit one of them.

For drafts that are not random, no lossless verifier accepts more: they are accepted if the target writes one of them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.core.sampling import Table, Tables, Tokens, greedy_tokens
from draftlab.core.verify.survivors import Order, Position, add_unseen, at_most_one, scale
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


def _ranked_mass(target_probs: Table, draft: Table, num_drafts: int) -> Table:
    """``q`` of the K most probable tokens of the draft; 0 for every other token."""
    drafted = greedy_tokens(draft, num_drafts)
    kept = target_probs.gather(-1, drafted) * (draft.gather(-1, drafted) > 0)
    return torch.zeros_like(target_probs).scatter(-1, drafted, kept)


def _ranked_acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``q`` of the K most probable tokens of the draft, summed."""
    acceptance = _ranked_mass(target_probs, draft_probs[:, 0], draft_probs.shape[1]).sum(-1)
    return Acceptance(acceptance, acceptance)


def _ranked_survivors(position: Position, order: Order) -> Tensor:
    return at_most_one(
        position, order, position.at(_ranked_mass(position.target, position.groups[order[0]], len(order)))
    )


sampled = TokenVerifier("sampled", "independent", _decide, _acceptance, survivors=_survivors)
"""Draw a token from the target; it is accepted if it was drafted. The baseline: what agreement by chance accepts."""

ranked = TokenVerifier("ranked", "ranked", _decide, _ranked_acceptance, survivors=_ranked_survivors)
"""The same for the K most probable tokens of the draft, as in trees of top-k expansion, Sequoia and EAGLE-2."""
