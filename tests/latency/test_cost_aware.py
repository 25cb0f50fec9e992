"""The rule that drafts as much as pays: against every other choice at known costs and probabilities."""

import itertools

import numpy as np
import pytest

from draftlab.latency.cost_aware import LONGEST_WAIT, AtLeast, CostAware

VERIFY = [0, 1, 1.3, 1.4, 1.9, 2.0, 2.6]


def settled(rule: CostAware, rate: float) -> CostAware:
    """The rule after so many blocks at this rate that one more does not change it."""
    rule.emitted, rule.spent = 1e9 * rate, 1e9
    return rule


@pytest.mark.parametrize("rate", [1.0, 1.3, 1.9])
def test_the_drafted_texts_are_those_of_the_largest_gain(rate: float) -> None:
    """Every number of texts is tried; a step that is cheap makes up for an expensive one before it."""
    rng, found = np.random.default_rng(0), set()
    for _ in range(200):
        values = sorted(rng.random(rng.integers(0, 8)) ** 2, reverse=True)
        gains = [sum(values[:n]) - rate * VERIFY[n + 1] for n in range(min(len(values), 5) + 1)]
        count = settled(CostAware(0.05, VERIFY), rate).count(values)
        assert gains[count] == max(gains)
        found.add(count)
    assert len(found) >= 3
    assert settled(CostAware(0.05, VERIFY), 1.0).count([0.25, 0.2, 0.2]) == 2, (
        "0.45 for 0.4, though 0.25 for 0.3 did not pay"
    )


def test_it_finds_the_best_of_all_fixed_lengths() -> None:
    """A draft whose blocks are alike: the rule's rate comes to that of the best number of texts."""
    values, call = [0.8, 0.55, 0.3, 0.25, 0.1], 0.1
    rates = [(1 + sum(values[:n])) / (VERIFY[n + 1] + call) for n in range(6)]
    rule, rng = CostAware(call, VERIFY), np.random.default_rng(0)
    for _ in range(3000):
        assert rule.asks()
        drafted = rule.count(values)
        rule.learn(1, drafted, min(drafted, 3), int((rng.random(drafted) < values[:drafted]).sum()))
    assert drafted == int(np.argmax(rates)) == 2
    assert rule.rate == pytest.approx(max(rates), rel=0.02)


def test_a_draft_that_does_not_pay_is_asked_ever_more_rarely() -> None:
    rule = CostAware(0.2, [0, 1, 2.5, 3, 3.2])
    asked = []
    for block in range(300):
        if rule.asks():
            asked.append(block)
            assert rule.count([0.4, 0.2]) == 0
            rule.learn(1, 0, 0, 0)
        else:
            rule.learn(0, 0, 0, 0)
    assert [later - earlier - 1 for earlier, later in itertools.pairwise(asked)][:7] == [1, 2, 4, 8, 16, 32, 32]
    assert LONGEST_WAIT == 32
    assert rule.rate > 0.98
    while not rule.asks():
        rule.learn(0, 0, 0, 0)
    for _ in range(12):  # the traffic changes: its texts are certain now
        if rule.asks():
            assert rule.count([1.0, 1.0, 1.0]) == 3
            rule.learn(1, 3, 3, 3)
    assert rule.left == 0, "it pays again"


@pytest.mark.parametrize(("calls", "asks"), [(1, True), (2, False)])
def test_a_block_has_to_gain_what_all_its_calls_cost(calls: int, asks: bool) -> None:
    rule = settled(CostAware(0.2, [0, 1, 1.1, 1.2]), 1.0)
    assert rule.count([0.4]) == 1, "0.4 for 0.1"
    rule.learn(calls, 1, 1, 1)
    assert rule.asks() == asks, "0.3 for 0.2 a call"


def test_one_block_without_a_gain_does_not_leave_out_a_draft_that_pays() -> None:
    rule = settled(CostAware(0.2, [0, 1, 1.1, 1.2]), 1.0)
    for values in [[0.9]] * 20 + [[0.1]]:
        assert rule.asks()
        rule.learn(1, rule.count(values), 1, 1)
    assert rule.asks()


def test_one_more_call_must_gain_more_than_it_costs() -> None:
    """A child has the value of its parent times the acceptance, which is one half at first."""
    rule = settled(CostAware(0.1, [0, 1, 1.1, 1.2, 1.9]), 1.0)
    assert rule.deeper([0.5], 1), "0.25 for 0.1 and 0.1"
    assert not rule.deeper([0.3], 1), "0.15 for 0.1 and 0.1"
    assert not rule.deeper([0.3, 0.2], 0), "0.15 for 0.1 and 0.1, or 0.25 for 0.2 and 0.1"
    assert rule.deeper([0.4, 0.3], 0), "0.35 for 0.2 and 0.1"
    assert not rule.deeper([0.9], 2), "no room for more"
    for _ in range(50):
        rule.learn(1, 1, 1, 1)
    assert settled(rule, 1.0).deeper([0.3], 1), "0.29 for 0.1 and 0.1"
    for _ in range(50):
        rule.learn(1, 1, 1, 0)
    assert not settled(rule, 1.0).deeper([0.3], 1), "0.15 again"
    rule.learn(0, 3, 900, 900)
    assert not settled(rule, 1.0).deeper([0.3], 1), "what was looked up says nothing about the draft"


def test_the_rule_without_costs_keeps_what_is_probable_enough() -> None:
    rule = AtLeast(0.3)
    assert (rule.asks(), rule.count([0.9, 0.3, 0.2]), rule.deeper([0.1], 1)) == (True, 2, True)
    rule.learn(1, 2, 2, 0)
    assert rule.count([0.9, 0.3, 0.2]) == 2
