"""GLS: target and drafts take their tokens from the same exponential variables, so they often take the same token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.sampling import Table, Tables, Tokens, restrict
from draftlab.core.verify.bound import ranks, ratio_order
from draftlab.core.verify.single import SMALLEST
from draftlab.core.verify.survivors import Order, Position, add_draft
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier

STEP = 0.25
TIMES = torch.arange(-37, 4, STEP, dtype=torch.float64).exp()
"""Trapezoids in the logarithm of time: the integrands are sums of exponentials of it, so these steps and ends leave errors of 1e-15."""

AT_ONCE = 2**21
"""The most entries of a table over positions, times and tokens that are held at once."""

Timed = Float64[Tensor, "batch times vocab"]


@dataclass(frozen=True)
class _Race:
    """One draft's exponentials ``S_i``: it takes the token with the smallest *level* ``S_i / p_i``; the target passes ``S_i`` at *time* ``S_i / q_i``.

    At time t, none passed yet, no level is below ``r t`` with probability ``exp(-t sum (r p_i - q_i)_+)``. Tokens in the order of ``r = q/p``:
    that sum is 0 at the first of them and grows by ``step = P_l (r_(l+1) - r_l)`` after the l-th, ``mass`` being ``P_l``.
    """

    rank: Int64[Tensor, "batch vocab"]
    mass: Table
    step: Table

    @classmethod
    def of(cls, target: Table, draft: Table) -> _Race:
        order = ratio_order(target, draft)
        drafted = draft.gather(-1, order)
        ratio = (target.gather(-1, order) / drafted).where(drafted > 0, torch.inf)
        mass = drafted.cumsum(-1)
        gap = torch.cat([ratio[:, 1:], torch.full_like(ratio[:, :1], torch.inf)], -1) - ratio
        return cls(ranks(order), mass, mass * gap.nan_to_num(torch.inf, posinf=torch.inf))

    def levels(self, times: Float64[Tensor, " times"]) -> tuple[Timed, Timed, Timed]:
        """Of each token, at level ``r t``: the chance that no level is below it, and that chance's integral up to it, and from it on."""
        time = times[:, None]
        before = self.step.cumsum(-1).roll(1, -1)
        before[:, 0] = 0
        calm = (-time * before[:, None]).exp()
        parts = calm * -(-time * self.step[:, None]).expm1() / self.mass[:, None].clamp_min(SMALLEST)
        later = parts.flip(-1).cumsum(-1).flip(-1)
        rank = self.rank[:, None].expand_as(calm)
        return calm.gather(-1, rank), (parts.cumsum(-1) - parts).gather(-1, rank), later.gather(-1, rank)


def _parts(target: Table) -> Iterator[Float64[Tensor, " times"]]:
    """The times, as many at once as fit."""
    return iter(torch.split(TIMES.to(target.device), max(1, AT_ONCE // max(1, target.numel()))))


def _races(target: Table, draft_probs: Tables) -> list[_Race]:
    if draft_probs.stride(1) == 0:  # one distribution, expanded
        return [_Race.of(target, draft_probs[:, 0])] * draft_probs.shape[1]
    return [_Race.of(target, draft) for draft in draft_probs.unbind(1)]


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    """``P(Y = y, the drafts)``: at some time draft k's exponential of y is the first to be passed, none of any draft is before.

    Until then draft j is x_j with ``p(x_j)`` times the integral of levels above ``r(x_j) t``; draft k is x_k at once if that is y, else if
    its level lies below that of y, ``r(y) t``. The factor ``q(y) exp(-K t)`` is common.
    """
    # Few tokens are left of a truncated vocabulary; the race of the others is never run.
    target, draft, places, ids = restrict(target_probs, draft_probs, tokens)
    races, drawn = _races(target, draft), places[..., None]
    at_draft = draft.gather(-1, drawn)
    joint = torch.zeros_like(target)
    for times in _parts(target):
        tables = [race.levels(times) for race in races]
        at = [
            [table.gather(-1, drawn[:, k, None].expand(-1, len(times), -1)) for table in tables[k]]
            for k in range(len(races))
        ]
        weight = (STEP * times * torch.exp(-len(races) * times))[:, None]
        for k, (own, below, _) in enumerate(at):
            fired = at_draft[:, k, None] * (tables[k][1] - below).clamp_min(0)
            fired.scatter_(-1, drawn[:, k, None].expand(-1, len(times), -1), own)
            others = [at_draft[:, j, None] * at[j][2] for j in range(len(races)) if j != k]
            joint += (fired * torch.stack([weight.expand_as(own), *others]).prod(0)).sum(1)
    joint *= target
    given = torch.zeros_like(target_probs).scatter_add_(
        -1, ids, joint / joint.sum(-1, keepdim=True).clamp_min(SMALLEST)
    )
    times_drawn = (tokens[:, :, None] == tokens[:, None, :]).sum(-1)
    return Decision(given.gather(-1, tokens) / times_drawn, lambda rows: given[rows].scatter(-1, tokens[rows], 0.0))


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``1 - sum_y q(y) sum_k int (1 - calm_k) prod_(j != k) (1 - p_j later_j) exp(-K t) dt``: y is passed first, and no draft is y."""
    races = _races(target_probs, draft_probs)
    missed = torch.zeros_like(target_probs)
    for times in _parts(target_probs):
        fired, waiting = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        for race, draft in zip(races, draft_probs.unbind(1), strict=True):
            calm, _, later = race.levels(times)
            other = 1 - draft[:, None] * later
            fired, waiting = fired * other + waiting * (1 - calm), waiting * other
        missed += (fired * (STEP * times * torch.exp(-len(races) * times))[:, None]).sum(1)
    found = (1 - (target_probs * missed).sum(-1)).clamp(0, 1)
    return Acceptance(found, found)


def _survivors(position: Position, order: Order) -> Tensor:
    """The same with the number of drafts that are y: at each time a draft has passed first, or none has yet."""
    count, times = len(position.token), TIMES.to(position.target.device)
    weight = (STEP * times * torch.exp(-len(order) * times)).expand(count, -1).flatten()
    waiting = Position(position.target, position.groups, position.token).start().repeat_interleave(len(times), 0)
    fired = torch.zeros_like(waiting)
    for group in order:
        calm, later = position.cached(("race", group), partial(_at_token, position, group))
        fired = add_draft(fired, group, 1 - later, later) + add_draft(waiting, group, 1 - calm, calm)
        waiting = add_draft(waiting, group, 1 - later, later)
    shape = fired.shape[1:]
    table = (fired.flatten(1) * weight[:, None]).view(count, len(times), -1).sum(1)
    return (table * position.at(position.target)[:, None]).view(count, *shape)


def _at_token(position: Position, group: int) -> tuple[Float64[Tensor, " rows"], Float64[Tensor, " rows"]]:
    """At the written token, every position at every time: calm, and ``p later``."""
    draft = position.groups[group]
    race, token = _Race.of(position.target, draft), position.token[:, None, None]
    calm, later = [], []
    for times in _parts(position.target):
        tables = race.levels(times)
        at = token.expand(-1, len(times), 1)
        calm.append(tables[0].gather(-1, at)[..., 0])
        later.append(tables[2].gather(-1, at)[..., 0] * position.at(draft)[:, None])
    return torch.cat(calm, 1).flatten(), torch.cat(later, 1).flatten()


gls = TokenVerifier("gls", "independent", _decide, _acceptance, survivors=_survivors)
"""Gumbel-max list sampling (Rowan et al. 2025, arXiv 2506.05632): draft k takes ``argmin S_ki / p_ki``, the target ``argmin_i min_k S_ki / q_i``.

The exponentials are the drafts' own, given what was drafted: their distribution is known, and integrated here, so the kit can prove
the verifier. A server that draws them beforehand has the target's token without any draft (drafter invariance).
"""
