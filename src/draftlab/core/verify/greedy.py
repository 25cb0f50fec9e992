"""Greedy drafts: always the K - 1 most probable tokens, and one more drawn from the rest."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.sampling import greedy_tokens
from draftlab.core.verify.single import SMALLEST, accept_probs, reject_residual
from draftlab.core.verify.specinfer import remaining_probs
from draftlab.core.verify.survivors import Order, Position, grow
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def _decide(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    rest = remaining_probs(draft_probs, tokens)[:, -1]
    top, last = tokens[:, :-1], tokens[:, -1:]
    chance = accept_probs(target_probs.gather(-1, last), rest.gather(-1, last))
    residual = reject_residual(target_probs, rest)
    # A residual token that is one of the top ones counts as accepted: it was drafted, so a tree goes on below it.
    accept = torch.cat([(1 - chance) * residual.gather(-1, top), chance], -1)
    return Decision(accept, lambda rows: residual[rows].scatter(-1, top[rows], 0.0))


def _acceptance(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> Acceptance:
    """``q(top) + sum_rest min(q, p')``, which is the optimum for these drafts (Hu et al. 2025)."""
    accepted = accepted_mass(target_probs, draft_probs[:, 0], draft_probs.shape[1]).sum(-1)
    return Acceptance(accepted, accepted)


def accepted_mass(
    target_probs: Float64[Tensor, "batch vocab"], draft: Float64[Tensor, "batch vocab"], num_drafts: int
) -> Float64[Tensor, "batch vocab"]:
    """Probability that each token is emitted and was drafted; no more tokens are drafted than there are."""
    top = greedy_tokens(draft, min(num_drafts, draft.shape[-1]) - 1)
    rest = draft.scatter(-1, top, 0.0)
    rest = rest / rest.sum(-1, keepdim=True).clamp_min(SMALLEST)
    accepted = target_probs.minimum(rest).scatter(-1, top, target_probs.gather(-1, top))
    return accepted * (draft > 0)


def _survivors(position: Position, order: Order) -> Tensor:
    """At most one draft is y; every y that could be drafted and is emitted by acceptance counts."""
    member = position.at(accepted_mass(position.target, position.groups[order[0]], len(order)))
    return grow(position.nobody(), order[0], torch.zeros_like(member), member)


greedy = TokenVerifier("greedy", "greedy", _decide, _acceptance, survivors=_survivors)
"""Single-draft verification of the drawn token against its own distribution ``p'``; a top token counts as accepted (Hu et al. 2025).

With two drafts this is SpecHub (Sun et al. 2024): acceptance ``q_a + sum_{i != a} min(q_i, p_i / (1 - p_a))``, a the top token.
"""
