"""The loop alone, on a pair that follows a script: what is asked of it, what comes out, when requests leave."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from draftlab.engine.loop import Timed, Verification, agreed, close_gaps, steps

EOS = 9


class Scripted:
    """Three requests whose drafts and verifications are written down; it notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, object]] = []
        self.verifications = iter(
            [
                Verification([[1, 2], [3, 4], [5, 6]], [0, 0, 0], [2, 0, 1], [7, EOS, 8]),
                Verification([[1, EOS], [5, 6]], [0, 0], [2, 1], [7, 8]),
                Verification([[5, 6]], [0], [2], [7]),
            ]
        )

    def propose(self, left: Sequence[int]) -> str:
        self.asked.append(("propose", list(left)))
        return "proposal"

    def read(self, proposal: str) -> str:
        self.asked.append(("read", proposal))
        return "reading"

    def verify(self, proposal: str, reading: str) -> Verification:
        self.asked.append(("verify", (proposal, reading)))
        return next(self.verifications)

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        self.asked.append(("settle", list(kept)))


def test_three_requests_are_proposed_read_verified_and_settled_in_turn() -> None:
    pair = Scripted()
    found = list(steps(pair, 3, 6, {EOS}))
    assert [name for name, _ in pair.asked] == ["propose", "read", "verify", "settle"] * 3
    assert [what for name, what in pair.asked if name == "propose"] == [[6, 6, 6], [3, 4], [2]]
    assert [what for name, what in pair.asked if name == "settle"] == [[0, 2], [1], []]
    assert [step.rows for step in found] == [[0, 1, 2], [0, 2], [2]]
    assert [step.emitted for step in found] == [
        [[1, 2, 7], [EOS], [5, 8]],
        [[1, EOS], [5, 8]],  # cut at end-of-text, in the middle of what stands
        [[5, 6]],  # cut at what may still come
    ]
    assert {step.reading for step in found} == {"reading"}


def test_the_last_requests_fill_the_gaps() -> None:
    assert close_gaps([True, False, True, False, True]) == [0, 4, 2]
    assert close_gaps([False, False]) == []


def test_every_verb_is_timed() -> None:
    ticks = itertools.count()
    timed = Timed(Scripted(), lambda: float(next(ticks)))
    assert len(list(steps(timed, 3, 6, {EOS}))) == 3
    assert timed.laps == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11, 12, 13, 14]]


def test_tokens_agree_up_to_the_first_that_differs() -> None:
    assert agreed([1, 2, 3], [1, 2]) == 2
    assert agreed([1, 2], [1, 2, 3]) == 2
    assert agreed([1, 5, 3], [1, 2, 3]) == 1
    assert agreed([], []) == 0
