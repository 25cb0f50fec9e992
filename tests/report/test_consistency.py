"""The papers against themselves: what is found is computed, and a repaired number is no longer found."""

import dataclasses

import pytest

from draftlab.report import consistency


def _failing(known):
    return {
        claim for claim, found in consistency.run_checks(known).items() if not all(finding.holds for finding in found)
    }


@pytest.fixture(scope="module")
def failing(known):
    return _failing(known)


# osd.md, A.3: the claims that do not agree with each other.
INCONSISTENT = {
    "T7.theory_speedup": 5,
    "T7.theory_latency": 5,
    "T3.speedup_by_dataset": 6,
    "R.latency_typo": 1,
    "T4.medusa_speedup": 2,
    "F6.gain": 2,
    "A4.flops_ratio": 1,
    "A4.arena_flops_per_s": 1,
    "T6.token_count": 1,
    "T1.epochs": 1,
    "F5.window": 1,
    "F9.looks_ahead": 1,
    "T5.memory_loading": 1,
    "F3.offline_line": 4,
    "ABS.latency_reduction": 1,
}


def test_the_known_inconsistencies_are_found_and_no_others(failing):
    counts: dict[str, int] = {}
    for claim_id in failing:
        counts[claim_id.split("/")[0]] = counts.get(claim_id.split("/")[0], 0) + 1
    assert counts == INCONSISTENT


def _with(known, claim_id, value):
    numbers = known.numbers.copy()
    chosen = numbers["claim_id"] == claim_id
    assert chosen.sum() == 1
    numbers.loc[chosen, "value"] = value
    return dataclasses.replace(known, numbers=numbers)


@pytest.mark.parametrize(
    ("claim_id", "value"),
    [
        ("T3.speedup_by_dataset/vicuna-7b/llama-160m/gsm8k/osd", 1.50),
        ("T4.medusa_speedup/spider/draft+osd", 1.63),
        ("A4.arena_flops_per_s/lmsys_chat_1m/30B on 8xA100", 1.1111111e13),
        ("ABS.latency_reduction/icml_abstract_low", 1.15),
        ("R.latency_typo/vicuna-33b/tinyllama-1.1b/alpha=0.5/measured", 39.9),
    ],
)
def test_a_repaired_number_is_no_longer_found(known, failing, claim_id, value):
    assert claim_id in failing
    assert claim_id not in _failing(_with(known, claim_id, value))


@pytest.mark.parametrize(
    ("claim_id", "value"),
    [
        ("S422.expected_osd_over_vsd/spider/vicuna-7b/llama-160m", 2.62),
        ("T2.speedup_by_alpha/vicuna-7b/llama-160m/alpha=0.9/measured", 2.65),
        ("T9.ratio/vicuna-7b/llama-160m", 218),
        ("v1T4.percent_of_importance/dolly/top_k=10/num_drafts=2/k_seq", 95),
        ("oracle.optimal_acceptance/num_drafts=2/309/500,177/500,7/250/373/1000,29/50,47/1000", 0.98),
    ],
)
def test_a_doctored_number_is_found(known, failing, claim_id, value):
    claim_id = next(name for name in known.numbers["claim_id"] if set(name.split("/")) == set(claim_id.split("/")))
    assert claim_id not in failing
    assert claim_id in _failing(_with(known, claim_id, value))


def test_the_setting_that_does_fit_is_searched(known):
    every = consistency.run_checks(known)
    assert not [one for found in every.values() for one in found if one.holds and "agree with" in one.note]
    found = every["T7.theory_speedup/vicuna-33b/tinyllama-1.1b/alpha=0.5/theory"]
    assert "draft_len = 5, cost_ratio = 0.1" in found[0].note
    assert found[0].recomputed == pytest.approx((1 - 0.5**9) / 0.5 / (8 * 0.08 + 1))


def test_oracles_are_exact():
    target, draft = "309/500,177/500,7/250", "373/1000,29/50,47/1000"
    assert consistency.optimal_acceptance("2", target, draft) == 988871 / 1000000
    assert consistency.specinfer_acceptance("2", target, draft) == 169277 / 200000
    assert consistency.specinfer_acceptance("3", draft, draft) == 1.0
