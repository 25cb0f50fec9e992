"""Rounds of rejection: each draft is tested against what the previous ones left of the target."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from draftlab.core.verify.single import SMALLEST, accept_probs, reject_residual
from draftlab.core.verify.survivors import Order, Position, align, free, grow, scale
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def _rounds(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    """Accept ``x_k`` with ``min(1, q_{k-1} / p_k)``; on rejection ``q_k`` is ``(q_{k-1} - p_k)_+`` normalised."""
    left, rejected, accept = target_probs, torch.ones_like(target_probs[:, 0]), []
    for k, draft in enumerate(draft_probs.unbind(1)):
        if k:
            left = reject_residual(left, draft_probs[:, k - 1])
        drawn = tokens[:, k : k + 1]
        chance = accept_probs(left.gather(-1, drawn), draft.gather(-1, drawn))[:, 0]
        accept.append(rejected * chance)
        rejected = rejected * (1 - chance)
    return Decision(torch.stack(accept, -1), lambda rows: (left[rows] - draft_probs[rows, -1]).clamp_min(0))


def remaining_probs(
    draft_probs: Float64[Tensor, "batch drafts vocab"], tokens: Int64[Tensor, "batch drafts"]
) -> Float64[Tensor, "batch drafts vocab"]:
    """The distribution that draft k was drawn from without replacement: ``p`` without ``x_1..x_{k-1}``, the remaining terms summed again."""
    rest = draft_probs.clone()
    for k in range(1, tokens.shape[1]):
        rest[:, k:].scatter_(-1, tokens[:, k - 1, None, None].expand(-1, tokens.shape[1] - k, 1), 0.0)
    total = rest.sum(-1, keepdim=True)
    return rest / total.where(total > 0, 1.0)


MOST_TUPLES = 5040
"""Ordered tuples without replacement that are tried at a position (7 tokens drafted in every order)."""
ROWS_AT_ONCE = 100_000


def distinct_tuples(
    draft: Float64[Tensor, "positions vocab"], num_drafts: int
) -> Iterator[tuple[Int64[Tensor, " part"], Int64[Tensor, "tuples drafts"], Tensor, Float64[Tensor, " tuples"]]]:
    """Every ordered tuple of distinct tokens of each position, positions of one support size at once: which positions, and of their tuples, one
    position after the other, the tokens, the draft's distributions and the probability. No more are drafted than there are tokens."""
    supports = (draft > 0).sum(-1)
    for support in sorted(set(supports.tolist())):
        length = min(num_drafts, support)
        orders = torch.tensor(list(itertools.permutations(range(support), length)), device=draft.device)
        rows = (supports == support).nonzero()[:, 0]
        for part in rows.split(max(1, ROWS_AT_ONCE // len(orders))):
            tokens = draft[part].topk(support, -1).indices[:, orders].flatten(0, 1)
            distributions = draft[part.repeat_interleave(len(orders))][:, None].expand(-1, length, -1)
            chance = remaining_probs(distributions, tokens).gather(-1, tokens[..., None])[..., 0].prod(-1)
            yield part, tokens, distributions, chance


def _decide_rrs(
    target_probs: Float64[Tensor, "batch vocab"],
    draft_probs: Float64[Tensor, "batch drafts vocab"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    return _rounds(target_probs, remaining_probs(draft_probs, tokens), tokens)


def _acceptance(
    target_probs: Float64[Tensor, "batch vocab"], draft_probs: Float64[Tensor, "batch drafts vocab"]
) -> Acceptance:
    """``proc = 1 - prod_k (1 - alpha_k)``; a token is absent from the rejected drafts with ``prod_k (1 - (p_k - q_{k-1})_+ / (1 - alpha_k))``."""
    left, absent, rejected = target_probs, torch.ones_like(target_probs), torch.ones_like(target_probs[:, :1])
    for draft in draft_probs.unbind(1):
        chance = left.minimum(draft).sum(-1, keepdim=True)
        # The rejected draft follows (p - q)_+ normalised: again the residual, with the two distributions swapped.
        absent = absent * (1 - reject_residual(draft, left))
        left = reject_residual(left, draft)
        rejected = rejected * (1 - chance).clamp_min(0)
    proc = 1 - rejected[:, 0]
    return Acceptance(proc, proc + rejected[:, 0] * (left * (1 - absent)).sum(-1))


def _survivors(position: Position, order: Order) -> Tensor:
    """``sum_j prod_(i<j) (n_i + e_i z) c_j z prod_(i>j) (1 - p_i + p_i z) + prod_i (n_i + e_i z) q_K(y)``, the power of z being the survivors.

    In round j draft y is accepted with ``c = min(q_(j-1), p_j)(y)``, y is rejected with ``e = (p_j - q_(j-1))_+(y)``, another token with n.
    """
    rejected, accepted = position.nobody(), []
    left = position.target
    for j, group in enumerate(order):
        left, shared, differs, agrees, after = position.once(order[: j + 1], partial(_round, position, order[: j + 1]))
        nothing = torch.zeros_like(shared)
        accepted.append(free(position, grow(rejected, group, nothing, shared), order[j + 1 :]))
        rejected = grow(rejected, group, differs, agrees)
        left = after
    return align([*accepted, scale(rejected, position.at(left))])


def _round(position: Position, order: Order) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The last round of ``order``: the target before it, c, n, e, and the target after it."""
    left = position.target if len(order) == 1 else position.memo[order[:-1]][-1]
    draft = position.groups[order[-1]]
    shared = left.minimum(draft)
    accepted, at_draft = position.at(shared), position.at(draft)
    agrees = at_draft - accepted
    differs = (1 - shared.sum(-1) - agrees).clamp_min(0)
    return left, accepted, differs, agrees, reject_residual(left, draft)


def _distinct_survivors(position: Position, order: Order) -> Tensor:
    """Of distinct drafts at most one is y. Two drafts: y first, ``min(q, p)``, or second, after any other rejected one; more by enumeration."""
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
        return grow(position.nobody(), order[0], torch.zeros_like(member), member)
    at_draft = position.at(draft)
    member = position.at(target).minimum(at_draft)
    if len(order) == 2:
        left = position.at(reject_residual(target, draft))[:, None]
        # The mass of the other tokens, summed: as 1 - p it loses all digits on a peaked distribution.
        before, after = (pad(table.cumsum(-1)[:, :-1], (1, 0)) for table in (draft, draft.flip(-1)))
        again = at_draft[:, None] / (before + after.flip(-1)).clamp_min(SMALLEST)
        others = (draft - target).clamp_min(0).scatter(-1, position.token[:, None], 0.0)
        member = member + (others * left.minimum(again)).sum(-1)
    return grow(position.nobody(), order[0], torch.zeros_like(member), member)


specinfer = TokenVerifier("specinfer", "independent", _rounds, _acceptance, survivors=_survivors)
"""Multi-round rejection over drafts with replacement, from one distribution or several (SpecInfer: Miao et al. 2024, Alg. 2), in the given order."""

rrs = TokenVerifier("rrs", "without_replacement", _decide_rrs, survivors=_distinct_survivors)
"""Recursive rejection over drafts without replacement (RSD: Jeon et al. 2024); acceptance by enumeration only."""
