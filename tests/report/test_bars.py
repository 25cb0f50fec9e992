"""What the published tables of scale laptop must show; a table that has not been published yet is skipped."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from draftlab.core import stats
from draftlab.report import published, tidy
from tests.conftest import ROOT

DATASETS = ("spider", "gsm8k", "code_search_net", "finance_alpaca")
TABLES = ROOT / "paper_figures" / "laptop" / "data"


@pytest.fixture
def table(request) -> pd.DataFrame:
    """The rows of the published table that a test names with ``table``, measured on the stream where others are too."""
    path = TABLES / f"{request.node.get_closest_marker('table').args[0]}.csv"
    if not path.exists():
        pytest.skip(f"{path.stem} is not published")
    rows = pd.read_csv(path)
    return rows[rows["measured_on"] == "stream"] if "measured_on" in rows else rows


def chosen(rows: pd.DataFrame, first: int | None = None, last: int | None = None, **where: Any) -> pd.DataFrame:
    """Rows with these values, of the records from ``first`` to before ``last`` (negative: from the end of the stream)."""
    for column, value in where.items():
        rows = rows[rows[column] == value]
    assert len(rows)
    if "record" not in rows:
        return rows
    end = rows["record"].max() + 1
    begin = (first or 0) if (first or 0) >= 0 else end + (first or 0)
    return rows[(rows["record"] >= begin) & (rows["record"] < (end if last is None else last))]


def alpha(rows: pd.DataFrame) -> float:
    return float(rows["overlap"].sum() / rows["visited"].sum())


def gap(one: pd.DataFrame, two: pd.DataFrame, ratio: tuple[str, str] = ("overlap", "visited")) -> stats.Interval:
    """A ratio (alpha) of ``one`` less that of ``two``, paired by request or place, the seeds together."""
    keys = [key for key in ("dataset", "group") if key in one]
    sums = [rows.groupby([*keys, tidy.unit(one)])[list(ratio)].sum() for rows in (one, two)]
    both = sums[0].index.intersection(sums[1].index)
    assert len(both) >= 5
    return stats.ratio_difference(*(rows.loc[both, column] for rows in sums for column in ratio))


# --- offline -----------------------------------------------------------------------------------------------------


@pytest.mark.table("osd_offline")
@pytest.mark.parametrize("dataset", DATASETS)
def test_offline_distillation_gains(table, dataset):
    before = chosen(table, dataset=dataset, method="original")
    assert 0.08 <= alpha(before) <= 0.55
    after = chosen(table, dataset=dataset, method="teacher_forward_kl")
    assert gap(after, before).low >= 0.30
    assert gap(after, chosen(table, dataset=dataset, method="student_forward_kl")).low >= 0.15


@pytest.mark.table("osd_epochs")
@pytest.mark.parametrize("dataset", DATASETS)
def test_most_of_the_gain_comes_in_the_first_epoch(table, dataset):
    before, first, second = (alpha(chosen(table, dataset=dataset, epoch=epoch)) for epoch in (0, 1, 2))
    assert first - before >= 0.25
    assert second > first


# --- online ------------------------------------------------------------------------------------------------------


@pytest.mark.table("osd_online")
@pytest.mark.parametrize("dataset", DATASETS)
def test_an_online_draft_overtakes_static_ones(table, dataset):
    online, static, tenth = (chosen(table, dataset=dataset, method=m) for m in ("online", "static", "static_10"))
    assert gap(chosen(online, -100), chosen(static, -100)).low >= 0.25
    assert gap(chosen(online, -100), chosen(tenth, -100)).low >= 0.10
    assert gap(chosen(online, 500, 600), chosen(tenth, 500, 600)).low > 0


@pytest.mark.table("osd_offline_t5")
@pytest.mark.parametrize("dataset", DATASETS)
def test_distillation_raises_the_acceptance_of_a_t5_draft(table, dataset):
    before = chosen(table, dataset=dataset, method="original")
    assert 0.08 <= alpha(before) <= 0.65
    assert gap(chosen(table, dataset=dataset, method="teacher_forward_kl"), before).low >= 0.15


@pytest.mark.table("osd_online_t5")
@pytest.mark.parametrize("dataset", DATASETS)
def test_a_t5_draft_learns_while_it_serves(table, dataset):
    online, static = (chosen(table, -100, dataset=dataset, method=method) for method in ("online", "static"))
    assert gap(online, static).low >= 0.10


@pytest.mark.table("osd_shift_sharp")
@pytest.mark.parametrize("segment", range(4))
def test_an_online_draft_falls_at_a_sharp_shift_and_recovers_within_200_records(table, segment):
    online, static = (chosen(table, method=method, segment=segment) for method in ("online", "static"))
    begin = online["record"].min()
    lead = [
        gap(chosen(online, begin + a, begin + b), chosen(static, begin + a, begin + b))
        for a, b in ((0, 50), (150, 250))
    ]
    assert lead[1].low > 0
    assert gap(chosen(online, -100), chosen(static, -100)).low >= 0.10
    if segment:
        before = [chosen(table, begin - 100, begin, method=method) for method in ("online", "static")]
        assert gap(*before).low > lead[0].high + 0.10


@pytest.mark.table("beyond_update_interval")
def test_rare_updates_learn_less(table):
    rates = chosen(table, -150, sweep="learning_rate", learning_rate=2e-3)
    assert gap(chosen(rates, update_interval=8), chosen(rates, update_interval=64)).low >= 0.05


@pytest.mark.table("beyond_loss_positions")
@pytest.mark.parametrize("dataset", ["spider", "finance_alpaca"])
def test_the_repositorys_positions_learn_less(table, dataset):
    rows = chosen(table, -200, dataset=dataset)
    rejected, late, every = (chosen(rows, loss_positions=which) for which in ("rejected", "repository", "all"))
    assert gap(rejected, late).low >= 0.05
    assert gap(every, rejected).low > -0.02


@pytest.mark.table("beyond_temperature_online")
def test_online_learning_works_when_the_target_samples(table):
    rows = chosen(table, -200, temperature=1.0)
    assert gap(chosen(rows, method="online"), chosen(rows, method="static")).low >= 0.20


# --- routing -----------------------------------------------------------------------------------------------------


@pytest.mark.table("osd_routing")
def test_live_routing_is_right_and_separate_drafts_keep_up_at_equal_updates_each(table):
    rows = chosen(table, traffic="datasets")
    routed = chosen(rows, method="separate_fast")
    assert routed["misrouted"].sum() / routed["requests"].sum() <= 0.05
    late = int(rows["record"].max() // 2)
    assert gap(chosen(routed, late), chosen(rows, late, method="shared")).low >= -0.02


@pytest.mark.table("beyond_specialised")
def test_one_shared_draft_needs_the_union_of_the_data(table):
    for draft in ("draft_small", "draft", "draft_large"):
        rows = chosen(table, draft=draft)
        shared, quarter, separate = (chosen(rows, method=m) for m in ("shared", "shared_quarter", "separate"))
        assert gap(separate, quarter).low > 0
        assert gap(shared, quarter).low > 0


# --- several drafts ----------------------------------------------------------------------------------------------

ACCEPTED, EMITTED = ("acceptance_sum", "positions"), ("emitted", "blocks")


@pytest.mark.table("mdss_acceptance")
@pytest.mark.parametrize("temperature", [1.2, 1.6, 2.0])
@pytest.mark.parametrize("drafts", [2, 4, 8])
def test_schemes_stand_in_the_printed_order_on_hot_drafts_at_top_k_5(table, temperature, drafts):
    rows = chosen(table[table["dataset"] != "synthetic"], draft_temperature=temperature, num_drafts=drafts)
    optimal, importance, k_seq, specinfer = (
        chosen(rows, scheme=scheme) for scheme in ("optimal", "importance_truncated", "k_seq", "specinfer")
    )
    assert gap(optimal, importance, ACCEPTED).estimate >= -1e-9
    assert gap(importance, k_seq, ACCEPTED).low > 0
    assert gap(k_seq, specinfer, ACCEPTED).low > 0


@pytest.mark.table("mdss_acceptance")
@pytest.mark.parametrize("dataset", ["xsum", "dolly"])
@pytest.mark.parametrize("drafts", [2, 4, 8])
def test_gaps_to_the_optimum_have_the_printed_sign_and_order(table, dataset, drafts):
    schemes = ["importance_truncated", "k_seq", "specinfer"]
    printed = published.load().of("T2.acceptance", dataset=dataset, num_drafts=drafts)
    value = {settings["scheme"]: value for settings, value in zip(printed["settings"], printed["value"], strict=True)}
    rows = chosen(table, dataset=dataset, num_drafts=drafts)
    best = chosen(rows, scheme="optimal")
    ours = {scheme: gap(best, chosen(rows, scheme=scheme), ACCEPTED).estimate for scheme in schemes}
    theirs = {scheme: value["optimal"] - value[scheme] for scheme in schemes}
    assert sorted(ours, key=ours.__getitem__) == sorted(theirs, key=theirs.__getitem__) == schemes
    assert min(theirs.values()) > 0
    assert ours["importance_truncated"] >= -1e-9
    assert ours["k_seq"] > 0


@pytest.mark.table("mdss_draft_temperature")
@pytest.mark.parametrize("temperature", [1.0, 1.2, 1.4, 1.6, 2.0, 2.4])
def test_a_second_draft_lengthens_blocks_at_every_temperature(table, temperature):
    rows = chosen(table, draft_temperature=temperature)
    one = chosen(rows, scheme="single")
    for scheme in ("specinfer", "k_seq", "importance_truncated", "optimal"):
        assert gap(chosen(rows, scheme=scheme), one, EMITTED).low > 0


@pytest.mark.table("mdss_quality")
@pytest.mark.parametrize(("dataset", "score"), [("xsum", "rouge_l"), ("wmt16", "bleu")])
@pytest.mark.parametrize("scheme", ["single", "specinfer", "k_seq", "importance_truncated"])
def test_quality_does_not_move(table, dataset, score, scheme):
    rows = chosen(table, dataset=dataset).assign(answers=1.0)
    moved = gap(chosen(rows, scheme=scheme), chosen(rows, scheme="plain"), (score, "answers"))
    assert moved.low <= 0.03
    assert moved.high >= -0.03


@pytest.mark.table("beyond_online_multidraft")
@pytest.mark.parametrize("mixture", ["two", "four"])
@pytest.mark.parametrize("rival", ["routed", "shared"])
def test_specialists_together_fall_behind_copies_of_one_draft(table, mixture, rival):
    rows = chosen(table, mixture=mixture, scheme="importance_truncated")
    assert gap(chosen(rows, drafts="specialists"), chosen(rows, drafts=rival), EMITTED).high < 0
