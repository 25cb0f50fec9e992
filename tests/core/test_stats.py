"""Ratios and their intervals against known answers."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from draftlab.core import stats
from draftlab.errors import UserError


def test_ratio_sums_before_it_divides():
    actual = stats.ratio([1, 9], [10, 10])
    assert actual.estimate == 0.5
    assert actual.n == 2
    assert stats.ratio([1, 90], [10, 100]).estimate == pytest.approx(91 / 110)


def test_interval_covers_the_truth_at_its_rate():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        visited = rng.integers(5, 60, 80)
        accepted = rng.binomial(visited, 0.7)
        actual = stats.ratio(accepted, visited, seed=trial)
        hits += actual.low <= 0.7 <= actual.high
    assert 0.90 <= hits / 200 <= 0.98


def test_each_end_of_an_interval_is_196_standard_errors_away():
    values = np.random.default_rng(0).normal(5, 1, 400)
    error = values.std() / 20
    intervals = [stats.ratio(values, np.ones(400), seed=seed) for seed in range(10)]
    assert np.mean([(it.estimate - it.low) / error for it in intervals]) == pytest.approx(1.96, abs=0.1)
    assert np.mean([(it.high - it.estimate) / error for it in intervals]) == pytest.approx(1.96, abs=0.1)


def test_correlated_tokens_widen_the_interval():
    rng = np.random.default_rng(0)
    visited = np.full(100, 50)
    independent = stats.ratio(rng.binomial(50, 0.5, 100), visited)
    clustered = stats.ratio(np.where(rng.random(100) < 0.5, 50, 0), visited)
    assert clustered.high - clustered.low > 3 * (independent.high - independent.low)


def test_paired_difference_is_tighter_than_two_intervals():
    rng = np.random.default_rng(1)
    visited = rng.integers(20, 60, 100)
    easy = rng.random(100) * 0.5
    before, after = visited * easy, visited * (easy + 0.1)
    actual = stats.ratio_difference(after, visited, before, visited)
    assert actual.estimate == pytest.approx(0.1)
    assert actual.high - actual.low < 1e-9
    assert stats.ratio(before, visited).high - stats.ratio(before, visited).low > 0.02
    assert stats.ratio_difference([3, 3], [4, 8], [1, 1], [4, 4]).estimate == 6 / 12 - 2 / 8


def test_the_order_of_requests_changes_no_interval():
    rng = np.random.default_rng(0)
    sums = rng.integers(1, 40, (4, 30))
    shuffled = sums[:, rng.permutation(30)]
    assert stats.ratio_difference(*sums) == stats.ratio_difference(*shuffled)
    once = stats.ratio(*sums[:2])
    assert once == stats.ratio(*shuffled[:2])
    stats._bootstrap.cache_clear()
    assert once == stats.ratio(*sums[:2]), "the same seed gives the same interval"
    assert once != stats.ratio(*sums[:2], seed=1)


def test_ratio_table_takes_seeds_of_a_request_as_one_cluster():
    frame = pd.DataFrame({"m": ["a"] * 4, "request_id": [0, 0, 1, 1], "x": [1, 2, 3, 4], "y": [10, 10, 10, 10]})
    table = stats.ratio_table(frame, "x", "y", ["m"])
    assert table.loc[0, "n"] == 2
    assert table.loc[0, "estimate"] == pytest.approx(0.25)


def test_a_row_without_a_value_counts_nowhere_in_a_table() -> None:
    """Where the numerator was not measured, it is not 0."""
    rows = pd.DataFrame(
        {"scheme": ["a", "a", "b"], "request_id": [0, 1, 0], "hits": [3, np.nan, np.nan], "tries": [4, 4, 4]}
    )
    table = stats.ratio_table(rows, "hits", "tries", ["scheme"])
    assert table["scheme"].tolist() == ["a", "b"]
    assert_allclose(table["estimate"], [0.75, np.nan])
    assert table["n"].tolist() == [1, 0]


def test_a_request_of_nothing_counts_nowhere_in_a_table() -> None:
    """One request that drafted and 29 that did not are one request, whose spread is not known."""
    rows = pd.DataFrame({"draft": "a", "request_id": range(30), "hits": [3] + [0] * 29, "tries": [4] + [0] * 29})
    (row,) = stats.ratio_table(rows, "hits", "tries", ["draft"]).to_dict("records")
    assert (row["estimate"], row["n"]) == (0.75, 1)
    assert np.isnan(row["ci_low"])


def test_moving_ratio_never_looks_ahead():
    values = stats.moving_ratio([0, 0, 10, 10], [10, 10, 10, 10], window=2)
    assert_allclose(values, [0, 0, 0.5, 1])


def test_no_denominator_is_nan_not_zero():
    assert np.isnan(stats.ratio([0, 0], [0, 0]).estimate)
    assert np.isnan(stats.moving_ratio([0.0], [0.0], 1)[0])


def test_a_resample_without_a_denominator_is_left_out_without_a_warning():
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        drawn = stats.ratio([1, 1, 1], [0, 0, 3])
    assert drawn.estimate == 1
    assert np.isfinite([drawn.low, drawn.high]).all()
    for nothing in ([0], [-2]):
        assert np.isnan(stats.ratio([1], nothing).estimate)
        assert np.isnan(stats.ratio_difference([1], [1], [1], nothing).estimate)
        assert np.isnan(stats.percent_of(([1], [1]), ([1], nothing)).estimate)


def test_rows_with_an_empty_axis_have_a_line_of_the_table() -> None:
    frame = pd.DataFrame({"replay": [0.0, np.nan, np.nan], "request_id": [0, 0, 1], "hits": [1, 2, 3], "tries": 4})
    actual = stats.ratio_table(frame, "hits", "tries", ["replay"])
    np.testing.assert_array_equal(actual["replay"], [0.0, np.nan])
    np.testing.assert_array_equal(actual["estimate"], [1 / 4, 5 / 8])


def test_an_interval_of_numbers_that_are_not_negative_ends_at_zero() -> None:
    few = ([0, 0, 3], [10, 10, 10])
    assert stats.ratio(*few).low == 0
    assert stats.ratio([0, 0, -3], [10, 10, 10]).low < stats.ratio([-1, 0, 3], [10, 10, 10]).low < 0
    assert stats.ratio_difference(*few, [0, 0, 0], [10, 10, 10]).low < 0


def test_the_interval_of_a_share_ends_at_one_and_that_of_a_ratio_of_times_does_not() -> None:
    """With few requests Student's quantile reaches beyond what a share can be."""
    accepted, visited = [0, 1, 2, 3], [3, 1, 2, 3]
    assert stats.ratio(accepted, visited).high == 1
    assert stats.ratio([0.25, 1.0, 2.0, 3.0], [3.0, 1.0, 2.0, 3.0]).high > 1


def test_numbers_of_different_requests_are_refused():
    """numpy said "inhomogeneous shape"."""
    for columns in (([1, 2], [2, 4, 6]), ([[1, 2]], [[2, 4]])):
        with pytest.raises(UserError, match="numbers of different requests"):
            stats.ratio(*columns)
