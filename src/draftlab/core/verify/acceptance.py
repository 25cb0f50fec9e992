"""The exact acceptance and output of a verifier on average over its drafts: in closed form if there is one, else by enumeration."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from draftlab.core.verify.joint import MOST_TUPLES, distinct_tuples, joint_distribution
from draftlab.core.verify.token import Acceptance, TokenVerifier
from draftlab.errors import UserError


def by_position(
    verifier: TokenVerifier,
    target: Float64[Tensor, "positions support"],
    draft: Float64[Tensor, "positions support"],
    num_drafts: int,
) -> Acceptance:
    """The acceptance at each position for K drafts of one distribution (``single``: one draft).

    Without replacement there are no more drafts than tokens. Too many tuples for an enumeration are a ``UserError``.
    """
    if verifier.name == "single":
        num_drafts = 1
    if verifier.closed_form:
        return verifier.closed_form(target, draft[:, None].expand(-1, num_drafts, -1))
    if verifier.drafting == "without_replacement":
        return _without_replacement(verifier, target, draft, num_drafts)
    exact = verifier.acceptance(target, draft[:, None].expand(-1, num_drafts, -1))
    if bool(exact.proc.isnan().any()):
        raise _too_many(verifier, num_drafts, draft.shape[-1])
    return exact


def _without_replacement(verifier: TokenVerifier, target: Tensor, draft: Tensor, num_drafts: int) -> Acceptance:
    """Enumerates every ordered tuple of distinct tokens, positions of one support size at once."""
    for support in sorted(set((draft > 0).sum(-1).tolist())):
        if math.perm(support, min(num_drafts, support)) > MOST_TUPLES:
            raise _too_many(verifier, num_drafts, support)
    proc, member = target.new_empty(2, len(target))
    for part, tokens, distributions, chance in distinct_tuples(draft, num_drafts):
        at = part.repeat_interleave(len(tokens) // len(part))
        emitted, given = verifier.outcome(target[at], distributions, tokens)
        proc[part] = (given.proc * chance).view(len(part), -1).sum(-1)
        member[part] = (given.member * chance).view(len(part), -1).sum(-1)
        verifier.refuse_loss((emitted * chance[:, None]).view(len(part), -1, target.shape[1]).sum(1), target[part])
    return Acceptance(proc, member)


def _too_many(verifier: TokenVerifier, num_drafts: int, support: int) -> UserError:
    return UserError(
        f"{verifier.name} has no exact acceptance at {num_drafts} drafts on {support} tokens",
        remedy="lower num_drafts or top_k, or leave the scheme out",
    )


def distribution_error(
    verifier: TokenVerifier, target: Float64[Tensor, "points vocab"], draft: Float64[Tensor, "points drafts vocab"]
) -> Float64[Tensor, " points"]:
    """``max_y |P(Y = y) - q(y)|`` at each point, over all drafts: 0 if the verifier is lossless (Khisti et al. 2025, Theorem 1).

    The drafts of every point are drawn from the distributions of the first.
    """
    joint = joint_distribution(draft[0], "independent")
    shape = (len(target), len(joint.probs))
    emitted = verifier.distribution(
        target[:, None].expand(*shape, -1), draft[:, None].expand(*shape, -1, -1), joint.tokens.expand(*shape, -1)
    )
    return (torch.einsum("t,ptv->pv", joint.probs, emitted) - target).abs().amax(-1)
