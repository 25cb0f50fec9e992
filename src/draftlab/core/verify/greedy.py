"""Greedy drafts: the K - 1 most probable tokens, and one token drawn from the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from draftlab.core.sampling import Table, Tables, Tokens, greedy_tokens
from draftlab.core.verify.joint import remaining_probs
from draftlab.core.verify.single import accept_probs, reject_residual
from draftlab.core.verify.survivors import Order, Position, at_most_one
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    rest = remaining_probs(draft_probs, tokens)[:, -1]
    top, last = tokens[:, :-1], tokens[:, -1:]
    chance = accept_probs(target_probs.gather(-1, last), rest.gather(-1, last))
    residual = reject_residual(target_probs, rest)
    # A residual token that is one of the top tokens counts as accepted: it was drafted, so a tree continues below it.
    accept = torch.cat([(1 - chance) * residual.gather(-1, top), chance], -1)
    return Decision(accept, lambda rows: residual[rows].scatter(-1, top[rows], 0.0))


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``q(top) + sum_rest min(q, p')``, which is the optimum for these drafts (Hu et al. 2025)."""
    accepted = _accepted_mass(target_probs, draft_probs[:, 0], draft_probs.shape[1]).sum(-1)
    return Acceptance(accepted, accepted)


def _accepted_mass(target_probs: Table, draft: Table, num_drafts: int) -> Table:
    """Probability that each token is drafted and emitted."""
    top = greedy_tokens(draft, num_drafts - 1)
    rest = draft.scatter(-1, top, 0.0)
    total = rest.sum(-1, keepdim=True)
    rest = rest / total.where(total > 0, 1.0)
    accepted = target_probs.minimum(rest).scatter(-1, top, target_probs.gather(-1, top))
    return accepted * (draft > 0)


def _survivors(position: Position, order: Order) -> Tensor:
    member = position.at(_accepted_mass(position.target, position.groups[order[0]], len(order)))
    return at_most_one(position, order, member)


greedy = TokenVerifier("greedy", "greedy", _decide, _acceptance, survivors=_survivors)
"""Verify the drawn token alone, against the distribution ``p'`` it was drawn from; every top token counts as accepted (Hu et al. 2025).

With two drafts this is SpecHub (Sun et al. 2024): acceptance ``q_a + sum_{i != a} min(q_i, p_i / (1 - p_a))``, where a is the top token.
"""
