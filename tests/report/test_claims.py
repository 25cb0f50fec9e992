"""Verdicts: every row has one, and a doctored table flips it."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from draftlab.core import stats
from draftlab.report import intervals, judge_numbers, judge_statements, judgement, published, tidy
from draftlab.report import ledger as module
from draftlab.report.contrast import Contrast, Tables, compute
from tests.synthetic import TABLES

EFFECTS = {
    "method": {"online": 0.1, "static": -0.1, "original": -0.2, "separate": 0.05, "separate_fast": 0.1},
    "sample_source": {"none": -0.35},
    "scheme": {"optimal": 0.1, "importance_truncated": 0.08, "k_seq": 0.06, "specinfer": 0.04, "single": -0.1},
    "contender": {"plain": -0.45, "distilled": 0.2, "draft_osd": 0.3, "medusa_osd": 0.15},
    "num_drafts": 0.01,
    "epoch": {0.5: 0.2, 0.6: 0.2, 1.0: 0.2, 1.5: 0.21, 1.6: 0.21, 2.0: 0.21},
}
"""What is better, so that the papers are right."""
RISE = 0.3
"""How much better the last request of a stream is than the first."""


def _by(column, values):
    """What each row's value of a column stands for."""
    return lambda table: table[column].map(values).fillna(1)


SPECIAL = {
    "osd_latency_alpha": {"seconds": lambda t: 4 * t["seconds"]},
    "osd_routing": {"misrouted": 0},
    "osd_latency_length": {"seconds": lambda t: t["seconds"] / t["end"] ** 0.05},
    "osd_shift_sharp": {"overlap": lambda t: t["overlap"] * (1 - 0.5 * (t["stream_index"] % 60 < 8))},
    "osd_update_cost": {"update_seconds": lambda t: 0.1 * t["update_seconds"]},
    "osd_memory_traffic": {"gb": _by("system", {"original": 1792, "vsd": 1320, "osd": 573})},
    "osd_arena_classes": {
        "count": _by(
            "group",
            {"English": 90, "Chinese": 9, "Spanish": 5, "Business_Corporate": 9, "Computers and Technology": 20},
        )
    },
    "mdss_quality": {"rouge_l": 0.2, "bleu": 0.04},
    "mdss_cost": {"ms": _by("scheme", {"optimal": 0.1, "importance_truncated s=5": 0.3})},
    "osd_medusa": {
        "parameters": _by("contender", {"medusa": 7e5, "medusa_osd": 7e5}),
        "epoch_seconds": _by("contender", {"medusa": 9, "medusa_osd": 9}),
    },
}
"""Sizes and times for which they are."""


MORE = {
    "mdss_acceptance": {"request_id": 60},
    "osd_arena_language": {"stream_index": 240},
    "osd_arena_topic": {"stream_index": 240},
    "osd_draft_size_t5": {"request_id": 120},
    "osd_latency_length": {"block": 60, "repeat": 60},
    "osd_shift_sharp": {"stream_index": 240},
    "osd_shift_smooth": {"stream_index": 240},
}
"""Units of the tables whose claims need small intervals."""


def _made(name):
    sizes = MORE.get(name, {})
    effects = EFFECTS | {"stream_index": RISE / sizes.get("stream_index", 60)}
    return tidy.derive(name, TABLES[name](effects, **sizes).assign(**SPECIAL.get(name, {})))


@pytest.fixture(scope="module")
def tables():
    return {
        name: _made(name) for name in TABLES if not name.startswith("beyond_")
    }  # about which the papers say nothing


HOLDS = {"same direction", "printed size excluded"}


def _only(known, *names):
    """The same facts with the ledger restricted to a few claims (and the claims that they are compared with), without checks."""
    rules = [known.claims[name].rule for name in names if name in known.claims]
    others = {change["claim"] for rule in rules if rule for change in rule.against if "claim" in change}
    numbers = known.numbers[known.numbers["claim"].isin({*names, *others})]
    statements = {name: statement for name, statement in known.statements.items() if name in names}
    return dataclasses.replace(known, numbers=numbers, statements=statements, checks={})


def _verdicts(known, tables, scale="laptop"):
    rows = module.judge_claims(known, tables, scale)
    return rows.set_index("claim_id")


@pytest.fixture(scope="module")
def ledger(known, tables):
    return module.judge_claims(known, tables, "laptop")


def test_nothing_is_dropped_and_every_row_has_a_verdict(known, ledger):
    columns = "claim_id paper location quantity setting published ours ci_low ci_high n unit detectable verdict experiment note"
    assert list(ledger.columns) == columns.split()
    assert set(ledger["claim_id"]) == {*known.numbers["claim_id"], *known.statements}
    assert len(ledger) == len(known.numbers) + len(known.statements)
    assert set(ledger["verdict"]) <= set(judgement.CLAIM_VERDICTS)
    assert (ledger["paper"] == "OSD").sum() >= 363
    assert set(ledger["verdict"]) >= {"reproduced", "same direction", "inconsistent in print", "not run at this scale"}


def test_a_run_without_tables_still_lists_everything(known):
    rows = module.judge_claims(known, {}, "laptop")
    assert len(rows) == len(known.numbers) + len(known.statements)
    assert set(rows["verdict"]) == {"not run at this scale", "inconsistent in print", "reproduced"}
    answered = rows[rows["verdict"] == "reproduced"]
    assert answered["note"].str.contains("recomputed").all()


def test_direction_flips_with_the_table(known, tables):
    row = "T1.alpha_offline/vicuna-7b/llama-160m/spider/teacher_fwd"
    facts = _only(known, "T1.alpha_offline", "osd.alpha_rises")
    good = _verdicts(facts, {"osd_offline": tables["osd_offline"]})
    assert good.loc[row, "verdict"] in HOLDS
    assert good.loc["osd.alpha_rises", "verdict"] == "same direction"
    worse = TABLES["osd_offline"]({"sample_source": {"none": 0.15}})
    bad = _verdicts(facts, {"osd_offline": worse})
    assert bad.loc[row, "verdict"] == "contradicts"
    assert bad.loc["osd.alpha_rises", "verdict"] == "contradicts"


def test_the_t5_half_of_a_claim_is_answered_by_the_t5_tables(known):
    """The lines of Figure 3 are those of T5, not those of Table 1; no table of the Llama pair answers a claim about T5."""
    names = ["T1.alpha_offline", "F3.offline_line", "F3.online_late_approx"]
    t5 = {"osd_offline_t5": TABLES["osd_offline"](), "osd_online_t5": TABLES["osd_online"]()}
    answered = _verdicts(_only(known, *names), t5)
    of_t5 = answered.index.str.contains("flan-t5-xl")
    assert of_t5.sum() == 20 + 4 + 8
    assert "not run at this scale" not in set(answered.loc[of_t5, "verdict"])
    assert set(answered.loc[~of_t5, "verdict"]) == {"not run at this scale"}
    assert answered.loc["F3.offline_line/flan-t5-xl/t5-small/spider", "published"] == "0.74"
    other = _verdicts(_only(known, *names), {name.removesuffix("_t5"): table for name, table in t5.items()})
    assert set(other.loc[of_t5, "verdict"]) == {"not run at this scale"}


def test_the_same_setting_can_reproduce(known, tables):
    facts = _only(known, "T1.alpha_offline")
    row = "T1.alpha_offline/vicuna-7b/llama-160m/spider/teacher_fwd"
    table = tables["osd_offline"].copy()
    rows = (table["dataset"] == "spider") & (table["sample_source"] == "teacher") & (table["loss"] == "forward_kl")
    table.loc[rows, "overlap"] = 0.75 * table.loc[rows, "visited"]
    assert _verdicts(facts, {"osd_offline": table}, "paper").loc[row, "verdict"] == "reproduced"
    assert _verdicts(facts, {"osd_offline": table}, "laptop").loc[row, "verdict"] in HOLDS
    own = module.judge_claims(facts, {"osd_offline": table}, "paper", own_models=True).set_index("claim_id")
    assert own.loc[row, "verdict"] in HOLDS, "by models that are not the paper's"
    table.loc[rows, "overlap"] = 0.72 * table.loc[rows, "visited"]  # printed is 0.76, and 0.03 is tolerated
    assert _verdicts(facts, {"osd_offline": table}, "paper").loc[row, "verdict"] in HOLDS


def test_what_needs_no_model_is_reproduced_with_your_own_models_too(known, tables):
    facts = _only(known, "osd.lower_cost_ratio_pays")
    for own in (False, True):
        rows = module.judge_claims(facts, tables, "paper", own_models=own).set_index("claim_id")
        assert rows.loc["osd.lower_cost_ratio_pays", "verdict"] == "reproduced"


def test_a_difference_is_judged_in_one_row(known, tables):
    rows = _verdicts(_only(known, "T1.alpha_offline"), {"osd_offline": tables["osd_offline"]})
    rows = rows[rows.index.str.contains("vicuna-7b/llama-160m/spider/")]
    notes = dict(zip([name.rsplit("/", 1)[1] for name in rows.index], rows["note"], strict=True))
    assert rows["verdict"].iloc[0] == "compared in other rows"
    assert "against original" in notes["teacher_fwd"]
    assert "against teacher_fwd" in notes["student_fwd"]
    assert "against teacher_fwd" not in notes["original"]


def test_a_setting_that_is_printed_twice_is_not_compared_with_itself(known, tables):
    """Table 2 of MDSS v1 prints its default setting in both halves: an alphabet of 40 tokens, and a linear program over 5."""
    rows = _verdicts(_only(known, "v1T2.block_efficiency"), {"mdss_truncation": tables["mdss_truncation"]})
    note = rows.loc["v1T2.block_efficiency/alphabet=40", "note"]
    assert "against alphabet 10" in note
    assert "lp_threshold 5" not in note


def test_a_difference_within_noise_leaves_the_row_undecided(known, tables):
    facts = _only(known, "T1.alpha_offline")
    row = "T1.alpha_offline/flan-t5-xl/t5-small/spider/ft"
    verdict = _verdicts(facts, {"osd_offline_t5": tables["osd_offline"]}).loc[row]
    assert verdict["verdict"] == "undecided"
    assert "within noise" in verdict["note"]
    better = TABLES["osd_offline"](EFFECTS | {"loss": {"forward_kl": 0.2}})
    verdict = _verdicts(facts, {"osd_offline_t5": better}).loc[row]
    assert verdict["verdict"] in HOLDS
    assert "within noise" not in verdict["note"]


@pytest.mark.parametrize(
    ("gains", "verdict", "text"),
    [
        ([0.9, 0.9, 0.9, 0.9], "same direction", "4 of 4 comparisons hold"),
        ([0.9, 0.9, 0.9, 0.0], "undecided", "3 of 4 comparisons hold, 1 undecided"),
        ([0.9, 0.9, 0.9, -0.9], "contradicts", "3 of 4 comparisons hold, 1 fail"),
        # 0.44 is a difference at 95 %, but not if corrected for four comparisons.
        ([0.44, 0.9, 0.9, 0.9], "undecided", "3 of 4 comparisons hold, 1 undecided"),
    ],
)
def test_a_statement_needs_all_of_its_comparisons(known, gains, verdict, text):
    found = _alpha_rises(known, _distilled(gains))
    assert text in found["note"]
    assert found["verdict"] == verdict
    assert 0.02 < found["detectable"] < 0.12


def _distilled(gains):
    """Ten requests of each dataset, of which distillation gains so many of ten tokens."""
    rows = [
        {"dataset": f"d{group}", "request_id": request, "visited": 10.0, "sample_source": source, "loss": loss}
        | {"overlap": 5.0 + (source == "teacher") * (gain + 0.6 * (-1) ** request), "method": source}
        for group, gain in enumerate(gains)
        for source, loss in (("none", "none"), ("teacher", "forward_kl"))
        for request in range(10)
    ]
    return pd.DataFrame(rows)


def _alpha_rises(known, table):
    return _verdicts(_only(known, "osd.alpha_rises"), {"osd_offline": table}).loc["osd.alpha_rises"]


@pytest.mark.parametrize("nothing", ["d0", "d3"])
def test_a_comparison_without_a_value_is_undecided_and_not_the_least_favourable(known, nothing):
    rows = _distilled([0.9, 0.9, -0.9, 0.9])
    rows.loc[rows["dataset"] == nothing, ["overlap", "visited"]] = 0.0
    found = _alpha_rises(known, rows)
    assert found["verdict"] == "contradicts"
    assert (
        "2 of 4 comparisons hold, 1 fail, 1 undecided; least favourable (alpha, dataset d2): -0.09 [" in found["note"]
    )
    assert found["ours"] == pytest.approx(-0.09)
    alone = _alpha_rises(known, rows[rows["dataset"] == nothing])
    assert alone["verdict"] == "undecided"
    least = f"least favourable (alpha, dataset {nothing}): no value"
    assert alone["note"] == f"0 of 1 comparisons hold, 1 undecided; {least}; not run: osd_offline_t5"


def test_a_statement_says_which_of_its_comparisons_have_no_rows(known, tables):
    claim = "osd.other_divergences_not_better"
    every = tables["osd_offline"]
    whole = _verdicts(_only(known, claim), {"osd_offline": every}).loc[claim, "note"]
    assert "not run" not in whole
    part = _verdicts(_only(known, claim), {"osd_offline": every[every["loss"] != "reverse_kl"]}).loc[claim, "note"]
    assert part.endswith("; not run: osd_offline (sample_source teacher, loss reverse_kl)")
    assert _alpha_rises(known, _distilled([0.9]))["note"].endswith("; not run: osd_offline_t5")


def _judge(known, claim, row, table, scale="laptop"):
    """Verdict and note of one printed number, from one table."""
    found = _verdicts(_only(known, claim), {known.claims[claim].rule.table: table}, scale).loc[f"{claim}/{row}"]
    return found["verdict"], found["note"]


@pytest.mark.parametrize(("less", "verdict"), [(0.0, "same direction"), (0.033, "undecided"), (0.3, "contradicts")])
def test_what_counts_as_equal_is_shown_to_be_within_the_margin(known, less, verdict):
    rows = pd.DataFrame(
        {
            "request_id": [*range(40)] * 2,
            "dataset": "wmt16",
            "identical": True,
            "draft_temperature": 1.2,
            "scheme": ["single"] * 40 + ["k_seq"] * 40,
        }
    )
    score = [0.4 + 0.03 * (i % 5) for i in range(40)]
    bleu = [*score, *(value - less - 0.06 * (i % 3 - 1) for i, value in enumerate(score))]
    rows = rows.assign(bleu=bleu)
    others = rows.assign(
        identical=False, bleu=rows["request_id"] % 2
    )  # of two draft temperatures: other printed tables
    judged, note = _judge(known, "v1T6.bleu", "wmt/draft_temperature=1.2/k_seq", pd.concat([rows, others]))
    assert judged == verdict
    assert ("interval not within 0.03" in note) == (verdict == "undecided")


@pytest.mark.parametrize(
    ("gap", "verdict"),
    [
        (0.00815, "same direction"),  # printed 0.0081
        (0.004, "printed size excluded"),
        (1e-8, "contradicts"),
        (0.0, "contradicts"),
    ],
)
def test_the_size_counts_to_the_last_printed_place_and_the_error_of_a_solver_is_no_direction(known, gap, verdict):
    rows = pd.DataFrame({"request_id": [*range(9)] * 2, "dataset": "xsum", "num_drafts": 4, "positions": 1.0})
    rows["scheme"] = ["optimal"] * 9 + ["importance_truncated"] * 9
    rows["acceptance_sum"] = [0.8 + 0.01 * i for i in range(9)] + [0.8 + 0.01 * i - gap for i in range(9)]
    judged, note = _judge(known, "T2.acceptance", "xsum/num_drafts=4/importance_truncated", rows)
    assert judged == verdict
    assert ("no difference" in note) == (gap < 1e-6)


def test_a_setting_of_the_generator_is_no_finding(known):
    """An exact table has no interval: within its margin there is no order."""
    rows = [
        {"slice": 0, "group": g, "count": n, "group_by": "language"} for g, n in (("Chinese", 101), ("Spanish", 100))
    ]
    table = tidy.derive("osd_arena_classes", pd.DataFrame([*rows, {**rows[0], "group": "English", "count": 900}]))
    claim, row = "F2.language_share", "lmsys_vicuna/spanish"
    verdict, note = _judge(known, claim, row, table)
    assert verdict == "not run at this scale"
    assert "settings of the generator" in note
    verdict, note = _judge(known, claim, row, table, "paper")
    assert verdict == "undecided"
    assert "against chinese" in note


@pytest.mark.parametrize(("comparisons", "stretch"), [(1, 1.0), (4, 2.4977 / 1.96), (20, 3.0233 / 1.96)])
def test_an_interval_is_corrected_for_the_number_of_comparisons(comparisons, stretch):
    found = intervals.correct(stats.Interval(1.0, 0.9, 1.2, 10**6), comparisons)
    assert (found.low, found.high) == pytest.approx((1 - 0.1 * stretch, 1 + 0.2 * stretch), rel=1e-4)
    seen = intervals.smallest_detectable(stats.Interval(0.0, -1.96, 1.96, 10**6), comparisons, 0.8)
    assert seen == pytest.approx(1.96 * stretch + 0.8416, rel=1e-3)


@pytest.mark.parametrize("units", [3, 7])
def test_an_interval_over_few_units_covers_95_percent(units):
    means = np.random.default_rng(0).normal(10, size=(400, units))
    found = [stats.ratio(values, np.ones(units)) for values in means]
    assert np.mean([one.low < 10 < one.high for one in found]) == pytest.approx(0.95, abs=0.02)
    assert intervals.correct(found[0], 1) == found[0]


def test_chance_makes_contradictions_only_of_verdicts_that_rest_on_an_interval():
    rows = [("same direction", "0.1"), ("undecided", "0.1"), ("contradicts", ""), ("reproduced", "0.1")]
    claims = pd.DataFrame(rows * 40, columns=["verdict", "ci_low"])
    assert module.by_chance(claims).startswith("Of the 80 verdicts that rest on an interval, chance alone ")
    assert "at most 2.0 " in module.by_chance(claims)
    assert module.by_chance(claims[claims["verdict"] == "reproduced"]) == ""


def test_printed_numbers_that_hardly_differ_are_not_said_to_be_missing(known, tables):
    """Of T5 drafts on code the smallest has 0.81 and the largest 0.83 in print."""
    verdict, note = _judge(known, "R.t5_size", "code_search_net/t5-large-770M", tables["osd_draft_size_t5"])
    assert verdict == "not run at this scale"
    assert "differs from it by more than 0.02" in note


def test_a_printed_difference_equal_to_the_margin_is_ignored_whichever_way_it_rounds(known, tables):
    """In print 0.83 - 0.81 and 0.67 - 0.65, which as floats lie on both sides of 0.02."""
    row = "vicuna-7b/llama-160m/finance_alpaca/mix_token_fwd"
    _, note = _judge(known, "T1.alpha_offline", row, tables["osd_offline"])
    assert "against original" in note
    assert "against teacher_fwd" not in note


def test_percentages_are_of_the_rows_that_the_rule_names(known, tables):
    facts = _only(known, "v1T4.percent_of_importance", "v1T2.token_rate")
    topk, rates = tables["mdss_topk"], tables["mdss_live"]
    found = _verdicts(facts, {"mdss_topk": topk, "mdss_live": rates})
    sums = topk[(topk["top_k"] == 5) & (topk["num_drafts"] == 2) & (topk["dataset"] == "dolly")]
    sums = sums.groupby("scheme")[["emitted", "blocks"]].sum()
    efficiency = sums["emitted"] / sums["blocks"]
    share = found.loc["v1T4.percent_of_importance/dolly/top_k=5/num_drafts=2/k_seq", "ours"]
    assert share == pytest.approx(100 * efficiency["k_seq"] / efficiency["importance_truncated"], rel=1e-5)
    kept = (
        rates[rates["alphabet"].isin([0, 40]) & rates["lp_threshold"].isin([0, 5])]
        .groupby("scheme")[["emitted", "seconds"]]
        .sum()
    )
    speed = kept["emitted"] / kept["seconds"]
    over = found.loc["v1T2.token_rate/alphabet=40", "ours"]
    assert over == pytest.approx(100 * speed["importance_truncated"] / speed["single"] - 100, rel=1e-4)
    slow = {"mdss_live": rates.assign(seconds=rates["seconds"].where(rates["scheme"] == "single", 1e3))}
    assert _verdicts(facts, slow).loc["v1T2.token_rate/alphabet=40", "verdict"] == "contradicts"


def test_what_the_paper_contradicts_itself_on_stays_inconsistent(known, tables):
    rows = _verdicts(known, {"osd_latency_alpha": tables["osd_latency_alpha"]})
    printed = rows[rows["verdict"] == "inconsistent in print"]
    assert "T3.speedup_by_dataset/vicuna-7b/llama-160m/code_search_net/osd" in printed.index
    assert rows.loc["osd.abstract_speedup", "verdict"] == "inconsistent in print"
    assert rows.loc["osd.memory_falls", "verdict"] in {"reproduced", "inconsistent in print"}


def _swapped(column, one, two, draft=None):
    """A table with two values of a column exchanged, of one draft only if it is named."""

    def doctor(table):
        chosen = table["draft"] == draft if draft else pd.Series(True, index=table.index)
        return table.assign(**{column: table[column].where(~chosen, table[column].replace({one: two, two: one}))})

    return doctor


def _raised(column, by, value):
    """A table with twice as much of a column where ``by`` has this value."""
    return lambda table: table.assign(**{column: table[column] * (1 + (table[by] == value))})


def _another_draft(table):
    """Another draft, whose updates are not cheap; over both drafts together an update would still be."""
    updates = [("draft", 100), ("draft_large", 7)]
    return pd.concat([table.assign(draft=name, update_seconds=table["interval_seconds"] / by) for name, by in updates])


def _backwards(table):
    """Every stream from its end to its beginning."""
    return table.assign(stream_index=table["stream_index"].max() - table["stream_index"])


@pytest.mark.parametrize(("scale", "judged"), [("laptop", True), ("smollm2", False)])
def test_shifts_are_judged_where_the_stream_has_them(known, tables, scale, judged):
    claims = [
        "osd.recovers_after_shift",
        "osd.recovers_within_200_records",
        "F4.shift_min_after_boundary/spider/online",
    ]
    facts = _only(known, *(claim.split("/")[0] for claim in claims))
    rows = _verdicts(facts, tables, scale).loc[claims]
    assert (rows["verdict"] != "not run at this scale").eq(judged).all()
    assert rows["note"].str.contains("has four datasets").eq(not judged).all()


def test_a_latency_is_compared_with_the_target_alone_on_the_same_requests(known, tables):
    """Not with that of ``osd_latency_alpha``, which is missing here."""
    claim = "T3.latency_by_dataset/vicuna-7b/llama-160m/gsm8k/osd"
    judged = _verdicts(known, {"osd_latency_dataset": tables["osd_latency_dataset"]}).loc[claim]
    assert judged["verdict"] in HOLDS
    assert "against no_sd" in judged["note"]


@pytest.mark.parametrize(
    ("claim", "table", "doctor"),
    [
        ("osd.online_overtakes_static", "osd_online", _swapped("method", "online", "static_10")),
        (
            "osd.online_learns",
            "osd_online",
            lambda t: t.assign(
                stream_index=t.groupby(["dataset", "method"])["stream_index"].transform("max") - t["stream_index"]
            ),
        ),
        (
            "osd.speedup_grows_with_alpha",
            "osd_latency_alpha",
            lambda t: t.assign(alpha=1.4 - t["alpha"]).round({"alpha": 1}),
        ),
        ("osd.theory_bounds_measurement", "osd_latency_alpha", lambda t: t.assign(eq1_gap=-t["eq1_gap"])),
        ("osd.longer_drafts_pay_at_high_alpha", "osd_speedup_theory", lambda t: t.assign(speedup=-t["speedup"])),
        ("mdss.optimum_dominates_region", "mdss_region", _swapped("scheme", "optimal", "k_seq")),
        ("mdss.optimal_bounds_all", "mdss_acceptance", _swapped("scheme", "optimal", "single")),
        ("mdss.importance_beats_others", "mdss_acceptance", _swapped("scheme", "importance_truncated", "specinfer")),
        *(("mdss.more_drafts_accept_more", "mdss_acceptance", _swapped("num_drafts", *k)) for k in ((2, 4), (4, 8))),
        ("mdss.drafts_raise_block_efficiency", "mdss_drafts", _swapped("num_drafts", 5, 6)),
        (
            "mdss.lossless",
            "mdss_region",
            lambda t: t.assign(distribution_error=t["distribution_error"].where(t["q2"] > 0, 1e-3)),
        ),
        ("mdss.cone", "mdss_cone", lambda t: t.assign(other=1)),
        ("mdss.conjecture", "mdss_cone", lambda t: t.assign(largest_difference=1e-3)),
        ("mdss.lp_is_the_cost", "mdss_cost", lambda t: t.assign(ms=1 / t["ms"])),
        (
            "mdss.gain_at_every_draft_temperature",
            "mdss_draft_temperature",
            lambda t: t.assign(emitted=t["blocks"] ** 2 / t["emitted"]),
        ),
        (
            "mdss.quality_unchanged",
            "mdss_quality",
            lambda t: t.assign(rouge_l=t["rouge_l"] * (1 + (t["scheme"] == "k_seq"))),
        ),
        ("osd.alpha_rises_by_0.30", "osd_offline", lambda t: t.assign(overlap=0.5 * t["overlap"])),
        ("osd.recovers_within_200_records", "osd_shift_sharp", _swapped("method", "online", "static")),
        ("osd.router_is_right", "osd_routing", lambda t: t.assign(misrouted=0.1 * t["requests"])),
        ("mdss.order_at_each_temperature", "mdss_acceptance", _swapped("scheme", "k_seq", "specinfer")),
        ("osd.recovers_after_shift", "osd_shift_sharp", _swapped("method", "online", "static_30")),
        (
            "osd.gradual_shift_without_drop",
            "osd_shift_smooth",
            lambda t: t.assign(overlap=t["overlap"] * (1 - 0.4 * (t["stream_index"] >= 120))),
        ),
        ("osd.mixed_streams_keep_both", "osd_two_mix", _backwards),
        ("osd.classes_improve", "osd_arena_topic", _backwards),
        (
            "osd.separate_beats_single",
            "osd_routing",
            lambda t: t.assign(overlap=t["overlap"] * (t["method"] == "shared")),
        ),
        ("osd.common_tokens_improve", "osd_token_recall", _swapped("method", "original", "distilled")),
        ("osd.first_epoch_does_most", "osd_epochs", _swapped("epoch", 1, 0)),
        ("osd.small_draft_beats_large", "osd_draft_size", _swapped("method", "original", "distilled")),
        (
            "osd.draft_size_matters_little",
            "osd_draft_size_t5",
            _swapped("method", "original", "distilled", "draft_large"),
        ),
        ("osd.medusa_improves", "osd_medusa", lambda t: t.assign(emitted=t["blocks"])),
        ("osd.cheaper_than_medusa", "osd_medusa", lambda t: t.assign(epoch_minutes=1 / t["epoch_minutes"])),
        ("osd.idle_compute", "osd_utilisation", lambda t: t.assign(flops_per_second=1e3 * t["flops_per_second"])),
        ("osd.update_is_cheap", "osd_update_cost", lambda t: t.assign(update_seconds=t["interval_seconds"])),
        ("osd.update_is_cheap", "osd_update_cost", _another_draft),
        *(
            ("osd.memory_falls", "osd_memory_traffic", _swapped("system", "osd", other))
            for other in ("original", "vsd")
        ),
        ("osd.length_helps", "osd_latency_length", lambda t: t.assign(speculative=t["plain"] / 2)),
        *(
            ("mdss.non_identical_drafts", "mdss_mixed_temperature", _raised("emitted", "scheme", baseline))
            for baseline in ("single", "specinfer")
        ),
    ],
)
def test_every_statement_can_fail(known, tables, claim, table, doctor):
    facts = _only(known, claim)
    good = _verdicts(facts, {table: tables[table]}).loc[claim]
    bad = _verdicts(facts, {table: doctor(tables[table])}).loc[claim]
    assert good["verdict"] in {"same direction", "reproduced"}
    assert bad["verdict"] == "contradicts"


@pytest.mark.parametrize(
    ("expect", "gap", "clear", "at_best"),
    [
        ("greater", (0.1, 0.05, 0.15), True, True),
        ("greater", (0.01, -0.04, 0.06), False, True),
        ("greater", (-0.01, -0.06, 0.04), False, True),
        ("greater", (-0.1, -0.15, -0.05), False, False),
        ("greater", (0.0, np.nan, np.nan), False, False),
        ("less", (-0.1, -0.15, -0.05), True, True),
        ("less", (0.1, 0.05, 0.15), False, False),
        ("not_less", (-0.015, np.nan, np.nan), True, True),
        ("not_less", (0.65 - 0.67, np.nan, np.nan), True, True),  # as floats a little more than 0.02
        ("not_less", (-0.05, -0.06, -0.03), False, False),
        ("not_greater", (0.05, 0.01, 0.09), False, True),
        ("similar", (0.015, 0.01, 0.02), True, True),
        ("similar", (-0.05, -0.08, -0.03), False, False),
        ("similar", (0.05, -0.02, 0.12), False, True),
    ],
)
def test_expectations(expect, gap, clear, at_best):
    comparison = published.Comparison(
        table="osd_online", measure="alpha", left={}, right=0.0, expect=expect, margin=0.02
    )
    found = judge_statements._clearance(comparison, stats.Interval(*gap, 10))
    assert (found[0] >= 0, found[1] >= 0) == (clear, at_best)


def test_window_is_a_part_of_each_stream():
    rows = pd.DataFrame(
        {"dataset": ["a"] * 10 + ["b"] * 100, "stream_index": [*range(10), *range(100)], "method": "online"}
    )
    for window, expected in (((0.8, 1.0), [2, 20]), ((0.0, 0.1), [1, 10]), ((0.4, 0.5), [1, 10])):
        for more in ({}, {"loss": rows["dataset"].where(rows["dataset"] == "a")}):  # an axis that only one stream has
            found = tidy.in_window(rows.assign(**more), *window)
            assert found.groupby(rows["dataset"]).sum().tolist() == expected
    assert tidy.in_window(rows.assign(split="eval"), 0.8, 1.0).all(), "held-out requests are in no stream"


@pytest.mark.parametrize("experiment", ["osd_arena_language", "osd_arena_topic"])
def test_the_parts_of_a_class_s_stream_count_its_own_requests(experiment):
    """Figure 5 counts the requests of each class apart; one that came late would have no first tenth among all requests."""
    rows = pd.DataFrame({"group": ["early"] * 100 + ["late", "early"] * 50, "stream_index": range(200), "requests": 1})
    streams = [rows.assign(method=method, split="train", seed=0) for method in ("separate", "static")]
    table = tidy.derive(experiment, pd.concat(streams, ignore_index=True))
    for window, expected in (((0.0, 0.1), {"early": 15, "late": 5}), ((0.8, 1.0), {"early": 30, "late": 10})):
        found = tidy.in_window(table, *window) & (table["method"] == "separate")
        assert table["group"][found].value_counts().to_dict() == expected


@pytest.mark.parametrize(
    ("claim", "row", "table", "doctor"),
    [
        (
            "F4.shift_alpha_at_record",
            "spider/record=4000/static_30pct",
            "osd_shift_sharp",
            _swapped("method", "online", "static_30"),
        ),
        ("F5.language_last20pct_mean", "chinese/osd", "osd_arena_language", _backwards),
        (
            "F7.top100_mean_recall",
            "spider/teacher_fwd",
            "osd_token_recall",
            _swapped("method", "original", "distilled"),
        ),
        (
            "PKL.accepted_over_generated",
            "spider/distilled",
            "osd_token_recall",
            _swapped("method", "original", "distilled"),
        ),
        ("F9.mix_last20pct_mean", "gsm8k/online", "osd_two_mix", _backwards),
        ("F11.shift_alpha", "record=4000/smooth", "osd_shift_smooth", _backwards),
        ("R.alpha_by_epoch", "vicuna-7b/llama-160m/spider/epoch=2", "osd_epochs", _swapped("epoch", 2, 0)),
        ("R.big_draft_vanilla", "spider/llama-160m+osd", "osd_draft_size", _swapped("method", "original", "distilled")),
        ("T4.extra_params", "draft+osd", "osd_medusa", _swapped("contender", "medusa", "draft_osd")),
        ("T4.medusa_speedup", "spider/medusa-7b+osd", "osd_medusa", _swapped("contender", "medusa", "medusa_osd")),
        ("R.medusa_cost", "osd/extra_params", "osd_medusa", _swapped("contender", "medusa", "draft")),
        ("R.medusa_cost", "osd/train_time_1epoch_1xA100", "osd_medusa", _swapped("contender", "medusa", "draft")),
        ("PKL.offline_step_curve", "spider/step=30", "osd_epochs", _swapped("epoch", 0.5, 0)),
        (
            "T8.speedup_by_genlen",
            "length=1024/alpha=0.7",
            "osd_latency_length",
            lambda t: t.assign(plain=t["plain"] / t["length"] ** 0.1),
        ),
        ("F5.topic_last20pct_mean", "games/osd", "osd_arena_topic", lambda t: t.assign(overlap=t["overlap"] / 9)),
    ],
)
def test_every_printed_number_can_be_contradicted(known, tables, claim, row, table, doctor):
    facts = _only(known, claim)
    name = f"{claim}/{row}"
    assert _verdicts(facts, {table: tables[table]}).loc[name, "verdict"] in HOLDS
    bad = _verdicts(facts, {table: doctor(tables[table])}).loc[name]
    assert bad["verdict"] == "contradicts"
    rule = known.claims[claim].rule
    assert rule.explanation.strip() in bad["note"]


def test_a_row_that_is_not_run_says_why(known, ledger):
    nothing = module.judge_claims(known, {}, "laptop")
    for rows in (ledger, nothing):
        silent = rows[rows["verdict"] == "not run at this scale"].set_index("claim_id")["note"]
        assert len(silent) > 20
        assert list(silent[silent == ""].index) == []
    notes = ledger.set_index("claim_id")["note"]
    assert notes["T5.input/spider/L"] == "a setting of the paper, not a result"
    assert "settings of the generator" in notes["F2.topic_share/lmsys_vicuna/games"]
    other = nothing.set_index("claim_id").loc["T2.latency_baseline/vicuna-33b/tinyllama-1.1b/no_sd"]
    assert other["note"] == "osd_latency_alpha_33b does not run this at this scale"


def test_the_cost_of_a_draft_step_is_measured(known, tables):
    row = _verdicts(_only(known, "T7.cost_ratio_c"), tables).loc["T7.cost_ratio_c/vicuna-7b/llama-160m"]
    table = tables["osd_latency_alpha"]
    assert row["ours"] == pytest.approx(table["cost_ratio"].mean(), rel=1e-5)


def test_the_two_pairs_of_a_claim_are_compared_once_and_by_blocks_of_their_own(known, tables):
    """Block 3 of one pair's run has nothing to do with block 3 of the other's, so nothing is paired."""
    name, both = "T7.cost_ratio_c", ("osd_latency_alpha", "osd_latency_alpha_33b")
    cheaper = tables[both[1]].assign(cost_ratio=lambda t: 0.1 * t["cost_ratio"])
    rows = _verdicts(_only(known, name), {both[0]: tables[both[0]], both[1]: cheaper})
    assert rows.loc[f"{name}/vicuna-33b/tinyllama-1.1b", "verdict"] == "compared in other rows"
    assert rows.loc[f"{name}/vicuna-7b/llama-160m", "verdict"] in HOLDS
    rule = known.claims[name].rule
    sides = [rule.select({"table": table}) for table in both]
    gap = compute(Contrast(*sides), Tables({both[0]: tables[both[0]], both[1]: cheaper})).value
    assert gap.n == sum(tables[table]["block"].nunique() for table in both)


def test_a_difference_without_a_value_is_undecided():
    nothing = stats.Interval(float("nan"), float("nan"), float("nan"), 5)
    rule = next(claim.rule for claim in published.load().claims.values() if claim.rule)
    assert judge_numbers._judge_gap(nothing, 0.3, rule, 0.01, 1) == ("undecided", ", no value")


@pytest.mark.parametrize(
    ("low", "comparisons", "verdict"),
    [(0.01, 1, "same direction"), (0.01, 20, "undecided"), (5e-7, 1, "undecided"), (0.04, 20, "printed size excluded")],
)
def test_a_sign_counts_if_the_interval_for_all_comparisons_excludes_0(low, comparisons, verdict):
    """Twenty comparisons make an interval 1.54 times as long: from 0.01 around 0.1 it then includes 0, from 0.04 it does not."""
    rule = published.Rule(table="osd_online", measure="alpha", where={}, tolerance=0.01)
    printed = 0.12 if low < 0.02 else 0.25
    gap = stats.Interval(0.1, low, 0.19, 10**6)
    assert judge_numbers._judge_gap(gap, printed, rule, 0.01, comparisons)[0] == verdict


def test_what_is_detectable_is_that_of_the_least_sensitive_comparison():
    """2.2414 and 0.8416 standard errors: the quantiles of 5 % in two comparisons on both sides, and of a power of 80 %."""
    gaps = [stats.Interval(0.0, -1.95996 * error, 1.95996 * error, 10**6) for error in (0.1, 1.0)]
    assert judgement.detectable(gaps) == pytest.approx(2.2414 + 0.8416, rel=1e-4)
