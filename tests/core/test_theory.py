"""Closed forms against the numbers printed in the paper and its code."""

import pytest

from draftlab.core import theory
from draftlab.errors import UserError


def test_table_7_of_the_33b_pair_is_eq_1_at_other_settings_than_stated():
    printed = {0.5: 1.31, 0.6: 1.59, 0.7: 1.96, 0.8: 2.46, 0.9: 3.12}
    for alpha, value in printed.items():
        assert theory.speedup(alpha, draft_len=5, cost_ratio=0.1) == pytest.approx(value, abs=0.006)
    assert theory.speedup(0.9, draft_len=8, cost_ratio=0.08) == pytest.approx(3.74, abs=0.006)


def test_table_7_of_the_7b_pair_is_eq_1_as_stated():
    for alpha, value in {0.5: 0.98, 0.6: 1.21, 0.7: 1.57, 0.8: 2.12, 0.9: 3.00}.items():
        assert theory.speedup(alpha, draft_len=8, cost_ratio=0.13) == pytest.approx(value, abs=0.006)


def test_best_draft_len_of_the_reference_cost_model():
    assert [theory.best_draft_len(0.6, c) for c in (0.01, 0.02, 0.05, 0.1)] == [7, 6, 4, 3]


def test_best_draft_len_is_one_of_the_lengths_from_one_to_the_longest():
    assert theory.best_draft_len(1.0, 0.0, longest=3) == 3
    assert theory.best_draft_len(0.1, 0.5) == 1, "even where no draft would be faster"


def test_no_draft_length_is_refused():
    with pytest.raises(UserError, match="no draft length to choose from"):
        theory.best_draft_len(0.8, 0.02, {})


def test_acceptance_of_one_emits_the_whole_block():
    assert theory.expected_block_length(1.0, 5) == 6
    assert theory.expected_block_length(0.0, 5) == theory.expected_block_length(0.7, 0) == 1


def test_table_5_gigabytes():
    pair = theory.ModelSize(14, 0), theory.ModelSize(0.32, 0)
    terms = theory.memory_traffic(*pair, tokens=128, block_length=1.4, online_block_length=3.4, update_interval=8)
    rounded = {system: sum(parts.values()) for system, parts in terms.items()}
    assert rounded["original"] == 1792
    assert rounded["vsd"] == pytest.approx(1320.96)
    assert rounded["osd"] == pytest.approx(573.1, abs=0.1)


def test_distillation_speedup_of_table_1():
    assert theory.distillation_speedup(0.28, 0.76, 5) == pytest.approx(2.42, abs=0.01)


@pytest.mark.parametrize("alpha", [-0.1, 1.1])
def test_alpha_outside_its_range_is_refused(alpha):
    with pytest.raises(UserError, match="alpha"):
        theory.speedup(alpha, 3, 0.1)


@pytest.mark.parametrize("ratios", [{"cost_ratio": -0.1}, {"cost_ratio": 0.1, "verify_ratio": 0.0}])
def test_a_draft_with_a_negative_cost_or_a_verification_for_nothing_is_refused(ratios):
    with pytest.raises(UserError, match="cost_ratio"):
        theory.speedup(0.8, 3, **ratios)


@pytest.mark.parametrize("wrong", [{"tokens": 0}, {"block_length": 0}, {"batch": 0}])
def test_traffic_of_nothing_is_refused(wrong):
    given = {"tokens": 8, "context": 9, "draft_len": 2, "block_length": 2} | wrong
    with pytest.raises(UserError, match="traffic_terms"):
        theory.traffic_terms(theory.ModelSize(1, 1), theory.ModelSize(1, 1), **given)


@pytest.mark.parametrize(
    ("function", "given", "name"),
    [
        (
            theory.break_even_block_length,
            {"per_block": 1, "fixed": 0, "online_fixed": 0, "block_length": 0},
            "block_length",
        ),
        (
            theory.update_flops_ratio,
            {"draft_len": 4, "block_length": 2, "target_flops": 1, "draft_flops": 0},
            "draft_flops",
        ),
        (theory.load_flops, {"tokens_per_request": 1, "requests": 1, "days": 0, "flops_per_token": 1}, "days"),
    ],
)
def test_a_division_by_nothing_names_the_number(function, given, name):
    with pytest.raises(UserError, match=f"{name} is 0 .give a number above 0"):
        function(**given)
