"""One draft: the rejection step of speculative sampling, with which every other verifier ends."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from draftlab.core.verify.survivors import Order, Position, align, free, grow
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier

SMALLEST = torch.finfo(torch.float64).tiny
"""Divides a 0 in place of a 0."""


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
    """``(q - p)_+``, normalised: the distribution of the token after a rejection. If it is zero, which happens with probability 0, it is ``q``.

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


def _decide(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    first = tokens[:, :1]
    accept = accept_probs(target_probs.gather(-1, first), draft_probs[:, 0].gather(-1, first))
    return Decision(
        pad(accept, (0, tokens.shape[1] - 1)), lambda rows: (target_probs[rows] - draft_probs[rows, 0]).clamp_min(0)
    )


def _acceptance(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> Acceptance:
    """``proc = sum min(q, p_1)``; a residual token may still be one of the unused drafts: ``1 - prod_{k>1} (1 - p_k)``."""
    proc = target_probs.minimum(draft_probs[:, 0]).sum(-1)
    unused = 1 - (1 - draft_probs[:, 1:]).prod(1)
    return Acceptance(proc, proc + ((target_probs - draft_probs[:, 0]).clamp_min(0) * unused).sum(-1))


def _survivors(position: Position, order: Order) -> Tensor:
    """The first draft is y and accepted, ``min(q, p)``; or rejected, y or not, and the residual is y. The others agree by chance."""
    group, table = order[0], position.nobody()
    draft = position.groups[group]
    at_target, at_draft = position.at(position.target), position.at(draft)
    shared = at_target.minimum(at_draft)
    missed = 1 - position.target.minimum(draft).sum(-1)
    residual = position.at(reject_residual(position.target, draft))
    accepted = grow(table, group, torch.zeros_like(shared), shared)
    rejected = grow(table, group, (missed - (at_draft - shared)) * residual, (at_draft - shared) * residual)
    return free(position, align([accepted, rejected]), order[1:])


single = TokenVerifier("single", "independent", _decide, _acceptance, survivors=_survivors)
"""Accept the first draft with probability ``min(1, q/p)``, else draw from ``(q - p)_+`` normalised (Leviathan et al. 2023, Alg. 1).

It reads the first draft only; ``q`` is the target and ``p`` the draft.
"""
