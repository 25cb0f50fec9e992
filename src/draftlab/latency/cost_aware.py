"""Rules for how much to draft for a block, by how probable the drafted texts are and by what calls cost on this machine. Free of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

MEMORY = 0.9
"""How much of the mean gain of a block stays from one block to the next."""
LONGEST_WAIT = 32
"""Blocks after which a draft that did not pay is asked again."""
PRIOR = 8.0
"""Plain steps that count as if they had been taken at first, at one token each."""


class Rule(Protocol):
    """How much to draft. The value of a text is the draft's probability of it."""

    def asks(self) -> bool:
        """Whether to call the draft at all for the next block."""
        ...

    def count(self, values: Sequence[float]) -> int:
        """How many of the texts to draft, whose ``values`` are sorted, the highest first."""
        ...

    def deeper(self, values: Sequence[float], drafted: int) -> bool:
        """Whether to call the draft once more after texts of these values, if ``drafted`` texts are worth drafting so far."""
        ...

    def learn(self, calls: int, drafted: int, judged: int, accepted: int) -> None:
        """Count a block that is over; with 0 calls of the draft, its tokens were looked up."""
        ...


class AtLeast:
    """Every text of at least ``min_value`` is worth drafting.

    >>> AtLeast(0.4).count([0.7, 0.5, 0.3])
    2
    """

    def __init__(self, min_value: float) -> None:
        self.min_value = min_value

    def asks(self) -> bool:
        return True

    def count(self, values: Sequence[float]) -> int:
        return sum(value >= self.min_value for value in values)

    def deeper(self, values: Sequence[float], drafted: int) -> bool:
        return True

    def learn(self, calls: int, drafted: int, judged: int, accepted: int) -> None:
        pass


class CostAware:
    """Draft as much as pays at these costs: no length and no threshold to tune.

    In the long run, blocks emit r = E[tokens] / E[time] tokens per plain step. The rule with the largest r draws from each block the most of
    E[tokens] - r E[time] (Dinkelbach 1967, Management Science 13(7)). If the texts are sorted by value p_1 >= p_2 >= ..., the draft's
    probability of each, it drafts the first n of them, where n maximises

        p_1 + ... + p_n - r v(n + 1).

    r is that of the blocks so far, at these costs. One more call of the draft is made if the texts that it extends would gain more than r c: a child
    is expected to have its parent's value times the acceptance so far. While calling the draft does not gain anything, it is left out for 1 block,
    then for 2, 4 and up to ``LONGEST_WAIT`` blocks.

    **Arguments:**
    - `call`: c, the cost of a draft call, in plain steps of the target
    - `verify`: entry n is v(n), the cost of a target call that reads n tokens; entry 1 is 1. A tree has at most len(verify) - 2 tokens.

    >>> rule = CostAware(0.05, [0, 1, 1.2, 1.4, 1.9])
    >>> rule.count([0.7, 0.5, 0.3])
    2
    >>> rule.count([0.1, 0.1, 0.1])
    0
    """

    def __init__(self, call: float, verify: Sequence[float]) -> None:
        self.call, self.verify = call, np.asarray(verify, dtype=float)
        self.emitted = self.spent = PRIOR
        self.judged, self.accepted = 2.0, 1.0
        self.gain = 0.0
        self.waits = self.left = 0
        self._expected = 0.0  # gain of the texts that were counted last, in tokens

    @property
    def rate(self) -> float:
        """r, in tokens per plain step."""
        return self.emitted / self.spent

    def asks(self) -> bool:
        if self.left:
            self.left -= 1
            return False
        return True

    def count(self, values: Sequence[float]) -> int:
        values = values[: len(self.verify) - 2]
        net = np.cumsum([0.0, *values]) - self.rate * (self.verify[1 : len(values) + 2] - 1)
        best = int(net.argmax())
        self._expected = float(net[best])
        return best

    def deeper(self, values: Sequence[float], drafted: int) -> bool:
        alpha = self.accepted / self.judged
        more = np.cumsum([value * alpha for value in values][: len(self.verify) - 2 - drafted])
        costs = self.verify[drafted + 2 : drafted + 2 + len(more)] - self.verify[drafted + 1]
        return bool((more - self.rate * costs > self.rate * self.call).any())

    def learn(self, calls: int, drafted: int, judged: int, accepted: int) -> None:
        if calls:
            gain = self._expected - self.rate * self.call * calls
            self.gain = MEMORY * self.gain + (1 - MEMORY) * gain
            if self.gain >= 0:
                self.waits = 0
            elif gain <= 0:
                self.left = self.waits = min(max(1, 2 * self.waits), LONGEST_WAIT)
            self.judged += judged
            self.accepted += accepted
        self.emitted += accepted + 1
        self.spent += self.verify[drafted + 1] + self.call * calls
