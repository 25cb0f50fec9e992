"""RRS, rounds of rejection without replacement: the rounds of ``specinfer``, with each draft's distribution among the tokens not yet drawn."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.joint import MOST_TUPLES, distinct_tuples, remaining_probs
from draftlab.core.verify.single import reject_residual
from draftlab.core.verify.specinfer import rounds
from draftlab.core.verify.survivors import Order, Position, at_most_one
from draftlab.core.verify.token import Decision, TokenVerifier


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    return rounds(target_probs, remaining_probs(draft_probs, tokens), tokens)


def _distinct_survivors(position: Position, order: Order) -> Tensor:
    """At most one draft is y. Of two drafts it is the first, ``min(q, p)``, or the second, after any other rejected token; more are enumerated."""
    target, draft = position.target, position.groups[order[0]]
    if len(order) > 2:
        most = int((draft > 0).sum(-1).max())
        if math.perm(most, min(len(order), most)) > MOST_TUPLES:
            return rrs.enumerated_survivors(position, order)
        member = torch.zeros_like(target[:, 0])
        for part, tokens, distributions, chance in distinct_tuples(draft, len(order)):
            at = part.repeat_interleave(len(tokens) // len(part))
            y = position.token[at, None]
            emitted = rrs.distribution(target[at], distributions, tokens).gather(-1, y)[:, 0] * (tokens == y).any(-1)
            member[part] = (emitted * chance).view(len(part), -1).sum(-1)
        return at_most_one(position, order, member)
    at_draft = position.at(draft)
    member = position.at(target).minimum(at_draft)
    if len(order) == 2:
        left = position.at(reject_residual(target, draft))[:, None]
        # The mass of the other tokens is summed: 1 - p loses all digits on a peaked distribution.
        before, after = (pad(table.cumsum(-1)[:, :-1], (1, 0)) for table in (draft, draft.flip(-1)))
        rest = before + after.flip(-1)
        again = at_draft[:, None] / rest.where(rest > 0, 1.0)
        others = (draft - target).clamp_min(0).scatter(-1, position.token[:, None], 0.0)
        member = member + (others * left.minimum(again)).sum(-1)
    return at_most_one(position, order, member)


rrs = TokenVerifier("rrs", "without_replacement", _decide, survivors=_distinct_survivors)
"""The rounds of ``specinfer`` over drafts without replacement, ``p_k`` being what is left of the draft's distribution (RSD: Jeon et al. 2024).

Its acceptance has no closed form and is enumerated.
"""
