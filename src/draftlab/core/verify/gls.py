"""GLS: target and drafts take their tokens from the same exponential variables, so that they often take the same token.

Draft k takes the token with the smallest level ``S_ki / p_ki``. The target passes ``S_ki`` at time ``S_ki / q_i`` and takes the first token that it
passes in any draft. A verifier needs the distribution of the target's token given the drafts, so the exponentials are integrated out: for one
draft at a given time they are running sums in ratio order (``_Race``), and over time a trapezoidal rule is exact to rounding.
``docs/theory.md``, section 9, has the formulas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.sampling import Table, Tables, Tokens, restrict
from draftlab.core.verify.optimum import ranks, ratio_order
from draftlab.core.verify.single import SMALLEST
from draftlab.core.verify.survivors import Order, Position, add_draft
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier

STEP = 0.25
TIMES = torch.arange(-37, 4, STEP, dtype=torch.float64).exp()
"""The nodes of the trapezoidal rule in the logarithm of time. The integrands are sums of exponentials of time, so the error is 1e-15."""

AT_ONCE = 2**21
"""The most entries of a table over positions, times and tokens that are held at once."""

TimedTable = Float64[Tensor, "batch times vocab"]


class _Levels(NamedTuple):
    """For the level ``r t`` of each token: the probability that no level is below, its integral up to this level, and that from it on."""

    clear: TimedTable
    below: TimedTable
    above: TimedTable


@dataclass(frozen=True)
class _Race:
    """The exponentials ``S_i`` of one draft, integrated out.

    If the target has passed no token by time t, no level is below ``r t`` with probability ``exp(-t sum (r p_i - q_i)_+)``. Sort the tokens by
    ``r = q/p``, with prefix sums ``mass`` = P of the draft. The sum is then 0 at the first token and grows by ``step = P_l (r_(l+1) - r_l)``
    after token l.
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

    def at_levels(self, times: Float64[Tensor, " times"]) -> _Levels:
        time = times[:, None]
        before = self.step.cumsum(-1).roll(1, -1)
        before[:, 0] = 0
        clear = (-time * before[:, None]).exp()
        parts = clear * -(-time * self.step[:, None]).expm1() / self.mass[:, None].clamp_min(SMALLEST)
        below = parts.cumsum(-1) - parts
        above = parts.flip(-1).cumsum(-1).flip(-1)
        rank = self.rank[:, None].expand_as(clear)
        return _Levels(*(table.gather(-1, rank) for table in (clear, below, above)))


def _in_parts(target: Table) -> Sequence[Float64[Tensor, " times"]]:
    """The times, in parts that fit into memory."""
    return torch.split(TIMES.to(target.device), max(1, AT_ONCE // max(1, target.numel())))


def _weights(times: Float64[Tensor, " times"], num_drafts: int) -> Float64[Tensor, " times"]:
    """``exp(-K t) dt`` at the nodes: the target has passed no token of any draft yet."""
    return STEP * times * torch.exp(-num_drafts * times)


def _races(target: Table, draft_probs: Tables) -> list[_Race]:
    if draft_probs.stride(1) == 0:  # one distribution, expanded
        return [_Race.of(target, draft_probs[:, 0])] * draft_probs.shape[1]
    return [_Race.of(target, draft) for draft in draft_probs.unbind(1)]


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    """Integrates ``P(Y = y, the drafts)`` over the time at which the target passes y in draft k, the first token that it passes.

    Draft j != k is then x_j with ``p(x_j)`` times the integral of levels above ``r(x_j) t``. Draft k is x_k at once if x_k = y; otherwise
    its level lies below that of y, ``r(y) t``. The factor ``q(y) exp(-K t)`` is common.
    """
    # Only the tokens that a truncation leaves take part.
    target, draft, places, ids = restrict(target_probs, draft_probs, tokens)
    races, drawn = _races(target, draft), places[..., None]
    at_draft = draft.gather(-1, drawn)
    joint = torch.zeros_like(target)
    for times in _in_parts(target):
        column = drawn[:, :, None].expand(-1, -1, len(times), -1)
        tables = [race.at_levels(times) for race in races]
        at = [_Levels(*(table.gather(-1, column[:, k]) for table in levels)) for k, levels in enumerate(tables)]
        weight = _weights(times, len(races))[:, None]
        for k, drafted in enumerate(at):
            passed = at_draft[:, k, None] * (tables[k].below - drafted.below).clamp_min(0)
            passed.scatter_(-1, column[:, k], drafted.clear)
            others = [at_draft[:, j, None] * at[j].above for j in range(len(races)) if j != k]
            joint += (passed * torch.stack([weight.expand_as(drafted.clear), *others]).prod(0)).sum(1)
    joint *= target
    normalised = joint / joint.sum(-1, keepdim=True).clamp_min(SMALLEST)
    emitted = torch.zeros_like(target_probs).scatter_add_(-1, ids, normalised)
    copies = (tokens[:, :, None] == tokens[:, None, :]).sum(-1)
    return Decision(emitted.gather(-1, tokens) / copies, lambda rows: emitted[rows].scatter(-1, tokens[rows], 0.0))


def _acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
    """``1 - sum_y q(y) int sum_k (1 - clear_k) prod_(j != k) (1 - p_j above_j) exp(-K t) dt``: y is passed first, and no draft is y."""
    races = _races(target_probs, draft_probs)
    missed = torch.zeros_like(target_probs)
    for times in _in_parts(target_probs):
        passed, waiting = target_probs.new_zeros(1), target_probs.new_ones(1)
        for race, draft in zip(races, draft_probs.unbind(1), strict=True):
            clear, _, above = race.at_levels(times)
            other = 1 - draft[:, None] * above
            passed, waiting = passed * other + waiting * (1 - clear), waiting * other
        missed += (passed * _weights(times, len(races))[:, None]).sum(1)
    acceptance = (1 - (target_probs * missed).sum(-1)).clamp(0, 1)
    return Acceptance(acceptance, acceptance)


def _survivors(position: Position, order: Order) -> Tensor:
    """The integral of ``_acceptance`` with the number of drafts that equal y; at each time one draft has been passed, or none yet."""
    count, times = len(position.token), TIMES.to(position.target.device)
    waiting = position.start().repeat_interleave(len(times), 0)
    passed = torch.zeros_like(waiting)
    for group in order:
        clear, above = position.cached(("race", group), partial(_at_token, position, group))
        passed = add_draft(passed, group, 1 - above, above) + add_draft(waiting, group, 1 - clear, clear)
        waiting = add_draft(waiting, group, 1 - above, above)
    shape = passed.shape[1:]
    weight = _weights(times, len(order)).expand(count, -1).flatten()
    table = (passed.flatten(1) * weight[:, None]).view(count, len(times), -1).sum(1)
    return (table * position.at(position.target)[:, None]).view(count, *shape)


def _at_token(position: Position, group: int) -> tuple[Float64[Tensor, " rows"], Float64[Tensor, " rows"]]:
    """``clear`` and ``p above`` of the written token, for every position and time."""
    draft = position.groups[group]
    race, token = _Race.of(position.target, draft), position.token[:, None, None]
    all_clear, all_above = [], []
    for times in _in_parts(position.target):
        clear, _, above = (table.gather(-1, token.expand(-1, len(times), 1))[..., 0] for table in race.at_levels(times))
        all_clear.append(clear)
        all_above.append(above * position.at(draft)[:, None])
    return torch.cat(all_clear, 1).flatten(), torch.cat(all_above, 1).flatten()


gls = TokenVerifier("gls", "independent", _decide, _acceptance, survivors=_survivors)
"""Gumbel-max list sampling (Rowan et al. 2025, arXiv 2506.05632): draft k takes ``argmin_i S_ki / p_ki``, the target ``argmin_i min_k S_ki / q_i``.

Here the exponentials follow their distribution given the drafts, which is integrated, so that losslessness can be proved by enumeration. A
server draws them beforehand and so knows the target's token before any draft (drafter invariance).
"""
