"""How many of K drafts survive each position of a text that the target wrote, computed exactly.

K sequences are drafted. The sequences whose token equals the emitted token y continue together. The text fixes y, so only the number of
drafts that equal y is random: ``T(k -> m) = P(Y = y, m of k drafts equal y) / q(y)``, since a lossless verifier emits y with probability
q(y). If m = 0, the block ends, and y is its correction.

Drafts from one distribution form a group, of which only the number matters. A table of survivors has one axis for each group: entry
``[m_1, ..., m_G]`` is the probability that m_g drafts of group g equal y. A verifier has a formula for it (``TokenVerifier.survivors``),
or every tuple of drafts is enumerated. ``docs/theory.md``, section 6, lists the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

Order = tuple[int, ...]
"""The group of each draft, in the order in which the verifier sees them."""


@dataclass(frozen=True)
class Position:
    """Positions of a text: the distributions of the target and of each group of drafts, and the token written at each.

    ``memo`` keeps what several orders of drafts share: the order (0, 0) begins as (0, 0, 1) does.
    """

    target: Float64[Tensor, "positions vocab"]
    groups: Sequence[Float64[Tensor, "positions vocab"]]
    token: Int64[Tensor, " positions"]
    memo: dict[Any, Any] = field(default_factory=dict)

    def at(self, table: Float64[Tensor, "positions vocab"]) -> Float64[Tensor, " positions"]:
        """The entry of the written token."""
        return table.gather(-1, self.token[:, None])[:, 0]

    def cached(self, key: object, compute: Callable[[], Any]) -> Any:
        """The value of ``compute()``, computed at the first call with this key."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    def start(self) -> Tensor:
        """The table of survivors before any draft is seen: none, with probability 1."""
        return self.target.new_ones(len(self.target), *[1] * len(self.groups))


Survivors = Callable[[Position, Order], Tensor]
"""The joint probability of the emitted token y and of each number of survivors, not yet divided by q(y); entry 0 is not needed."""


def add_draft(table: Tensor, group: int, differs: Tensor, equal: Tensor) -> Tensor:
    """One more draft of ``group``, which differs from the written token or equals it, with these (joint) probabilities."""
    axis = group + 1
    none = torch.zeros_like(table.narrow(axis, 0, 1))
    return torch.cat([scale(table, differs), none], axis) + torch.cat([none, scale(table, equal)], axis)


def at_most_one(position: Position, order: Order, member: Float64[Tensor, " positions"]) -> Tensor:
    """The table of distinct drafts, of which at most one equals y: ``member`` is the joint probability that y is emitted and drafted."""
    return add_draft(position.start(), order[0], torch.zeros_like(member), member)


def add_unseen(position: Position, table: Tensor, order: Order) -> Tensor:
    """Further drafts that the verifier never looks at: each equals the written token with its own probability."""
    for group in order:
        at = position.at(position.groups[group])
        table = add_draft(table, group, 1 - at, at)
    return table


def sum_tables(tables: Sequence[Tensor]) -> Tensor:
    """The sum of tables over different numbers of drafts."""
    shape = [max(sizes) for sizes in zip(*(table.shape for table in tables), strict=True)]
    missing = [
        [amount for size, present in zip(shape[::-1], table.shape[::-1], strict=True) for amount in (0, size - present)]
        for table in tables
    ]
    return torch.stack([pad(table, more) for table, more in zip(tables, missing, strict=True)]).sum(0)


def scale(table: Tensor, factor: Float64[Tensor, " positions"]) -> Tensor:
    """Multiply the table of each position by its factor."""
    return table * factor.view(-1, *[1] * (table.dim() - 1))


def transitions(survivors: Survivors, position: Position, order: Order) -> Tensor:
    """``T(order -> m)``: entry ``[t, m_1, ..., m_G]`` given the text. A token that the target cannot write ends the block."""
    at_target = position.at(position.target)
    joint = survivors(position, order)
    possible = (at_target > 0).view(-1, *[1] * (joint.dim() - 1))
    table = torch.where(possible, scale(joint, 1 / at_target.where(at_target > 0, 1.0)), 0.0).clamp(0, 1)
    flat = table.flatten(1)
    flat[:, 0] = 0.0
    flat /= flat.sum(-1, keepdim=True).clamp_min(1)  # rounding
    flat[:, 0] = (1 - flat.sum(-1)).clamp_min(0)
    return flat.view(table.shape)
