"""Exact acceptance on toy laws and on recorded pairs."""

import pandas as pd
import pytest
import torch

from draftlab import experiments, multidraft
from draftlab.errors import UserError
from draftlab.records import Answer
from tests.test_distill import small_llama


def test_region_has_the_printed_values():
    rows = multidraft.region([2], points=61)
    left = rows[(rows["panel"] == "left") & ((rows["q2"] - 1 / 3).abs() < 1e-12)].set_index("scheme")["acceptance"]
    assert left["optimal"] == pytest.approx(1)
    assert left["k_seq"] == pytest.approx(1)
    table = rows.pivot_table(index=["panel", "q2"], columns="scheme", values="acceptance")
    assert len(table) == 122
    assert (table["optimal"] >= table["k_seq"] - 1e-9).all()
    assert (table["k_seq"] >= table["specinfer"] - 1e-9).all()
    assert (table["specinfer"] >= table["single"] - 1e-12).all()
    assert ((table["optimal"] - table["importance"]).abs() < 1e-6).all()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    path = tmp_path_factory.mktemp("pairs") / "pairs.safetensors"
    answers = [Answer(str(i), [1, 5 + i], [7, 9, 11, 2], True) for i in range(5)]
    multidraft.record_pairs(small_llama(32, 0), small_llama(16, 1), answers, 18, path)
    return path


def settings(**changes):
    values = {
        "dataset": "toy",
        "schemes": ["optimal", "importance_truncated", "k_seq", "specinfer", "single"],
        "num_drafts": [2, 4],
        "draft_temperature": [1.0, 2.0],
        "top_k": 100,
    }
    return experiments.Acceptance(**(values | changes))


def test_recorded_pairs_stop_at_the_number_asked_for(pairs):
    rows = multidraft.acceptance(pairs, settings())
    one = rows[(rows["scheme"] == "single") & (rows["num_drafts"] == 2) & (rows["draft_temperature"] == 1.0)]
    assert one["positions"].sum() == 18
    assert list(one["positions"]) == [4, 4, 4, 4, 2]


def test_no_scheme_beats_the_optimum_and_single_does_not_see_more_drafts(pairs):
    rows = multidraft.acceptance(pairs, settings())
    sums = rows.groupby(["draft_temperature", "num_drafts", "scheme"])["acceptance_sum"].sum().unstack()
    for scheme in sums.columns:
        assert (sums[scheme] <= sums["optimal"] + 1e-6).all()
    assert (sums["optimal"] > 0).all()
    single = sums["single"].unstack()
    pd.testing.assert_series_equal(single[2], single[4], check_names=False)


def test_the_draft_temperature_reaches_the_draft_alone(pairs):
    cold = multidraft.acceptance(pairs, settings(schemes=["single"], draft_temperature=[1e-6]))
    hot = multidraft.acceptance(pairs, settings(schemes=["single"], draft_temperature=[1e6]))
    assert not torch.isclose(*(torch.tensor(t["acceptance_sum"].sum()) for t in (cold, hot)), atol=1e-3)


def test_an_unknown_scheme_is_refused_with_those_that_exist(pairs):
    with pytest.raises(UserError, match=r"sequoia.*allowed: .*k_seq"):
        multidraft.acceptance(pairs, settings(schemes=["sequoia"]))
