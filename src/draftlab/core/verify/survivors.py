"""How many of K drafts survive a position of a text written by the target, computed exactly, given the token written there.

K sequences are drafted, and those that agree with the emitted token y continue together. A text of the target already fixes y. What remains
random is which drafts agree with it: ``T(k -> m) = P(Y = y, m of k drafts equal y) / q(y)``, because a lossless verifier emits
y with probability q(y). With m = 0 the block ends, and y is its correction.

Drafts from one distribution form a group, of which only the number matters. A table has one axis for each group of drafts: entry
``[m_1, ..., m_G]`` is the probability that m_g of group g survive. Verifiers supply their formula (``TokenVerifier.survivors``); others are
enumerated.
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
    """What is known about the positions of a text: the distributions of the target and of each group of drafts, and the tokens written.

    ``memo`` keeps what orders of drafts share: the order (0, 0) begins as (0, 0, 1) does.
    """

    target: Float64[Tensor, "positions vocab"]
    groups: Sequence[Float64[Tensor, "positions vocab"]]
    token: Int64[Tensor, " positions"]
    memo: dict[Any, Any] = field(default_factory=dict)

    def at(self, table: Float64[Tensor, "positions vocab"]) -> Float64[Tensor, " positions"]:
        """The entry of the written token."""
        return table.gather(-1, self.token[:, None])[:, 0]

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """What ``make`` makes, made once."""
        if key not in self.memo:
            self.memo[key] = make()
        return self.memo[key]

    def nobody(self) -> Tensor:
        """The table before any draft is looked at: none of no group agrees with the text."""
        return self.target.new_ones(len(self.target), *[1] * len(self.groups))


Survivors = Callable[[Position, Order], Tensor]
"""The joint probability of the emitted token y and of each number of survivors, not yet divided by q(y); what remains is that of none."""


def grow(table: Tensor, group: int, differs: Tensor, agrees: Tensor) -> Tensor:
    """One more draft of ``group``: it differs from the text or agrees with it, with these (joint) probabilities."""
    axis = group + 1
    shape = list(table.shape)
    shape[axis] = 1
    zeros = table.new_zeros(shape)
    view = (-1, *[1] * (table.dim() - 1))
    return torch.cat([table * differs.view(view), zeros], axis) + torch.cat([zeros, table * agrees.view(view)], axis)


def align(tables: Sequence[Tensor]) -> Tensor:
    """The sum of tables of different numbers of drafts."""
    shape = [max(sizes) for sizes in zip(*(table.shape for table in tables), strict=True)]
    missing = [
        [amount for size, own in zip(shape[::-1], table.shape[::-1], strict=True) for amount in (0, size - own)]
        for table in tables
    ]
    return torch.stack([pad(table, more) for table, more in zip(tables, missing, strict=True)]).sum(0)


def scale(table: Tensor, by: Float64[Tensor, " positions"]) -> Tensor:
    """Each position's table times its factor."""
    return table * by.view(-1, *[1] * (table.dim() - 1))


def free(position: Position, table: Tensor, order: Order) -> Tensor:
    """Drafts that are no longer looked at agree with the text by chance."""
    for group in order:
        at = position.at(position.groups[group])
        table = grow(table, group, 1 - at, at)
    return table


def transitions(survivors: Survivors, position: Position, order: Order) -> Tensor:
    """``T(order -> m)``: entry ``[t, m_1, ..., m_G]`` given the text; a token that the target cannot write ends the block."""
    at_target = position.at(position.target)
    joint = survivors(position, order)
    possible = (at_target > 0).view(-1, *[1] * (joint.dim() - 1))
    table = torch.where(possible, scale(joint, 1 / at_target.where(at_target > 0, 1.0)), 0.0).clamp(0, 1)
    flat = table.flatten(1)
    flat[:, 0] = 0.0
    flat /= flat.sum(-1, keepdim=True).clamp_min(1)  # rounding
    flat[:, 0] = (1 - flat.sum(-1)).clamp_min(0)
    return flat.view(table.shape)
