"""Contrasts: which rows count, what is computed from them, the order of groups, and which option stands out."""

import dataclasses
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ttest_ind

from draftlab.core import stats
from draftlab.core.measure import Measure
from draftlab.errors import UserError
from draftlab.files.tables import read_table
from draftlab.report import tidy
from draftlab.report.contrast import Contrast, Selection, Tables, compute, compute_each
from draftlab.report.intervals import correct, decide, digits_of, show

RATE = Measure("hits", "tries")
A, B = Selection("t", RATE, {"method": "a"}), Selection("t", RATE, {"method": "b"})


@pytest.fixture
def rows():
    """Method b hits one time in ten more than a, in each of two requests of two datasets; the second has twice the tries."""
    hits = {("x", "a"): [1, 9], ("x", "b"): [2, 10], ("y", "a"): [4, 8], ("y", "b"): [6, 10]}
    return pd.DataFrame(
        [
            {
                "dataset": dataset,
                "method": method,
                "request_id": request,
                "hits": value,
                "tries": 10 * (1 + (dataset == "y")),
            }
            for (dataset, method), values in hits.items()
            for request, value in enumerate(values)
        ]
    )


def test_sums_before_it_divides_and_pairs_by_request(rows):
    tables = Tables({"t": rows[rows["dataset"] == "x"]})
    alone = compute(Contrast(A), tables)
    assert (alone.value.estimate, alone.value.n) == (pytest.approx(0.5), 2)
    gap = compute(Contrast(B, A), tables)
    assert gap.value.estimate == pytest.approx(0.1)
    assert (gap.value.low, gap.value.high) == pytest.approx((0.1, 0.1)), "the same difference in every request"
    assert (gap.left.estimate, gap.right.estimate) == pytest.approx((0.6, 0.5))


def test_requests_of_two_datasets_are_two_and_seeds_of_one_are_one(rows):
    assert compute(Contrast(A), Tables({"t": rows})).value.n == 4
    seeds = pd.concat([rows, rows])
    assert compute(Contrast(A), Tables({"t": seeds})).value == compute(Contrast(A), Tables({"t": rows})).value


@pytest.mark.parametrize(("spreads", "expected"), [((1, 1), 9 + 9), ((1, 0), 9), ((0, 1), 9)])
def test_sides_without_a_common_request_have_the_freedom_of_the_side_that_varies(spreads, expected):
    """Welch and Satterthwaite: two equal samples add their degrees, and a constant one adds none."""
    values = [(name, 50 + spread * (-1) ** i) for name, spread in zip("ab", spreads, strict=True) for i in range(10)]
    rows = pd.DataFrame(values, columns=["dataset", "hits"]).assign(tries=100)
    rows = rows.assign(request_id=range(20))
    sides = [Selection("t", RATE, {"dataset": name}) for name in "ab"]
    value = compute(Contrast(*sides), Tables({"t": rows})).value
    assert value.n == 20
    assert value.freedom == pytest.approx(expected)
    hits, first = rows["hits"], (rows["dataset"] == "a").to_numpy()
    by_rows = stats.ratio_difference(hits * first, 100 * first, hits * ~first, 100 * ~first)
    longer = stats.quantile(1, expected) / stats.quantile(1, 19)
    assert longer > 1
    assert value.high - value.low == pytest.approx(longer * (by_rows.high - by_rows.low))
    paired = Contrast(Selection("t", RATE), Selection("t", RATE, {"dataset": ["a", "b"]}))
    assert compute(paired, Tables({"t": rows})).value.freedom is None


@pytest.mark.parametrize(("shared", "expected"), [(5, 4), (1, 3)])
def test_a_few_requests_of_many_are_few(shared, expected):
    """Five requests against 100, of which some are the same; the 100 do not vary, so the difference is as uncertain as the five."""
    few = pd.DataFrame({"method": "a", "request_id": range(5), "hits": [50, 30, 70, 20, 80], "tries": 100})
    many = pd.DataFrame({"method": "b", "request_id": range(5 - shared, 105 - shared), "hits": 50, "tries": 100})
    result = compute(Contrast(A, B), Tables({"t": pd.concat([few, many])}))
    own, value = result.left, result.value
    assert (own.n, value.n) == (5, 105 - shared)
    assert value.freedom == pytest.approx(expected, abs=0.5)
    assert value.high - value.low > 0.95 * (own.high - own.low)


def test_the_freedom_of_two_means_is_that_of_welch():
    sides = {"a": [3.0, 5.0, 4.0], "b": [1.0, 9.0, 2.0, 8.0, 4.0, 7.0, 3.0]}
    rows = pd.DataFrame([(name, value) for name in sides for value in sides[name]], columns=["dataset", "hits"])
    rows = rows.assign(tries=1, request_id=range(10))
    value = compute(Contrast(*(Selection("t", RATE, {"dataset": n}) for n in "ab")), Tables({"t": rows})).value
    assert value.freedom == pytest.approx(ttest_ind(*sides.values(), equal_var=False).df)


@pytest.mark.parametrize("ids", [(0, 1), (0, 0)])
def test_nothing_is_decided_by_a_side_of_one_request(ids):
    rows = pd.DataFrame({"method": ["a", "b"], "request_id": ids, "hits": [9, 1], "tries": 10})
    value = compute(Contrast(A, B), Tables({"t": rows})).value
    assert (value.estimate, value.low, value.high) == (pytest.approx(0.8), -math.inf, math.inf)
    assert decide(correct(value, 3)) == "level"
    assert show(value, 1) == "0.8"
    assert digits_of([value], 2) == 2
    assert decide(compute(Contrast(A, 0.5), Tables({"t": rows})).value) == "level"
    many = pd.concat([rows, *(rows[1:].assign(request_id=number) for number in range(50))])
    assert decide(compute(Contrast(A, B), Tables({"t": many})).value) == "level", "50 requests on the other side"
    exact = Tables({"t": rows.drop(columns="request_id")})
    assert decide(compute(Contrast(A, B), exact).value) == decide(compute(Contrast(A, 0.5), exact).value) == "more"


def test_a_quotient_has_the_freedom_of_relative_variances():
    """Ten per cent each way over 3 requests of a small ratio weigh more than as much over 100 of a large one."""
    sides = {"a": [0.9, 1.0, 1.1], "b": [90.0, 110.0] * 50}
    values = [(name, value) for name, each in sides.items() for value in each]
    rows = pd.DataFrame(values, columns=["dataset", "hits"]).assign(tries=1).assign(request_id=range(103))
    found = [
        compute(Contrast(*(Selection("t", RATE, {"dataset": n}) for n in "ab"), relation=relation), Tables({"t": rows}))
        for relation in ("percent", "difference")
    ]
    assert found[0].value.freedom < 10 < 90 < found[1].value.freedom


def test_a_row_without_a_value_counts_nowhere(rows):
    absent = rows.assign(hits=rows["hits"].astype(float).where(rows["request_id"] == 0))
    for units in (absent, absent.drop(columns="request_id")):
        value = compute(Contrast(A), Tables({"t": units})).value
        assert (value.estimate, value.n) == (pytest.approx(5 / 30), 2)
    nothing = Tables({"t": rows.assign(hits=math.nan)})
    assert math.isnan(compute(Contrast(A), nothing).value.estimate)


def test_a_unit_without_tries_is_no_unit(rows):
    more = pd.concat(
        [rows, *(rows.assign(request_id=rows["request_id"] + 2 * i, hits=0, tries=0) for i in range(1, 9))]
    )
    few, many = (compute(Contrast(A, B), Tables({"t": table})).value for table in (rows, more))
    assert few.n == many.n == 4
    assert (few.low, few.high) == (many.low, many.high)


def test_a_constant_moves_the_interval(rows):
    tables = Tables({"t": rows})
    alone, over = compute(Contrast(A), tables).value, compute(Contrast(A, 0.25), tables).value
    assert over == stats.Interval(alone.estimate - 0.25, alone.low - 0.25, alone.high - 0.25, 4)


@pytest.mark.parametrize(("relation", "expected"), [("percent", 28 / 22 * 100), ("percent_more", 28 / 22 * 100 - 100)])
@pytest.mark.parametrize("exact", [False, True])
def test_a_percentage_is_of_the_right_side(rows, relation, expected, exact):
    tables = Tables({"t": rows.drop(columns="request_id") if exact else rows})
    found = compute(Contrast(B, A, relation=relation), tables).value
    assert found.estimate == pytest.approx(expected)
    assert math.isnan(found.low) == exact


def test_a_side_of_which_nothing_is_counted_gives_no_warning(rows):
    """Requests of its own, and 0 % of what the other side has."""
    none = rows[rows["method"] == "b"].assign(dataset="z", hits=0)
    tables = Tables({"t": pd.concat([rows[rows["method"] == "a"], none])})
    with warnings.catch_warnings(action="error"):
        found = compute(Contrast(B, A, relation="percent"), tables)
        other = compute(Contrast(A, B, relation="percent"), tables)
    assert (found.value.estimate, found.value.low, found.value.high) == (0, 0, 0)
    assert math.isnan(other.value.estimate)


def test_each_group_is_compared_with_its_own_rows(rows):
    found = compute_each(Contrast(B, A, each=["dataset"]), Tables({"t": rows}))
    assert [result.group for result in found] == [{"dataset": "x"}, {"dataset": "y"}]
    assert [result.value.estimate for result in found] == pytest.approx([0.1, 0.1])
    some = rows[(rows["dataset"] == "x") | (rows["method"] == "b")]
    (alone,) = compute_each(Contrast(B, A, each=["dataset"]), Tables({"t": some}))
    assert alone.group == {"dataset": "x"}


def test_the_group_replaces_a_filter_of_the_right_side(rows):
    right = dataclasses.replace(A, where={"method": "a", "dataset": "x"})
    found = compute_each(Contrast(B, right, each=["dataset"]), Tables({"t": rows}))
    assert [result.right.estimate for result in found] == pytest.approx([0.5, 0.3])


@pytest.mark.parametrize(("sign", "best"), [(1, ["b", "a", "c"]), (-1, ["c", "a", "b"])])
def test_the_best_is_ranked_by_its_end(rows, sign, best):
    worst = rows[rows["method"] == "a"].assign(method="c", hits=lambda rows: rows["hits"] - 1)
    tables = Tables({"t": pd.concat([rows, worst])})
    found = compute(Contrast(Selection("t", RATE), best=["method"], sign=sign), tables)
    assert [option["method"] for option in found.options] == best
    assert found.alike is None
    assert found.value.estimate == pytest.approx(found.left.estimate - found.right.estimate)


def test_a_column_that_repeats_the_comparison_is_not_compared(rows):
    found = compute_each(
        Contrast(Selection("t", RATE), each=["dataset"], best=["dataset", "method"]), Tables({"t": rows})
    )
    assert [result.group for result in found] == [{"dataset": "x"}, {"dataset": "y"}]
    assert [result.options for result in found] == [[{"method": "b"}, {"method": "a"}]] * 2


@pytest.mark.parametrize("sign", [1, -1])
def test_an_option_without_a_value_is_not_the_best(rows, sign):
    absent = rows[rows["method"] == "a"].assign(method="c", hits=0, tries=0)
    tables = Tables({"t": pd.concat([rows, absent])})
    found = compute(Contrast(Selection("t", RATE), best=["method"], sign=sign), tables)
    assert {option["method"] for option in found.options} == {"a", "b"}
    assert found.alike is None


def test_the_best_stands_out_only_from_all_others():
    table = pd.DataFrame(
        {"request_id": [*range(20)] * 3, "method": ["a"] * 20 + ["b"] * 20 + ["c"] * 20, "tries": 10.0}
    )
    table["hits"] = [5 + i % 3 for i in range(20)] + [5 + (i + 1) % 3 for i in range(20)] + [1.0] * 20
    ask = Contrast(Selection("t", RATE), best=["method"])
    assert compute(ask, Tables({"t": table})).alike
    assert compute(ask, Tables({"t": table[table["method"] != "b"]})).alike is None
    assert compute(ask, Tables({"t": table[table["method"] == "b"]})) is None, "nothing to compare with"
    table["hits"] = [9.0] * 20 + [8.9] * 20 + [0.0, 17.0] * 10  # surely above the second, but not above the third
    assert compute(ask, Tables({"t": table})).alike


def test_an_exact_table_has_no_interval(rows):
    tables = Tables({"t": rows.drop(columns="request_id")})
    gap = compute(Contrast(B, A), tables).value
    assert (gap.estimate, gap.n) == (pytest.approx(0.1), 4)
    assert math.isnan(gap.low)
    assert compute(Contrast(dataclasses.replace(A, largest=True)), tables).value.estimate == 9


@pytest.mark.parametrize(
    ("relation", "expected"), [("percent", math.nan), ("percent_more", math.nan), ("difference", 2)]
)
def test_in_an_exact_table_nothing_is_divided_by_zero(relation, expected):
    table = pd.DataFrame({"method": ["a", "b"], "hits": [2.0, 0.0], "tries": [1.0, 1.0]})
    value = compute(Contrast(A, B, relation=relation), Tables({"t": table})).value
    assert value.estimate == pytest.approx(expected, nan_ok=True)
    without = Tables({"t": table.assign(tries=0.0)})
    assert math.isnan(compute(Contrast(A, 1.0), without).value.estimate), "as where there are requests"


def test_a_label_may_be_what_pandas_takes_for_no_value(tmp_path):
    labels = ["None", "NA", "null", "code"]
    (tmp_path / "t.csv").write_text(
        "request_id,group,a,b\n" + "".join(f"{i},{name},1,\n" for i, name in enumerate(labels))
    )
    table = read_table(tmp_path / "t.csv")
    results = compute_each(Contrast(Selection("t", Measure("a")), each=["group"]), Tables({"t": table}))
    assert [result.group["group"] for result in results] == labels
    assert table["b"].isna().all()


def test_an_empty_axis_is_a_group_of_its_own_but_in_an_exact_table(rows):
    table = rows.assign(k=np.where(rows["dataset"] == "x", 1.0, np.nan))
    for frame, groups in ((table, 2), (table.drop(columns="request_id"), 1)):
        assert len(compute_each(Contrast(A, each=["k"]), Tables({"t": frame}))) == groups


def test_without_a_denominator_it_is_the_mean(rows):
    found = compute(Contrast(Selection("t", Measure("hits"), {"method": "a"})), Tables({"t": rows}))
    assert found.value.estimate == pytest.approx((1 + 9 + 4 + 8) / 4)


def test_a_column_that_is_not_there_is_refused(rows):
    with pytest.raises(UserError, match="table t has no column 'way'"):
        compute(Contrast(Selection("t", RATE, {"way": 1})), Tables({"t": rows}))
    with pytest.raises(UserError, match="table t has no column 'tries'"):
        compute(Contrast(A), Tables({"t": rows.drop(columns="tries")}))


def test_absent_tables_and_absent_rows_have_no_result(rows):
    assert compute(Contrast(A), Tables({})) is None
    assert compute(Contrast(Selection("t", RATE, {"method": "c"})), Tables({"t": rows})) is None
    assert compute(Contrast(A, Selection("t", RATE, {"method": "c"})), Tables({"t": rows})) is None
    assert compute_each(Contrast(A, each=["dataset"]), Tables({})) == []


@pytest.mark.parametrize(
    ("low", "high", "side"), [(0.1, 0.3, "more"), (-0.3, -0.1, "less"), (-0.1, 0.1, "level"), (0.0, 0.2, "level")]
)
def test_an_interval_decides_where_it_leaves_out_the_level(low, high, side):
    gap = stats.Interval((low + high) / 2, low, high, 9)
    assert decide(gap) == side
    assert decide(stats.Interval(gap.estimate + 1, low + 1, high + 1, 9), 1.0) == side


def test_without_an_interval_the_estimate_decides():
    assert [decide(stats.Interval(value, math.nan, math.nan, 9)) for value in (0.1, -0.1, 0)] == [
        "more",
        "less",
        "level",
    ]


def test_it_is_shown_with_its_interval():
    gap = stats.Interval(0.123, -0.1, 0.3, 9)
    assert show(gap, 2) == "0.12 [-0.10, 0.30]"
    assert show(gap, 2, sign="+") == "+0.12 [-0.10, +0.30]"
    assert show(gap, 1, alone=True) == show(stats.Interval(0.123, math.nan, math.nan, 9), 1) == "0.1"


@pytest.mark.parametrize(("width", "digits"), [(3.4, 0), (3.3, 1), (0.034, 2), (0.033, 3), (1e-8, 6), (1e-10, 2)])
def test_the_last_decimal_is_at_most_a_third_of_the_interval(width, digits):
    assert digits_of([stats.Interval(0, 0, width, 9)], 2) == digits


@pytest.mark.parametrize("apart", ["dataset", "split", "moment", "traffic"])
def test_the_same_number_elsewhere_is_another_unit(apart):
    rows = pd.DataFrame({"block": [0, 1, 0, 1], "seconds": 1.0})
    assert tidy.resampled_ids(rows).nunique() == 2
    assert tidy.resampled_ids(rows.assign(**{apart: [0, 0, 1, 1]})).nunique() == 4
