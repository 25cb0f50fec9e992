"""One draft: the rejection step of speculative sampling, with which every other verifier ends."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor
from torch.nn.functional import pad

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.survivors import Order, Position, add_draft, add_unseen
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier

SMALLEST = torch.finfo(torch.float64).tiny
"""Replaces a denominator of 0 where the numerator is 0 too."""


def accept_probs(
    target_at: Float64[Tensor, "*batch"], draft_at: Float64[Tensor, "*batch"]
) -> Float64[Tensor, "*batch"]:
    """``min(1, q(x) / p(x))`` at drafted tokens (Leviathan et al. 2023, Alg. 1); 0 if the draft probability is 0.

    **Arguments:**
    - `target_at`, `draft_at`: probabilities of the drafted tokens under each model, shape `(*batch,)`.

    **Returns:** probabilities of the same shape.

    >>> accept_probs(torch.tensor([0.2, 0.6]), torch.tensor([0.4, 0.3]))
    tensor([0.5000, 1.0000])
    """
    return target_at.minimum(draft_at) / draft_at.clamp_min(SMALLEST)


def reject_residual(
    target_probs: Float64[Tensor, "*batch vocab"], draft_probs: Float64[Tensor, "*batch vocab"]
) -> Float64[Tensor, "*batch vocab"]:
    """``(q - p)_+``, normalised: the distribution of the token after a rejection (Leviathan et al. 2023, Alg. 1).

    It is ``q`` where ``q = p``: a rejection then has probability 0, but rounding reaches it.

    **Arguments:**
    - `target_probs`: the target's distribution, shape `(*batch, vocab)`.
    - `draft_probs`: the draft's distribution, same shape.

    **Returns:** a distribution of the same shape.

    >>> reject_residual(torch.tensor([0.7, 0.3]), torch.tensor([0.2, 0.8]))
    tensor([1., 0.])
    """
    excess = (target_probs - draft_probs).clamp_min(0)
    total = excess.sum(-1, keepdim=True)
    return (excess / total).where(total > 0, target_probs)


def select_then_verify(
    target_probs: Table, selected: Table, chosen: Float64[Tensor, "batch drafts"], tokens: Tokens
) -> Decision:
    """Select draft k with probability ``chosen[k]``, so that its token follows ``selected`` (r), then verify it as the single draft of r.

    The selected token is accepted with ``min(1, q/r)``; else the new token follows ``(q - r)_+``. This canonical decomposition loses
    nothing: with the best choice of r it reaches the best acceptance of any lossless scheme, ``sum min(q, r)`` (Khisti et al. 2025, Theorem 1).

    **Arguments:**
    - `target_probs`: the target's distribution (q), shape `(batch, vocab)`.
    - `selected`: the distribution of the selected token (r), same shape.
    - `chosen`: probability that each draft is selected, given the drafts, shape `(batch, drafts)`.
    - `tokens`: the drafted ids, same shape.

    **Returns:** the decision.
    """
    chance = accept_probs(target_probs.gather(-1, tokens), selected.gather(-1, tokens))
    return Decision(chosen * chance, lambda rows: (target_probs[rows] - selected[rows]).clamp_min(0))


def selection_acceptance(target_probs: Table, selected: Table) -> Acceptance:
    """The acceptance of ``select_then_verify``: ``proc = sum min(q, r)``. Whether a residual token was drafted has no closed form."""
    proc = target_probs.minimum(selected).sum(-1)
    return Acceptance(proc, torch.full_like(proc, torch.nan))


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    first = tokens[:, :1]
    accept = accept_probs(target_probs.gather(-1, first), draft_probs[:, 0].gather(-1, first))
    return Decision(
        pad(accept, (0, tokens.shape[1] - 1)), lambda rows: (target_probs[rows] - draft_probs[rows, 0]).clamp_min(0)
    )


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``proc = sum min(q, p_1)``. A residual token y may still equal an unused draft, with ``1 - prod_{k>1} (1 - p_k(y))``."""
    proc = target_probs.minimum(draft_probs[:, 0]).sum(-1)
    unused = 1 - (1 - draft_probs[:, 1:]).prod(1)
    return Acceptance(proc, proc + ((target_probs - draft_probs[:, 0]).clamp_min(0) * unused).sum(-1))


def _survivors(position: Position, order: Order) -> Tensor:
    """Either the first draft is y and accepted, ``min(q, p)``, or another token is rejected and the residual is y: a token that may be
    rejected has no residual. The other drafts equal y by chance."""
    group, draft = order[0], position.groups[order[0]]
    shared = position.target.minimum(draft)
    rejected = (1 - shared.sum(-1)) * position.at(reject_residual(position.target, draft))
    return add_unseen(position, add_draft(position.start(), group, rejected, position.at(shared)), order[1:])


single = TokenVerifier("single", "independent", _decide, _acceptance, survivors=_survivors)
"""Accept the first draft with probability ``min(1, q/p)``, else draw from ``(q - p)_+`` normalised (Leviathan et al. 2023, Alg. 1).

It ignores all other drafts.
"""
