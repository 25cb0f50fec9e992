"""The verdict's arithmetic on tables that are reckoned by hand, and its stage on a toy pair."""

import hashlib
import html
import json
import re
import shlex
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from benchmarks import verdict_validate as calibration
from draftlab.core.sampling import Sampling
from draftlab.core.theory import expected_block_length
from draftlab.data.prompts import Prompt, Rejection
from draftlab.engine.answers import Answer
from draftlab.engine.recording import load_pass
from draftlab.engine.replay import Agreement, replay, walk
from draftlab.engine.replay_lengths import cut, draft_everywhere
from draftlab.engine.replay_suffixes import continue_everywhere
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.json_files import write_json, write_jsonl
from draftlab.models import LanguageModel, load_model
from draftlab.models.lookup import Lookup
from draftlab.models.ngrams import Ngrams
from draftlab.models.suffixes import LEAST, LONGEST
from draftlab.models.tokenizer import train_tokenizer
from draftlab.plan.run import Run, run_of
from draftlab.report import card, verdict_command, verdict_page
from draftlab.report.verdict_command import lines, run
from draftlab.report.verdict_page import commands, page
from draftlab.report.verdict_run import _config, alone, judge_run
from draftlab.report.verdict_settings import VerdictSettings, name_of
from draftlab.serving import costs as block_costs
from draftlab.serving import verdict, verdict_under_load
from draftlab.serving.acceptance import AcceptanceCurves
from draftlab.serving.costs import BlockCosts, from_probes, from_profile
from draftlab.serving.emit import from_load
from draftlab.serving.monitor import read_promise
from draftlab.serving.profiles import load as load_profile
from draftlab.serving.profiles import save
from draftlab.serving.speedup import break_even, outcome, range_of, range_of_few, ratio, speedup
from draftlab.serving.sweep import TOO_LARGE
from draftlab.serving.traces import Arrivals
from draftlab.serving.verdict_format import NAMES, AtLoad, Forecast, Judged, Option, Range, Verdict
from draftlab.serving.verdict_on_option import judge
from draftlab.train import training
from draftlab.train.replay_log import distil
from draftlab.train.settings import ReplayLog
from tests.pair import Killed, Mortal, make_results, run_cell

LENGTHS = [1, 3, 8]


def probes(
    step: float = 0.1,
    more: float = 0.05,
    blocks: int = 8,
    noise: float = 0.0,
    catch_up: float = 0.0,
    change: float = 0.0,
    around: tuple[float, float] = (0.0, 0.0),
) -> pd.DataFrame:
    """A plain step takes 10 ms, a draft step ``step`` of it, each further token verified ``more`` of it, to catch up ``catch_up`` of it a block,
    a call of another size ``change`` of it more, and the loop and the lookup ``around`` of it a block."""
    rng = np.random.default_rng(0)
    rows = [
        {"context": 128, "batch": batch, "block": block, "verified": n, "plain_before_seconds": 0.01,
         "plain_after_seconds": 0.01, "verify_seconds": 0.01 * (1 + more * (n - 1)) * (1 + noise * rng.normal()),
         "draft_seconds": 0.01 * step}
        for batch in (1, 4) for block in range(blocks) for n in range(2, 10)
    ]  # fmt: skip
    found = pd.DataFrame(rows)
    caught_up = found["draft_seconds"] + 0.01 * catch_up / (found["verified"] - 1)
    turns = 0.01 + found["verify_seconds"] + 2 * 0.01 * change
    alone = found["batch"] == 1
    found = found.assign(loop_seconds=0.01 * around[0], lookup_seconds=0.01 * around[1])
    return found.assign(caught_up_seconds=caught_up.where(alone), turns_seconds=turns.where(alone))


COSTS = from_probes(probes(), 100)


def table(
    alpha: float, requests: int = 60, option: str = "distilled", spread: float = 0.0, threshold: float = 0.0
) -> pd.DataFrame:
    """Requests of 90 tokens whose blocks are those of one acceptance, or of acceptances that spread around it."""
    alphas = np.clip(alpha + spread * np.linspace(-1, 1, requests), 0, 1)
    rows = []
    for number, own in enumerate(alphas):
        for k in range(1, 9):
            blocks = 90 / expected_block_length(float(own), k)
            rows.append(
                {"request_id": number, "split": "eval", "option": option, "proposal": "greedy", "draft_len": k, "emitted": 90.0,
                 "blocks": blocks, "accepted": 90 - blocks, "visited": (90 - blocks) / max(own, 1e-9), "empty": 0.0,
                 "drafted": k * blocks, "steps": k * blocks, "prompt_tokens": 20, "optimum_2": 90 * own, "optimum_4": np.nan,
                 "threshold": threshold, "whole": 0.0, "changes": 0.0}
            )  # fmt: skip
    return pd.DataFrame(rows)


FACTS = {
    "offline": {"seconds": 30.0, "updates": 9},
    "online": {"seconds": 30.0, "updates": 9},
    "recorded_bytes": 4_000_000,
    "draft_bytes": 2_000_000,
    "learnt": {"distilled": 12},
}


def decide(rows: pd.DataFrame, costs: BlockCosts = COSTS, facts: dict[str, object] = FACTS, **more: object) -> Verdict:
    """A verdict whose simulated loads are few and short."""
    named = {"log": "log.jsonl", "target": "T", "draft": "D", "temperature": 0.0}
    named |= {name: more.pop(name) for name in Judged.model_fields if name in more}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict_under_load, "ARRIVALS", 40)
        patch.setattr(verdict_under_load, "LOADS", 3)
        return verdict.decide(rows, costs, facts, Judged(**named), **{"left_out": {}} | more)  # type: ignore[arg-type]


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the figures of pages empty, because drawing them takes most of the time of a page."""
    monkeypatch.setattr(verdict_page, "draw", lambda *_: b"<svg/>")


CURVE = {"as_it_comes": 0, "distilled_on_eighth": 50, "distilled_on_quarter": 100, "distilled": 400}


def curve_table() -> pd.DataFrame:
    """Drafts distilled on more and more requests: the odds of acceptance are 1 / 4, 2 / 3, 1 and 4."""
    alphas = (0.2, 0.4, 0.5, 0.8)
    tables = [table(alpha, option=option, spread=0.05) for option, alpha in zip(CURVE, alphas, strict=True)]
    return pd.concat(tables)


def test_the_speedup_is_tokens_over_the_costs_of_blocks():
    found = judge("distilled", table(0.8), COSTS)
    by_hand = {k: expected_block_length(0.8, k) / (0.1 * k + 1 + 0.05 * k) for k in range(1, 9)}
    assert found.draft_len == max(by_hand, key=lambda k: by_hand[k])
    for at in found.by_length:
        assert at.speedup.estimate == pytest.approx(by_hand[at.draft_len], rel=1e-9)
    assert found.alpha.estimate == pytest.approx(0.8)
    assert found.ceiling.perfect == pytest.approx(9 / (1 + 8 * 0.15))
    assert found.verdict == "yes"


def test_where_nothing_is_drafted_a_call_is_a_plain_step():
    rows = table(0.5, option="lookup").assign(empty=lambda t: t["blocks"] / 2, steps=0.0)
    rows["drafted"] = rows["draft_len"] * rows["blocks"] / 2
    found = speedup(rows[rows["draft_len"] == 4], COSTS)
    blocks = 90 / expected_block_length(0.5, 4)
    assert found.estimate == pytest.approx(90 / (blocks / 2 * 1 + blocks / 2 * 1.2))


def test_a_mean_between_two_lengths_is_a_mixture_of_both():
    rows = table(0.5).assign(drafted=lambda t: 2.5 * t["blocks"], steps=lambda t: 2.5 * t["blocks"])
    costs = from_probes(probes(step=0.1).assign(verify_seconds=lambda t: 0.01 * 1.1 ** (t["verified"] - 1)), 100)
    blocks = 90 / expected_block_length(0.5, 3)
    found = speedup(rows[rows["draft_len"] == 3], costs)
    assert found.estimate == pytest.approx(90 / (blocks * (0.25 + (1.1**2 + 1.1**3) / 2)))


def test_a_draft_that_catches_up_and_calls_of_changing_size_cost_more():
    rows = table(0.5).assign(whole=lambda t: t["blocks"] / 4, changes=lambda t: t["blocks"] / 2)
    own = rows[rows["draft_len"] == 4]
    blocks = 90 / expected_block_length(0.5, 4)
    free, costly = (from_probes(probes(catch_up=c, change=c / 2), 100) for c in (0.0, 0.2))
    assert speedup(own, free).estimate == pytest.approx(90 / (blocks * 1.6))
    assert speedup(own, costly).estimate == pytest.approx(90 / (blocks * (1.6 + 0.2 / 4 + 0.1 / 2)))


def test_a_block_costs_the_loop_and_where_lookup_drafts_the_lookup():
    costs, blocks = from_probes(probes(around=(0.1, 0.3)), 100), 90 / expected_block_length(0.5, 4)
    for option, around in (("distilled", 0.1), ("lookup", 0.4), ("lookup_first_confident", 0.4)):
        own = table(0.5, option=option)
        found = speedup(own[own["draft_len"] == 4], costs)
        assert found.estimate == pytest.approx(90 / (blocks * (1.6 + around)))
    assert costs.block(4) == pytest.approx(1.6 + 0.1)


def test_a_perfect_draft_catches_up_before_every_block_and_lookup_never():
    costs = from_probes(probes(catch_up=0.2), 100)
    rows = table(0.8)
    assert judge("distilled", rows, costs).ceiling.perfect == pytest.approx(9 / (1.4 + 0.8 + 0.2))
    assert judge("lookup", rows.assign(steps=0.0), costs).ceiling.perfect == pytest.approx(9 / 1.4)


def test_costs_are_those_of_the_nearest_context_and_none_is_a_gain():
    far = probes(step=0.2, more=0.1, catch_up=-0.1, change=-0.2).assign(context=1000)
    rows = pd.concat([probes(), far])
    near, costs = from_probes(rows, 500), from_probes(rows, 600)
    assert (near.block(8, 1.0), costs.block(8, 1.0)) == pytest.approx((1.4 + 0.8, 1.8 + 1.6))
    assert costs.catch_up.min() == costs.change.min() == 0
    assert near.profile.target.tokens[1] == costs.profile.target.tokens[1] == 10
    assert near.profile.target.tokens[36] == pytest.approx(14), "four requests that read 9 tokens each"
    assert costs.profile.target.tokens[36] == pytest.approx(18), "in a simulated server too"
    assert near.profile.draft.tokens == pytest.approx({1: 1.0, 4: 1.0})


@pytest.mark.parametrize("context", [128, 512])
def test_a_step_costs_the_simulator_what_it_costs_one_request(context: int):
    """Attention makes every step of the target longer where the context is."""
    tables = []
    for at in (128, 512):
        more = {f"{name}_seconds": 2e-5 * at * times for name, times in
                (("plain_before", 1), ("plain_after", 1), ("verify", 2), ("turns", 3))}  # fmt: skip
        tables.append(probes().assign(context=at, **{name: probes()[name] + longer for name, longer in more.items()}))
    costs = from_probes(pd.concat(tables), context)
    plain, block = (costs.profile.block_ms(1, context, k) for k in (0, 4))
    assert plain == pytest.approx(1e3 * costs.seconds) == pytest.approx(10 + 0.02 * context)
    assert block / plain == pytest.approx(costs.block(4))


def test_costs_of_a_profile_are_in_its_plain_steps(tmp_path: Path):
    """A step takes 2 ms around 10 ms, and 16 for nine tokens; a draft with half of the weights takes 5, and a block 3 more around its calls."""
    target = COSTS.profile.target.model_copy(update={"tokens": {1: 10.0, 9: 16.0}})
    changes = {"target": target, "draft": None, "overhead": 2.0, "per_block": 3.0}
    save(COSTS.profile.model_copy(update=changes), tmp_path / "p.yaml")
    costs = from_profile(str(tmp_path / "p.yaml"), 100, 0.5)
    assert costs.seconds == pytest.approx(0.012)
    assert costs.block(8) == pytest.approx((18 + 8 * 5 + 3) / 12)
    with_draft = COSTS.profile.model_copy(update=changes | {"draft": target.scaled(0.25)})
    save(with_draft, tmp_path / "p.yaml")
    alone, head = (from_profile(str(tmp_path / "p.yaml"), 100, 0.05, is_head=is_head) for is_head in (False, True))
    assert alone.block(8) == pytest.approx((18 + 8 * 2.5 + 3) / 12), "its own draft"
    assert head.block(8) == pytest.approx((18 + 8 * 0.5 + 3) / 12), "which is no head"
    parallel = from_profile(str(tmp_path / "p.yaml"), 100, 0.05, parallel=True)
    one_pass = 2.5 + 7 * 0.25 * 6 / 8
    assert parallel.block(8) == pytest.approx((18 + one_pass + 3) / 12)
    assert parallel.profile.block_ms(1, 100, 4) == pytest.approx(parallel.block(4) * 12, rel=0.2)
    assert f", for a block of 8 tokens in one pass {one_pass / 12:.3f}" in parallel.source
    assert "one pass" not in alone.source


def test_nothing_is_said_of_longer_blocks_than_a_draft_can_have():
    """A head whose block is of six tokens, at costs at which a longer one would pay more: alone, in a batch, and for a perfect draft."""
    costs = from_profile("rtx4090-llama-3.1-8b", 100, 0.02, is_head=True, parallel=True, longest=6)
    assert f", for a block of 6 tokens in one pass {6 * costs.step[0, 5]:.3f}" in costs.source
    rows = table(0.95, spread=0.02)
    (free,), (option,) = (decide(of, costs).options for of in (rows, rows.query("draft_len <= 6")))
    assert max(free.by_batch.values()) == free.draft_len == 8
    assert max(option.by_batch.values()) == option.draft_len == 6
    assert option.ceiling.perfect == pytest.approx(7 / costs.block(6, 1.0))
    assert option.ceiling.perfect < free.ceiling.perfect
    dear = replace(costs, change=costs.change + 1.5)
    (slow,) = decide(rows.query("draft_len <= 6").assign(changes=lambda t: t["blocks"]), dear).options
    tips, of_longer = (break_even(dear, 1.5, longest) for longest in (6, 8))
    assert slow.tips_at == tips
    assert tips > of_longer
    found = decide(rows.query("draft_len <= 6"), costs)
    assert (list(found.cost_ratio), list(found.verify_ratio)) == ([*range(1, 7)], [*range(1, 8)])
    assert f"reading 7 tokens takes {found.verify_ratio[7]:.2f} target steps" in page(found)


def test_the_simulator_knows_what_one_pass_of_a_parallel_draft_costs():
    """Probes have a share of the pass for each token; the pass takes 1 ms, and 0.1 ms more for each token after the first."""
    rows = probes()
    drafted = rows["verified"] - 1
    call = 1e-3 * (1 + 0.1 * (rows["batch"] * drafted - 1))
    costs = from_probes(rows.assign(draft_seconds=call / drafted, caught_up_seconds=call / drafted), 100, parallel=True)
    assert costs.block(4) == pytest.approx((1.3 + 10 * costs.verify[0, 4]) / 10)
    assert costs.profile.drafting_ms(1, 1, 4, 0.0) == pytest.approx(1.3)
    assert costs.profile.drafting_ms(4, 4, 3, 0.0) == pytest.approx(2.1)


def test_costs_that_drift_between_moments_widen_the_interval():
    own = table(0.8)[lambda t: t["draft_len"] == 4]
    at_once = pd.concat([probes(more=0.05 * n).assign(block=lambda t, n=n: t["block"] + 8 * n) for n in range(5)])
    drifted = at_once.assign(moment=at_once["block"] // 8)
    once, twice = (speedup(own, from_probes(rows, 100)) for rows in (at_once, drifted))
    assert once.estimate == twice.estimate
    assert twice.high - twice.low > 1.5 * (once.high - once.low)


def test_an_estimate_lies_within_its_interval_where_each_moment_has_another_expensive_cost():
    """The median over all moments of each cost is the cheap one, which no moment has for all three costs at once."""
    expensive = [{"step": 0.6}, {"around": (2.0, 0.0)}, {"catch_up": 3.0}]
    frames = [
        probes(**costs).assign(moment=n, block=lambda t, n=n: t["block"] + 8 * n) for n, costs in enumerate(expensive)
    ]
    own = table(0.8)[lambda t: t["draft_len"] == 4].assign(whole=lambda t: t["blocks"])
    found = speedup(own, from_probes(pd.concat(frames), 100))
    assert found.low < found.estimate < found.high


@pytest.mark.parametrize(
    ("alpha", "requests", "step", "answer", "reason"),
    [
        (0.9, 60, 0.1, "yes", "times as fast"),
        (0.9, 29, 0.1, "not yet known", "29 held-out requests; 30 are needed"),
        (0.9, 1, 0.1, "not yet known", "1 held-out request; 30 are needed"),
        (
            0.05,
            60,
            0.1,
            "no",
            "this draft does not help, others could: acceptance is 0.05; a draft would pay off from 0.15",
        ),
        (0.9, 60, 2.0, "no", "no draft of this cost can help: a perfect one gives 0.66"),
    ],
)
def test_the_answer_and_its_reason(alpha: float, requests: int, step: float, answer: str, reason: str):
    rows = table(alpha, requests).assign(optimum_2=np.nan if answer == "no" else 90.0)
    found = judge("distilled", rows, from_probes(probes(step), 100))
    assert (found.verdict, reason in found.reason) == (answer, True), found.reason


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (0.05, "it finds too little: acceptance is 0.01; it would pay off from 0.05"),
        (2.0, "no lookup of this cost can"),
    ],
)
def test_the_reason_for_a_lookup_names_no_draft(more: float, reason: str):
    rows = table(0.01, option="lookup").assign(steps=0.0, optimum_2=np.nan)
    found = judge("lookup", rows, from_probes(probes(more=more), 100))
    assert found.reason.startswith(reason)
    assert "draft" not in found.reason


def test_where_nothing_is_known_yet_the_sentence_names_an_option_that_may_help():
    """The undistilled draft surely loses a little; the distilled one loses more so far, but may gain."""
    tips = break_even(COSTS)
    assert tips is not None
    rows = [table(tips - 0.005, option="as_it_comes"), table(tips - 0.02, spread=0.3)]
    found = decide(pd.concat(rows))
    before, after = found.options
    assert (before.verdict, after.verdict, found.verdict) == ("no", "not yet known", "not yet known")
    assert before.speedup.estimate > after.speedup.estimate
    assert found.sentence == f"Not yet known: {NAMES['distilled']} may help ({after.reason})"


def test_a_perfect_draft_that_loses_is_no_reason_where_the_interval_holds_one():
    found = judge("distilled", table(1.0), from_probes(probes(step=1.0, noise=0.1), 100))
    assert found.ceiling.perfect < 1
    assert found.verdict == "not yet known"
    assert "includes 1" in found.reason


@pytest.mark.parametrize(
    ("estimate", "low", "high", "shown"),
    [
        (1.03, 1.001, 1.06, "1.030 [1.001, 1.060]"),
        (0.98, 0.96, 0.9996, "0.9800 [0.9600, 0.9996]"),
        (1.0, 1.0, 1.2, "1.00 [1.00, 1.20]"),
        (1.24, 1.2, 1.28, "1.24 [1.20, 1.28]"),
        (1.0, 1 - 1e-12, 1 + 1e-12, "1.00 [1.00, 1.00]"),
        (-0.001, -0.004, 0.002, "0.00 [0.00, 0.00]"),
    ],
)
def test_an_interval_is_shown_on_its_side_of_1(estimate: float, low: float, high: float, shown: str):
    assert Range(estimate=estimate, low=low, high=high).show() == shown


def test_an_estimate_for_several_drafts_is_no_reason():
    """One mean acceptance says nothing certain: where every other token is accepted, blocks are longer than the mean gives."""
    found = judge("distilled", table(0.05), COSTS)
    assert max(found.ceiling.optimum.values()) < 1
    some = table(0.05).assign(optimum_2=lambda t: t["optimum_2"].where(t["request_id"] < 30))
    known = judge("distilled", some, COSTS).ceiling.optimum_alpha
    assert known == {2: pytest.approx(0.05)}, "of the requests for which it is known"
    assert found.reason.startswith("this draft does not help, others could")


def test_blocks_that_end_early_may_be_accepted_and_still_not_pay():
    """A draft that is sure of every tenth block alone has an acceptance of 0.9 there, and gains nothing."""
    rows = table(0.9, option="distilled_confident", threshold=0.6)[lambda t: t["draft_len"] == 1]
    seldom = rows.assign(blocks=85.0, drafted=8.5, steps=85.0, accepted=8.0, visited=8.9, emitted=90.0)
    found = judge("distilled_confident", seldom, COSTS)
    assert found.verdict == "no"
    assert found.reason == "it drafts 0.10 tokens a block, which save less than they cost: acceptance is 0.90"


def test_an_interval_that_holds_one_says_nothing_and_noise_of_the_costs_is_in_it():
    tips = break_even(COSTS)
    assert tips is not None
    mixed = judge("distilled", table(tips + 0.01, spread=0.15), COSTS)
    assert mixed.verdict == "not yet known"
    assert "includes 1" in mixed.reason
    exact = judge("distilled", table(0.8), COSTS).speedup
    noisy = judge("distilled", table(0.8), from_probes(probes(noise=0.3), 100)).speedup
    assert noisy.high - noisy.low > exact.high - exact.low + 0.05


@pytest.mark.parametrize("option", ["distilled", "lookup", "lookup_first"])
def test_at_the_acceptance_from_which_it_pays_off_an_option_neither_gains_nor_loses(option: str):
    """With catch-up, and for lookup where half of the blocks find nothing and every other one changes the size of the call.

    Where lookup comes first, it saves the draft half of its steps.
    """
    costs = from_probes(probes(step=0.3, around=(0.02, 0.05), catch_up=0.3, change=0.1), 100)

    def found(alpha: float) -> Option:
        rows = table(alpha, option=option)
        rows = rows.assign(whole=rows["blocks"] * alpha ** rows["draft_len"])
        if option == "lookup_first":
            rows = rows.assign(steps=rows["steps"] / 2)
        if option == "lookup":
            blocks = rows["blocks"]
            rows = rows.assign(
                steps=0.0, whole=0.0, empty=blocks, changes=blocks, blocks=2 * blocks, emitted=rows["emitted"] + blocks
            )
        return judge(option, rows, costs)

    tips = found(0.5).tips_at
    assert tips is not None
    assert 0.1 < tips < 0.7
    assert found(tips).speedup.estimate == pytest.approx(1, abs=0.002)
    perfect = found(1.0)
    assert perfect.speedup.estimate == pytest.approx(perfect.ceiling.perfect, rel=0.02 if option != "lookup" else 1)


def test_a_verdict_is_what_the_monitor_reads(tmp_path: Path):
    found = decide(table(0.8, spread=0.1), rate=4.0)
    assert found.verdict == "yes"
    assert found.best == "distilled"
    (tmp_path / "verdict.json").write_text(found.model_dump_json())
    promise = read_promise(tmp_path / "verdict.json")
    assert promise.draft_len == found.options[0].draft_len
    assert promise.requests == 60
    length = promise.acceptance_length
    assert length.low <= found.options[0].acceptance_length.estimate <= length.high
    assert len(found.load["distilled"]) == len(verdict_under_load.SHARES)
    assert all(at.by_length[0] == 1 for at in found.load["distilled"])
    assert all(at.speedup.low <= at.speedup.estimate <= at.speedup.high for at in found.load["distilled"])


def test_a_verdict_promises_a_length_for_each_batch_and_has_them_written(tmp_path: Path):
    """At a profile's costs fewer tokens pay where many requests are served at once."""
    costs = from_profile("rtx4090-llama-3.1-8b", 100, 0.05)
    rows = table(0.8, spread=0.1)
    found = decide(rows, costs)
    (option,), promise = found.options, found.monitor
    assert promise is not None
    shorter = {*option.by_batch.values()} - {0, option.draft_len}
    assert shorter
    assert set(promise.by_length) == shorter
    for length, promised in promise.by_length.items():
        own = rows[rows["draft_len"] == length]
        assert promised.estimate == pytest.approx(1 + own["accepted"].sum() / own["blocks"].sum())
    file = tmp_path / "verdict.json"
    file.write_text(found.model_dump_json())
    assert read_promise(file).known.keys() == shorter | {option.draft_len}
    emit, _ = commands(found, tmp_path, "B", Path("results"))
    assert f"draftlab emit --load {file} --target T" in emit
    ranges, _ = from_load(file, 512)
    assert [length for first, last, length in ranges if first <= 2 <= last] == [option.by_batch[2]]
    for alike in (found.model_copy(update={"costs_vary": True}), decide(rows, costs, target="T.gguf")):
        assert any(
            f"--draft-len {option.draft_len} " in step for step in commands(alike, tmp_path, "B", Path("results"))
        )


def test_a_promise_counts_the_blocks_that_engines_count():
    """Prompt lookup finds nothing for 20 blocks more, which are no drafts to an engine."""
    rows = table(0.8, option="lookup", spread=0.1).assign(steps=0.0, empty=20.0)
    rows["blocks"] += 20
    rows["emitted"] += 20
    found = decide(rows)
    assert found.monitor is not None
    own = rows[rows["draft_len"] == found.monitor.draft_len]
    promised = 1 + own["accepted"].sum() / (own["blocks"] - 20).sum()
    assert found.monitor.acceptance_length.estimate == pytest.approx(promised)
    assert found.options[0].acceptance_length.estimate < promised - 0.5


def test_the_interval_is_for_requests_to_come():
    rows = table(0.6, spread=0.3).query("draft_len == 3")
    many, few = (speedup(rows, COSTS, to_come) for to_come in (100_000, 10))
    assert few.estimate == many.estimate
    assert speedup(rows, COSTS) == speedup(rows, COSTS, len(rows)), "as many as there were"
    assert few.high - few.low > 1.8 * (many.high - many.low)


def test_an_interval_leaves_out_a_fortieth_at_each_end():
    found = range_of(np.array([7.0, *range(1001)]))
    assert (found.estimate, found.low, found.high) == (7, 25, 975)


def test_an_interval_over_few_conversations_is_as_wide_as_by_students_quantile():
    """Ten conversations of five requests: t(9) = 2.262 standard errors to each side of a mean, and for ten further ones sqrt(2) as many."""
    means = np.array([0.38, 0.42, 0.45, 0.48, 0.49, 0.51, 0.52, 0.55, 0.58, 0.62])
    conversation = np.repeat(np.arange(10), 5)
    rows = table(0.5, 50).query("draft_len == 3").assign(conversation=conversation)
    error = means.std(ddof=1) / 10**0.5
    alpha = ratio(rows.assign(accepted=means[conversation], visited=1.0), "accepted", "visited")
    assert alpha.high - alpha.low == pytest.approx(2 * 2.262 * error, rel=0.08)
    gain = speedup(rows.assign(emitted=means[conversation], blocks=1.0, drafted=3.0, steps=0.0), COSTS)
    assert gain.high - gain.low == pytest.approx(2 * 2.262 * 2**0.5 * error / 1.15, rel=0.10)


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (1, 1.2, "not yet known"),
        (0.8, 1, "not yet known"),
        (1, 1, "not yet known"),
        (1.01, 1.2, "yes"),
        (0.8, 0.99, "no"),
    ],
)
def test_an_interval_that_ends_at_1_gives_no_answer(low: float, high: float, said: str):
    assert outcome(Range(estimate=(low + high) / 2, low=low, high=high), table(0.6).query("draft_len == 3")) == said


def test_requests_of_one_conversation_are_drawn_together():
    rows = table(0.6, spread=0.3).query("draft_len == 3")
    alone, own = speedup(rows, COSTS), speedup(rows.assign(conversation=rows["request_id"] + 7.0), COSTS)
    together = speedup(rows.assign(conversation=rows["request_id"] // 6), COSTS)
    assert alone == own
    assert together.estimate == alone.estimate
    # Six neighbours are nearly alike: sqrt(6).
    assert 2.1 < (together.high - together.low) / (alone.high - alone.low) < 2.8


def test_few_conversations_are_not_enough():
    known = decide(table(0.9).assign(conversation=lambda rows: rows["request_id"] // 6))
    assert known.verdict == "yes"
    assert "60 held-out requests of 10 conversations" in verdict.lines(known)[2]
    unknown = decide(table(0.9).assign(conversation=lambda rows: rows["request_id"] // 7), rate=1.0)
    assert unknown.verdict == "not yet known"
    assert unknown.load_verdict is None
    assert "requests of 9 conversations; 10 are needed" in unknown.sentence
    assert "60 held-out requests;" in verdict.lines(decide(table(0.9)))[2]


def test_a_short_block_pays_more_for_a_draft_step():
    rows = probes().assign(draft_seconds=lambda t: 0.001 * (1 + 1 / (t["verified"] - 1)))
    costs = from_probes(rows, 100)
    assert costs.block(1) == pytest.approx(1.05 + 0.2)
    assert costs.block(8) == pytest.approx(1.40 + 8 * 0.1 * 1.125)


def test_parts_of_a_log_are_judged_by_their_own_requests():
    rows = table(0.6).assign(prompt_tokens=lambda t: np.where(t["request_id"] < 30, 20, 200))
    losing = table(0.02).assign(prompt_tokens=200)
    mixed = pd.concat([rows[rows["request_id"] < 30], losing[losing["request_id"] >= 30]]).assign(language="English")
    short, long = judge("distilled", mixed, COSTS).categories
    assert (short.name, short.verdict, short.requests) == ("prompts of up to 110 tokens", "yes", 30)
    assert (long.name, long.verdict) == ("prompts of more than 110 tokens", "no")
    two = mixed.assign(language=np.where(mixed["request_id"] < 30, "English", "German"))
    assert [part.name for part in judge("distilled", two, COSTS).categories][2:] == ["English", "German"]
    first, last = judge("distilled", mixed, COSTS).thirds
    assert first.speedup.low > 1 > last.speedup.high
    assert [round(at.estimate, 2) for at in judge("distilled", mixed, COSTS).over_time] == [0.6] * 5 + [0.02] * 5


def test_each_option_has_a_line_of_its_own():
    found = decide(table(0.8))
    (option,) = found.options
    lookup = option.model_copy(update={"name": "lookup", "verdict": "not yet known", "requests": 3})  # no speed-up
    said = verdict.lines(found.model_copy(update={"options": [option, lookup]}))
    assert said[0] == found.sentence
    assert said[1] == f"  the draft distilled on this traffic  {option.verdict:13}  {option.speedup.show()}"
    assert said[2] == "  prompt lookup                        not yet known"
    assert said[-1].startswith("One request at a time")


@pytest.mark.usefixtures("undrawn")
def test_a_load_that_the_server_cannot_take_without_a_draft_is_said(tmp_path: Path):
    """Its queue grows for as long as the load lasts, and the speed-up with it."""
    found = decide(table(0.8), rate=1.0)
    (idle,) = found.load.values()
    assert [at.overloaded for at in idle] == [False] * 4
    assert "more than the server" not in found.load_sentence
    most = 1000.0  # of requests of 90 tokens that take 10 ms each, far too many
    over = decide(table(0.8), rate=most)
    assert [at.overloaded for at in over.load["distilled"]] == [True] * 4
    assert over.load_sentence.startswith(
        "Yes: under a load of 1000/s, more than the server takes without a draft, the draft"
    )
    (fastest,) = (line for line in verdict.lines(over) if line.startswith("Fastest under load: "))
    assert all(part.endswith(" (overloaded without a draft)") for part in fastest.split("; "))
    assert "<td>1000 (overloaded without a draft)</td>" in page(over)
    assert "overloaded" not in page(found)


def test_lookup_that_finds_nothing_costs_a_plain_step_under_load_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verdict_under_load, "LOADS", 1)
    rows = table(0.5, option="lookup").assign(steps=0.0, empty=lambda t: 0.9 * t["blocks"])
    rows["drafted"] = 0.1 * rows["draft_len"] * rows["blocks"]
    costs = from_probes(probes(more=0.5), 100)
    found = judge("lookup", rows, costs)
    seldom = verdict_under_load.under_load(rows, found, costs, 0.1, None)
    always = verdict_under_load.under_load(rows.assign(empty=0.0), found, costs, 0.1, None)
    assert seldom[0].by_length[1] > always[0].by_length[1] + 0.1


def test_a_lookup_costs_one_request_at_a_time_what_the_verdict_says():
    """Where two tokens cost 2.4 steps and something is found for 37 % of the calls, no call is free."""
    rows = table(0.2, option="lookup").assign(steps=0.0, empty=lambda t: 0.63 * t["blocks"])
    rows["drafted"] = 0.37 * rows["draft_len"] * rows["blocks"]
    costs = from_probes(probes(more=1.4), 100)
    found = judge("lookup", rows, costs)
    assert found.draft_len == 1
    assert found.speedup.estimate < 0.85
    alone = verdict_under_load.under_load(rows, found, costs, 0.001, None)
    assert alone[0].by_length[1] == pytest.approx(found.speedup.estimate, abs=0.06)


def test_a_lookup_accepts_at_each_length_under_load_what_it_accepts_in_replay():
    """It finds nothing for three calls of four, and runs that are accepted whole for the fourth: one alpha does not fit several lengths."""
    rows = table(0.5, option="lookup").query("draft_len in [1, 2, 4]").assign(steps=0.0, prompt_tokens=1)
    rows["blocks"] = 90 * 4 / (4 + rows["draft_len"])
    rows = rows.assign(empty=0.75 * rows["blocks"], drafted=rows["draft_len"] * rows["blocks"] / 4)
    costs = from_probes(probes(more=0.3), 100)
    found = judge("lookup", rows, costs)
    assert found.draft_len == 4
    idle = verdict_under_load.under_load(rows, found, costs, 0.001, None)[0]
    assert [at.draft_len for at in found.by_length] == [1, 2, 4]
    for at in found.by_length:
        assert idle.by_length[at.draft_len] == pytest.approx(at.speedup.estimate, rel=0.05)
    assert list(idle.by_length) == [0, 1, 2, 3, 4], "a length that was not replayed lies between its neighbours"


def test_a_draft_after_a_lookup_costs_the_steps_that_it_makes_under_load_too():
    """Lookup finds three of four tokens; a draft that made every step would slow blocks of this length down."""
    rows = table(0.6, option="lookup_first").assign(steps=lambda t: t["steps"] / 4)
    costs = from_probes(probes(step=0.5, more=0.0), 100)
    found = judge("lookup_first", rows, costs)
    alone = verdict_under_load.under_load(rows, found, costs, 0.001, None)
    assert alone[0].by_length[found.draft_len] == pytest.approx(found.speedup.estimate, abs=0.06)


def test_the_interval_of_a_few_simulations_holds_a_further_one():
    draws = np.random.default_rng(0).normal(1.2, 0.1, (2000, verdict_under_load.LOADS + 1))
    ranges = [range_of_few(few) for few in draws[:, 1:]]
    held = [at.low <= further <= at.high for at, further in zip(ranges, draws[:, 0], strict=True)]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
    assert ranges[0].estimate == pytest.approx(draws[0, 1:].mean())


def test_the_interval_under_load_comes_from_all_simulations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verdict_under_load, "ARRIVALS", 40)
    monkeypatch.setattr(verdict_under_load, "LOADS", 4)
    seen: list[np.ndarray] = []
    monkeypatch.setattr(verdict_under_load, "range_of_few", lambda draws: seen.append(draws) or range_of_few(draws))
    rows = table(0.6, spread=0.3)
    loads = verdict_under_load.under_load(rows, judge("distilled", rows, COSTS), COSTS, 0.01, None)
    assert [len(draws) for draws in seen] == [4] * len(verdict_under_load.SHARES)
    assert all(
        at.speedup.low < draws.min() <= draws.max() < at.speedup.high for at, draws in zip(loads, seen, strict=True)
    )


def test_the_simulated_requests_are_those_of_whole_conversations(monkeypatch: pytest.MonkeyPatch):
    """Six neighbours are nearly alike, so the mean of what is drawn varies sqrt(6) times as much."""
    drawn: list[float] = []

    def sweep(
        arrivals: Arrivals,
        rates: list[float],
        profile: object,
        acceptance: AcceptanceCurves,
        *_: object,
        **more: object,
    ) -> pd.DataFrame:
        drawn.append(float(acceptance.survival[:, 0].mean()))
        return pd.DataFrame([(0, rate, 1.0) for rate in rates] + [(1, rate, 2.0) for rate in rates]).set_axis(
            ["draft_len", "rate", "speedup"], axis=1
        )

    monkeypatch.setattr(verdict_under_load, "LOADS", 200)
    monkeypatch.setattr(verdict_under_load, "sweep", sweep)
    rows = table(0.6, spread=0.3)
    found, spreads = judge("distilled", rows, COSTS), []
    for numbers in (rows["request_id"], rows["request_id"] // 6):
        verdict_under_load.under_load(rows.assign(conversation=numbers), found, COSTS, 1.0, None)
        spreads.append(np.std(drawn[1:]))
        drawn.clear()
    assert 2.1 < spreads[1] / spreads[0] < 2.8


@pytest.mark.parametrize("trace", [False, True])
def test_an_idle_server_gives_the_answer_of_one_request_where_long_answers_accept_more(
    trace: bool, monkeypatch: pytest.MonkeyPatch
):
    """Half of the requests write 90 tokens at an acceptance of 0.95, half 9 at 0.1; their last blocks end with them."""
    monkeypatch.setattr(verdict_under_load, "LOADS", 2)

    def answers(alpha: float, tokens: int) -> pd.DataFrame:
        ratio = np.full(tokens, alpha)
        walked = [walk(Agreement([tokens], ratio, ratio, ratio), k) for k in range(1, 9)]
        made = table(alpha, 30).assign(emitted=float(tokens))
        for name in ("blocks", "accepted", "visited"):
            made[name] = np.tile([float(getattr(one, name)[0]) for one in walked], 30)
        return made.assign(drafted=made["draft_len"] * made["blocks"], steps=made["draft_len"] * made["blocks"])

    short = answers(0.1, 9).assign(request_id=lambda t: t["request_id"] + 30)
    rows = pd.concat([answers(0.95, 90), short]).assign(prompt_tokens=1)
    costs = from_probes(probes(more=0.0), 100)
    found = judge("distilled", rows, costs)
    arrivals = Arrivals(np.arange(200.0) * 1e3, np.ones(200, int), np.full(200, 90), {}) if trace else None
    idle = verdict_under_load.under_load(rows, found, costs, 0.001, arrivals)[0]
    assert idle.draft_len == found.draft_len
    assert idle.speedup.estimate == pytest.approx(found.speedup.estimate, rel=0.06)


@pytest.mark.parametrize("option", ["distilled", "lookup_first"])
def test_an_idle_server_pays_for_loop_catch_up_and_lookup_as_one_request_does(
    option: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verdict_under_load, "LOADS", 1)
    rows = table(0.8, option=option).assign(whole=lambda t: t["blocks"] / 4, changes=lambda t: t["blocks"] / 2)
    costs = from_probes(probes(around=(0.3, 0.4), catch_up=0.4, change=0.2), 100)
    found = judge(option, rows, costs)
    idle = verdict_under_load.under_load(rows, found, costs, 0.001, None)[0]
    assert idle.by_length[found.draft_len] == pytest.approx(found.speedup.estimate, rel=0.06)


def test_under_load_too_an_answer_may_end_within_a_block(monkeypatch: pytest.MonkeyPatch):
    """A perfect draft of four tokens writes six in two blocks. The server takes the first from the prompt, so one block writes the others: 11 + 14 ms
    in place of 60."""
    monkeypatch.setattr(verdict_under_load, "LOADS", 1)
    counts = {"emitted": 6.0, "blocks": 2.0, "accepted": 5.0, "visited": 5.0, "drafted": 8.0, "steps": 8.0}
    rows = table(1.0).query("draft_len == 4").assign(prompt_tokens=1, **counts)
    costs = from_probes(probes(step=0.1, more=0.0), 100)
    idle = verdict_under_load.under_load(rows, judge("distilled", rows, costs), costs, 0.001, None)[0]
    assert idle.by_length[4] == pytest.approx(60 / (11 + 14))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("trace", [False, True])
def test_requests_larger_than_the_cache_are_counted_and_said(tmp_path: Path, trace: bool):
    rows = table(0.8, spread=0.1)
    rows.loc[rows["request_id"] < 3, "prompt_tokens"] = 2000
    small = replace(COSTS, profile=COSTS.profile.model_copy(update={"kv_tokens": 1000}))
    arrivals = Arrivals(np.arange(9.0), np.array([20] * 6 + [2000] * 3), np.full(9, 90), {}) if trace else None
    found = decide(rows, small, rate=2.0, trace=arrivals)
    assert all(at.left_out == {TOO_LARGE: 3} for at in found.load["distilled"])
    assert verdict.lines(found)[3].endswith(f"; left out: 3 {TOO_LARGE}")
    assert f"Left out: 3 {TOO_LARGE}." in page(found)
    assert "left out" not in verdict.lines(decide(rows, rate=2.0, trace=arrivals))[3]


def test_of_a_long_trace_the_first_requests_are_simulated_at_the_rate_of_all(monkeypatch: pytest.MonkeyPatch):
    """The first twelve come once a second, the others ten times as often."""
    served: list[Arrivals] = []
    serve = verdict_under_load.sweep
    monkeypatch.setattr(
        verdict_under_load, "sweep", lambda *given, **more: served.append(given[0]) or serve(*given, **more)
    )
    monkeypatch.setattr(verdict_under_load, "OF_A_TRACE", 12)
    seconds = np.concatenate([np.arange(12.0), 11 + np.arange(1, 29) / 10])
    trace = Arrivals(seconds, np.full(40, 20), np.full(40, 90), {"broken line": 2})
    found = decide(table(0.5, spread=0.1), trace=trace)
    assert {len(arrivals.seconds) for arrivals in served} == {12}
    assert found.load["distilled"][2].rate == pytest.approx(39 / 13.8)
    assert found.load["distilled"][0].left_out == {"broken line": 2, "after the first 12 of the trace": 28}
    monkeypatch.setattr(verdict_under_load, "OF_A_TRACE", 40)
    assert decide(table(0.5, spread=0.1), trace=trace).load["distilled"][0].left_out == {"broken line": 2}
    assert len(served[-1].seconds) == 40


def test_an_option_that_is_slower_than_no_draft_is_not_the_fastest_under_load():
    """The best length is chosen in the first simulation; over all of them it may lose."""
    gains = {0.5: 0.97, 2.0: 1.02, 4321.0: 1.0}
    load = [
        AtLoad(rate=rate, draft_len=2, speedup=Range(estimate=gain, low=0.9, high=1.1), by_length={})
        for rate, gain in gains.items()
    ]
    said = verdict.lines(decide(table(0.8)).model_copy(update={"load": {"distilled": load}, "load_sentence": "So"}))
    assert f"Fastest under load: 0.5/s no draft; 2/s {NAMES['distilled']} 1.02 [0.90, 1.10]; 4321/s no draft" in said


@pytest.mark.usefixtures("undrawn")
def test_a_load_has_an_answer_of_its_own(tmp_path: Path):
    """Where reading more costs more, a draft that pays for one request does not pay for many."""
    unused = from_probes(probes(), 100).profile.target  # a copy keeps what was computed from the times before
    steep = unused.model_copy(update={"tokens": {1: 10.0, 8: 14.0, 4096: 40_000.0}})
    busy = replace(COSTS, profile=COSTS.profile.model_copy(update={"target": steep}))
    seen = {}
    for where, rate in ((COSTS, 0.1), (busy, 50.0)):
        progress: list[str] = []
        found = decide(table(0.5), where, rate=rate, progress=progress.append)
        assert progress[0] == "simulating the draft distilled on this traffic under load, 1 of at most 3"
        first, _, under, rates, measured = verdict.lines(found)
        assert found.verdict == "yes"
        assert first.endswith("times as fast, one request at a time")
        assert measured.startswith("One request at a time, 60 held-out requests; costs ")
        assert rates.startswith("Fastest under load: ")
        assert under in page(found)
        seen[found.load_verdict] = under
    assert seen["yes"].startswith("Yes: under a load of 0.1/s the draft distilled on this traffic makes requests 1.")
    too_much = "under a load of 50/s, more than the server takes without a draft, requests"
    assert seen["no"] == f"No: {too_much} are fastest without a draft"
    assert decide(table(0.5)).load_verdict is None
    cut = decide(table(0.5), rate=0.1, cut=9, cut_at=96)
    assert cut.load_sentence == seen["yes"] + (
        " (answers cut at 96 tokens are as long as in the log, if those are longer; --answer-tokens sets the limit)"
    )
    longer = decide(table(0.5).assign(answer_tokens=900), rate=0.1)
    assert longer.load_sentence != seen["yes"], "a longer answer waits longer for others"
    trace = Arrivals(np.arange(9.0), np.full(9, 20), np.full(9, 90), {})
    assert "cut at" not in decide(table(0.5), trace=trace, cut=9, cut_at=96).load_sentence


def test_calibration_meets_requests_that_it_was_made_of(tmp_path: Path):
    probes(step=0.1, more=0.05).to_csv(tmp_path / "traffic_cost.csv", index=False)
    names = {"as_it_comes": "before", "distilled": "distilled", "lookup": "lookup", "lookup_first": "lookup_first"}
    names |= {"suffix": "suffix", "suffix_confident": "suffix_confident"}
    replayed = pd.concat([table(0.6, 80, option=option, spread=0.2) for option in names])
    remembers = replayed["option"].str.startswith("suffix")
    replayed = replayed.assign(steps=replayed["steps"].mask(remembers, 0.0))
    replayed["threshold"] = replayed["threshold"].mask(replayed["option"] == "suffix_confident", 0.8)
    replayed = replayed.assign(dataset="toy", request_id=lambda t: (t["request_id"] * 37) % 80)
    replayed.to_csv(tmp_path / "traffic_verdict.csv", index=False)
    served = []
    for option, contender in names.items():
        own = replayed[(replayed["option"] == option) & (replayed["draft_len"] == 3) & (replayed["request_id"] < 40)]
        seconds = 0.01 * own["blocks"] * (1 + 3 * 0.05 + (0.2 if option.startswith("suffix") else 3 * 0.1))
        served.append(pd.DataFrame({"request_id": own["request_id"], "contender": contender, "seconds": seconds}))
    for contender in ("none", "none_again"):
        served.append(pd.DataFrame({"request_id": range(40), "contender": contender, "seconds": 0.9}))
    parts = pd.concat(served).assign(dataset="toy", draft_len=3, first=lambda t: t["request_id"] // 20 * 20)
    parts.assign(tokens=lambda t: t["first"].map({0: 90, 20: 100})).to_csv(
        tmp_path / "traffic_requests.csv", index=False
    )
    cell = tmp_path / "cells/traffic_requests/toy.3.0"
    slower = probes(step=0.1, more=0.15).query("batch == 1")
    facts = {"dataset": "toy", "draft_len": 3, "first": 0, "probes": slower.to_dict("records")}
    thresholds = {"confidence": 0.45, "suffix_confidence": 0.8}
    write_json(cell / "run.json", {"settings": thresholds, "runs": [facts]})
    replay = {"dataset": "toy", "search_seconds": 0.002}
    write_json(tmp_path / "cells/traffic_verdict/toy.0/run.json", {"runs": [replay]})
    found = calibration.table(tmp_path)
    assert found["option"].tolist() == [
        "as_it_comes",
        "distilled",
        "lookup",
        "suffix",
        "suffix_confident",
        "lookup_first",
    ]
    assert found["inside"].all()
    assert (found["error"].abs() < 0.05).all()
    models = found[found["option"].isin(["as_it_comes", "distilled"])]
    np.testing.assert_allclose((1 + models["error_beside"]) / (1 + models["error"]), 1.45 / 1.75)
    assert calibration.sentence(found).startswith(
        "6 of 6 predictions are within 5% of the measured speed-up, and 6 intervals"
    )
    assert "0 are within 5%, the mean error is -1" in calibration.sentence(found)
    assert calibration.sentence(found).endswith("A plain step took 9.0 to 10.0 ms from one process to the next")
    write_json(cell / "run.json", {"runs": [{"dataset": "toy", "draft_len": 3, "first": 0}]})
    with pytest.raises(UserError, match="no costs were probed between requests"):
        calibration.table(tmp_path)


def test_payback_counts_requests_until_the_updates_are_won_back():
    rows = pd.concat([table(0.6, option="as_it_comes"), table(0.8)])
    before, after = decide(rows).options
    saved = 90 * 0.01 * (1 / before.speedup.estimate - 1 / after.speedup.estimate)
    assert after.payback_requests == pytest.approx(30 / saved)
    assert before.update_seconds is before.sent_bytes is None
    longer = decide(rows.assign(answer_tokens=np.where(rows["request_id"] < 30, 90, 270))).options[1]
    assert longer.payback_requests == pytest.approx(30 / saved / 2), "half of the answers were cut at a third"


def test_payback_is_not_known_on_another_machine_or_from_few_requests(tmp_path: Path):
    """The seconds of an update are this machine's, those of a profile's steps are not."""
    elsewhere = from_profile("rtx4090-llama-3.1-8b", 100, 0.12)
    few = pd.concat([table(0.3, 20, option="as_it_comes"), table(0.8, 20)])
    slow = pd.concat([table(0.8, option="as_it_comes"), table(0.3)])
    many = pd.concat([table(0.3, option="as_it_comes"), table(0.8)])
    for rows, costs, why in (
        (few, COSTS, "not known: fewer than 30 requests"),
        (many, elsewhere, "not known: the update ran on this machine"),
        (slow, COSTS, "never"),
        (slow, elsewhere, "never"),
    ):
        found = decide(rows, costs)
        assert found.options[-1].update_seconds == 30
        assert found.options[-1].payback_requests is None
        text = html.unescape(page(found))
        assert f"<td>30 s</td>\n<td>{why}" in text
    assert decide(many).options[-1].payback_unknown == ""


@pytest.mark.usefixtures("undrawn")
def test_an_update_is_paid_back_after_a_whole_number_of_requests(tmp_path: Path):
    found = decide(table(0.8))
    for requests, said in ((0.2, "1 request</td>"), (41.2, "42 requests</td>")):
        options = [found.options[0].model_copy(update={"payback_requests": requests})]
        assert f"<td>{said}" in page(found.model_copy(update={"options": options}))


@pytest.mark.usefixtures("undrawn")
def test_an_update_says_what_it_stores_and_sends(tmp_path: Path):
    """The weights go to the server once after distillation, and after each of nine updates while the draft keeps learning."""
    found = decide(pd.concat([table(0.8), table(0.7, option="kept_learning")]))
    assert [option.recorded_bytes for option in found.options] == [4_000_000] * 2
    assert [option.sent_bytes for option in found.options] == [2_000_000, 18_000_000]
    text = page(found)
    assert "4.0 MB of the target's recorded distributions" in text
    assert "2.0 MB for the draft distilled on this traffic, 18.0 MB for the draft that keeps learning on it (" in text


def test_a_learning_curve_says_what_twice_the_requests_would_add(tmp_path: Path):
    """From 100 to 400 requests the odds grow from 1 to 4: twice as many requests, twice the odds, so 8 / 9."""
    found = decide(curve_table(), facts=FACTS | {"learnt": CURVE})
    (curve,) = (option.learning for option in found.options if option.learning)
    assert list(curve.alpha) == [0, 50, 100, 400]
    now = curve.alpha[400].estimate
    assert now == pytest.approx(0.8, abs=0.01)
    assert [curve.alpha[n].estimate for n in (0, 50, 100)] == pytest.approx([0.2, 0.4, 0.5], abs=0.01)
    adds = curve.twice_adds
    assert adds is not None
    odds = [alpha / (1 - alpha) for alpha in (curve.alpha[100].estimate, now)]
    twice = odds[1] * (odds[1] / odds[0]) ** 0.5
    assert adds.estimate == pytest.approx(twice / (1 + twice) - now)
    assert list(curve.points) == [0, 50, 100, 400, 800]
    assert curve.points[800].estimate == pytest.approx(now + adds.estimate)
    assert 0.02 < adds.low < adds.estimate < adds.high < 1 - now
    said = (
        f"on the first 0, 50, 100, 400 requests, the draft has an acceptance of 0.20, 0.40, 0.50, {now:.2f}. Twice the"
    )
    text = page(found)
    assert f"{said} requests would add about {adds.show()}." in text


def test_the_forecast_of_acceptance_is_as_uncertain_as_the_acceptance_that_it_starts_from():
    """Requests differ widely, and twice as many add next to nothing to each of them."""
    rows = pd.concat([table(0.595, 40, "distilled_on_quarter", spread=0.35), table(0.6, 40, spread=0.35)])
    (found,) = decide(rows, facts=FACTS | {"learnt": {"distilled_on_quarter": 100, "distilled": 400}}).options
    assert found.learning is not None
    now, twice = (found.learning.points[n] for n in (400, 800))
    assert twice.high - twice.low == pytest.approx(now.high - now.low, rel=0.05)


@pytest.mark.parametrize(
    ("learnt", "requests", "why"),
    [
        ({"distilled_on_quarter": 14, "distilled": 59}, 60, "59 requests are too few for a curve; 60 are needed"),
        ({"distilled_on_quarter": 100, "distilled": 400}, 29, "29 held-out requests; 30 are needed"),
    ],
)
def test_a_curve_too_short_forecasts_nothing(learnt: dict[str, int], requests: int, why: str):
    rows = pd.concat([table(0.5, requests, "distilled_on_quarter"), table(0.8, requests)])
    (found,) = decide(rows, facts=FACTS | {"learnt": learnt}).options
    assert found.learning is not None
    assert found.learning.twice_adds is None
    assert found.learning.sentence.endswith(f"What more requests would add is not known: {why}")


def test_the_card_of_a_draft_says_what_was_measured_and_how_to_serve_it(tmp_path: Path):
    rows = pd.concat(
        [curve_table(), table(0.9, option="distilled_confident", threshold=0.45), table(0.6, option="kept_learning")]
    )
    found = decide(rows, facts=FACTS | {"learnt": CURVE})
    private = {"log": "/secret/log.jsonl", "log_sha256": "ab12", "target": "/secret/my target.gguf"}
    found = found.model_copy(update=private)
    for folder in ("draft", "kept_learning"):
        (tmp_path / folder).mkdir()
    card.write(found, "org/small@main", tmp_path)
    cards = [(tmp_path / folder / "README.md").read_text() for folder in ("draft", "kept_learning")]
    _, head, body = cards[0].split("---\n", 2)
    assert yaml.safe_load(head) == {
        "base_model": "org/small",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["speculative-decoding", "draft-model", "draftlab"],
    }
    by_name = {option.name: option for option in found.options}
    fixed, sure = by_name["distilled"], by_name["distilled_confident"]
    row = f"| {fixed.draft_len} | {fixed.alpha.show()} | {fixed.speedup.show()} |"
    assert f"| the draft distilled on this traffic {row}" in body
    assert f"| {sure.draft_len} at most, confidence 0.45 | {sure.alpha.show()} |" in body
    assert (
        "learnt from 400 requests, measured on 60 held-out requests, at temperature 0. SHA-256 of the log: `ab12`"
        in body
    )
    assert f"* Verdict: yes (the distilled draft while it is sure: {sure.reason})." in body
    assert f'"num_speculative_tokens": {fixed.draft_len}' in body, "vLLM's blocks have one length"
    assert f"--speculative-num-steps {fixed.draft_len} " in body
    assert "--spec-draft-p-min 0.45" in body
    assert "/secret" not in cards[0] + cards[1]
    assert "a draft for my target.gguf" in cards[0].lower()
    assert "that learnt while it served 400 requests" in cards[1]
    assert "confidence" not in cards[1]


def test_a_card_names_the_engines_that_serve_such_a_draft(tmp_path: Path):
    found = decide(curve_table(), facts=FACTS | {"learnt": CURVE})
    head, at_once = {"draft_vocab_size": 30, "vocab_size": 40}, {"pard_token": 3}
    served = {}
    for kind, config in {"head": head, "parallel": at_once, "both": head | at_once}.items():
        write_json(tmp_path / kind / "draft/config.json", config)
        card.write(found, "org/small", tmp_path / kind)
        served[kind] = (tmp_path / kind / "draft/README.md").read_text()
    for kind, text in served.items():
        assert ("SGLang" in text) is (kind == "head")
        assert ("llama.cpp (" in text) is (kind == "head")
        assert ("--spec-type draft-eagle3" in text) is (kind == "head")
        assert ("convert_hf_to_gguf.py DRAFT --target-model-dir TARGET" in text) is (kind == "head")
        assert "gguf export" not in text
        assert ("draftlab widen" in text) is (kind == "parallel")
        assert ('"parallel_drafting": true' in text) is (kind != "head")
        assert f'"method": "{"draft_model" if kind == "parallel" else "eagle3"}"' in text


@pytest.mark.usefixtures("undrawn")
def test_the_page_says_what_a_step_takes_and_what_its_intervals_cover(tmp_path: Path):
    """A profile was measured once, elsewhere."""
    for costs, covers in (
        (COSTS, "requests and between the moments at which costs were measured."),
        (
            from_profile("rtx4090-llama-3.1-8b", 100, 0.12),
            "requests, but not by how much the profile's costs miss your",
        ),
    ):
        found = decide(table(0.8), costs)
        text = page(found)
        assert (
            f"A target step takes {found.step_seconds * 1e3:.3g} ms, drafting a token {found.cost_ratio[8]:.3f} of that"
            in text
        )
        assert f"they cover the variation between {covers}" in text


@pytest.mark.usefixtures("undrawn")
def test_the_page_says_what_the_monitor_expects(tmp_path: Path):
    found = decide(table(0.8))
    assert found.monitor
    expected = f"production with {found.monitor.acceptance_length.show()} tokens per step"
    assert expected in page(found)
    assert "production with" not in page(decide(table(0.1)))


def test_a_card_names_the_machine_of_the_costs():
    for costs, where in (
        (COSTS, "Costs: measured in llama.cpp on the machine that wrote this card at a context of 128."),
        (from_profile("rtx4090-llama-3.1-8b", 100, 0.12), "Costs: profile rtx4090-llama-3.1-8b: "),
    ):
        found = decide(table(0.8), costs)
        text = card.text(found, "", found.options)
        assert where in text
        assert ("machine that wrote" in text) is (costs is COSTS)


def test_an_empty_table_and_broken_probes_are_refused():
    for rows in (table(0.8).iloc[:0], table(0.8).assign(split="train")):
        with pytest.raises(UserError, match="no request was held out"):
            decide(rows)
    broken = probes().assign(verify_seconds=lambda t: t["verify_seconds"].where(t["block"] != 3))
    with pytest.raises(UserError, match="NaN"):
        from_probes(broken, 100)


def own_distilled(results: Path, settings: dict[str, object], requests: int) -> LanguageModel:
    """The toy draft, distilled on the first requests of the stream."""
    draft = load_model(results / "models" / "draft")
    stream = load_pass(results / "answers" / ("toy.train" + (".t1" if settings["temperature"] else "")))
    distil(draft, stream.take(range(requests)), ReplayLog.model_validate(settings), results / "checkpoint.safetensors")
    return draft


def test_the_seconds_of_a_distillation_that_was_killed_are_those_of_all_its_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_results(tmp_path)
    update = training.update
    slow = Mortal(lambda *given: time.sleep(0.02) or update(*given), dies_at=11)
    monkeypatch.setattr(training, "update", slow)
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    stream, checkpoint = load_pass(tmp_path / "answers/toy.train"), tmp_path / "c.safetensors"
    settings = ReplayLog(dataset="toy", learning_rate=5e-3, batch=8, update_interval=8, epochs=2)
    with pytest.raises(Killed):
        distil(load_model(tmp_path / "models/draft"), stream, settings, checkpoint)
    _, found = distil(load_model(tmp_path / "models/draft"), stream, settings, checkpoint)
    assert slow.calls == 11 + 2
    assert found["updates"] == 12
    assert found["seconds"] > 12 * 0.02


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_stage_counts_what_replay_counts(tmp_path: Path, temperature: float):
    make_results(tmp_path)
    settings = {"dataset": "toy", "learning_rate": 5e-3, "batch": 8, "update_interval": 8, "temperature": temperature}
    rows, record = run_cell("replay_log", tmp_path, tmp_path / "cell", settings | {"epochs": 4, "draft_lens": LENGTHS})
    recorded = load_pass(tmp_path / "answers" / ("toy.eval" + (".t1" if temperature else "")))
    drafts = {"as_it_comes": tmp_path / "models" / "draft", "distilled": tmp_path / "cell" / "draft"}
    drafts["kept_learning"] = tmp_path / "cell" / "kept_learning"
    proposal = "probabilistic" if temperature else "greedy"
    for option, folder in drafts.items():
        for draft_len in LENGTHS:
            walked = replay(load_model(folder), recorded, draft_len)
            own = rows[(rows["option"] == option) & (rows["split"] == "eval") & (rows["proposal"] == proposal)]
            own = own[own["draft_len"] == draft_len]
            np.testing.assert_allclose(own["blocks"], walked.blocks)
            np.testing.assert_allclose(own["accepted"], walked.accepted, atol=1e-9)
            np.testing.assert_allclose(own["whole"], walked.whole, atol=1e-9)
            assert (own["changes"] == 0).all()
    once = rows[(rows["split"] == "eval") & (rows["draft_len"] == 1)].set_index(["option", "proposal"])
    assert (once["optimum_4"].dropna() >= once["optimum_2"].dropna() - 1e-9).all()
    mine = once.loc[("distilled", proposal)]
    assert (mine["optimum_2"].dropna() >= mine["overlap"].dropna().iloc[: mine["optimum_2"].count()] - 1e-6).all()
    early = {name for name in NAMES if name.endswith("_confident")}
    curve = {"distilled_on_eighth", "distilled_on_quarter"}
    greedy_alone = early - {"suffix_confident"} if temperature else set()
    assert set(rows["option"]) == set(NAMES) - greedy_alone | curve
    assert record["runs"][0]["learnt"] == {
        "as_it_comes": 0,
        "distilled_on_eighth": 6,
        "distilled_on_quarter": 12,
        "distilled": 48,
    }
    for option, share in (("distilled_on_eighth", 8), ("distilled_on_quarter", 4)):
        mine_alone = own_distilled(tmp_path, settings | {"epochs": 4}, 48 // share)
        shown = rows[(rows["option"] == option) & (rows["draft_len"] == 3) & (rows["proposal"] == proposal)]
        np.testing.assert_allclose(shown["accepted"], replay(mine_alone, recorded, 3).accepted, atol=1e-9)
    assert (rows.loc[~rows["option"].isin(early), "threshold"] == 0).all()
    assert record["runs"][0]["online"]["updates"] == 6
    found = [Ngrams(a.prompt_ids).guess is None for a in recorded.answers]
    first = rows[(rows["option"] == "lookup") & (rows["split"] == "eval") & (rows["draft_len"] == 1)].drop_duplicates(
        "request_id"
    )
    assert (first["empty"].to_numpy() >= np.array(found)).all()
    stream = load_pass(tmp_path / "answers" / ("toy.train" + (".t1" if temperature else "")))
    remembering = rows[(rows["option"] == "suffix") & (rows["draft_len"] == 3) & (rows["proposal"] == proposal)]
    drafted = continue_everywhere(recorded, stream.answers, 3)
    blocks = cut(drafted, drafted.without_model())
    assert remembering["split"].unique().tolist() == ["eval"], "it remembers the answers of the stream"
    for count in ("blocks", "accepted", "drafted", "changes"):
        assert remembering[count].tolist() == getattr(blocks, count).tolist()
    assert remembering["empty"].tolist() == blocks.calls[:, 0].tolist()
    sure = rows[(rows["option"] == "suffix_confident") & (rows["draft_len"] == 3) & (rows["proposal"] == proposal)]
    drafted = continue_everywhere(recorded, stream.answers, 3, 0.6)
    blocks = cut(drafted, drafted.without_model())
    for count in ("blocks", "accepted", "drafted"):
        assert sure.loc[sure["threshold"] == 0.6, count].tolist() == getattr(blocks, count).tolist()
    assert sure["drafted"].min() > 0, "it drafts where it is sure"
    assert remembering["accepted"].sum() > 0 == remembering["steps"].sum()
    assert 0 < record["runs"][0]["search_seconds"] < 0.1
    if not temperature:
        asked = draft_everywhere(Lookup(load_model(tmp_path / "models" / "draft")), recorded, 3)
        blocks = cut(asked, asked.confident(1.0))
        own = rows[(rows["option"] == "lookup") & (rows["split"] == "eval") & (rows["draft_len"] == 3)]
        assert own["blocks"].tolist() == blocks.blocks.tolist()
        assert own["drafted"].tolist() == blocks.drafted.tolist()
        assert own["changes"].tolist() == blocks.changes.tolist()
        assert (own["accepted"] <= own["visited"]).all()
        # The rule also judges a token beyond the end of an answer.
        assert set(blocks.judged - own["visited"]) <= {0, 1}
        assert blocks.changes.sum() > 0


def test_blocks_that_end_where_the_draft_is_unsure(tmp_path: Path):
    """The stage's counts are those of the rule along the recorded answers; none ends early at a threshold that every draft reaches."""
    make_results(tmp_path)
    settings = {"dataset": "toy", "learning_rate": 5e-3, "batch": 8, "update_interval": 8, "temperature": 0.0}
    settings |= {"epochs": 4, "draft_lens": LENGTHS, "thresholds": [1e-6, 0.005, 0.999]}
    rows, _ = run_cell("replay_log", tmp_path, tmp_path / "cell", settings)
    own = rows[(rows["split"] == "eval") & (rows["draft_len"] == 3)].set_index(["option", "threshold"])
    never, always = own.loc[("distilled_confident", 1e-6)], own.loc[("distilled_confident", 0.999)]
    fixed = own.loc[("distilled", 0.0)]
    for count in ("blocks", "accepted", "visited", "drafted", "steps", "whole", "changes"):
        np.testing.assert_allclose(never[count], fixed[count])
    assert (always["drafted"] == 0).all()
    assert (always["empty"] == always["blocks"]).all()
    assert (always["steps"] == always["blocks"]).all()
    some = own.loc[("distilled_confident", 0.005)][["drafted", "blocks", "accepted"]].sum()
    assert 0 < some["drafted"] < never["drafted"].sum()
    assert some["accepted"] / some["drafted"] > never["accepted"].sum() / never["drafted"].sum()
    search = {threshold: own.loc[("suffix_confident", threshold)] for threshold in settings["thresholds"]}
    assert search[1e-6]["drafted"].tolist() == own.loc[("suffix", 0.0), "drafted"].tolist()
    assert 0 < search[0.999]["drafted"].sum() < search[1e-6]["drafted"].sum()
    alone = own.loc[("lookup_first_confident", 0.999)]
    assert (alone["drafted"].to_numpy() > 0).any()


@pytest.mark.usefixtures("undrawn")
def test_a_draft_that_pays_while_it_is_sure_is_named_with_its_threshold(tmp_path: Path):
    rows = pd.concat([table(0.3), table(0.8, option="distilled_confident", threshold=0.45)])
    found = decide(rows, rate=2.0)
    assert found.best == "distilled_confident"
    assert f"up to {found.options[1].draft_len} tokens per block (confidence 0.45)" in found.sentence
    assert set(found.load) == {"distilled"}, "the simulated server knows no block that ends early"
    assert found.monitor is not None
    assert found.monitor.threshold == found.options[1].threshold == 0.45
    (tmp_path / "verdict.json").write_text(found.model_dump_json())
    promise = read_promise(tmp_path / "verdict.json")
    assert (promise.option, promise.threshold) == ("distilled_confident", 0.45)
    text = page(found.model_copy(update={"commands": commands(found, tmp_path, "D", tmp_path)}))
    assert "--confidence 0.45" in text
    assert "at most, confidence 0.45" in text
    two = pd.concat([rows, table(0.5, option="distilled_confident", threshold=0.3)])
    best = decide(two).options[1]
    assert (best.threshold, best.requests) == (0.45, 60), "the requests of one threshold alone"
    assert best.tips_at is None
    assert found.options[0].tips_at is not None
    assert best.speedup.estimate == found.options[1].speedup.estimate


def test_the_page_says_what_the_json_says_and_asks_nobody(tmp_path: Path):
    rows = pd.concat([table(0.3, option="as_it_comes"), table(0.8, spread=0.1)])
    found = decide(rows, rate=2.0).model_copy(update={"log": "<b>log</b>.jsonl", "target": "my target"})
    text = page(found.model_copy(update={"commands": commands(found, tmp_path, "D", tmp_path)}))
    assert found.sentence in text
    assert "<b>log" not in text
    assert "draftlab emit --draft-len" in text
    assert "--target &#39;my target&#39;" in text
    assert not re.findall(r"""(?:src|href)=["'](?!data:|#)""", text)
    for own in found.options:
        assert own.speedup.show() in text


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("enough", "said"),
    [
        (700, "After 700 requests, twice as many would add less than .01."),
        (None, "From 500 to 1000 requests it would still gain .01 or more."),  # nothing is known beyond 1000
    ],
)
def test_a_forecast_says_no_more_than_it_reaches(tmp_path: Path, enough: int | None, said: str):
    found = decide(table(0.7, option="kept_learning"))
    alpha = Range(estimate=0.8, low=0.7, high=0.9)
    forecast = Forecast(seen=100, after=dict.fromkeys((200, 500, 1000), alpha), enough=enough)
    options = [found.options[0].model_copy(update={"forecast": forecast})]
    text = page(found.model_copy(update={"options": options}))
    assert said in text
    assert text.count("gain .01") + text.count("less than .01") == 1


@pytest.mark.parametrize(
    ("option", "draft", "served"),
    [
        ("as_it_comes", "B", "B"),
        ("as_it_comes", "", "results/main/models/draft"),
        ("distilled", "B", "results/cells/traffic_verdict/prompts.0/draft"),
        ("kept_learning", "B", "results/cells/traffic_verdict/prompts.0/kept_learning"),
    ],
)
def test_the_draft_to_serve_is_that_of_the_best_option(tmp_path: Path, option: str, draft: str, served: str):
    found = decide(table(0.8, option=option))
    emit, _ = commands(found, Path("out"), draft, Path("results"))
    assert f" --draft {served} " in emit
    write_json(tmp_path / served / "config.json", {"head_tokens": 8})
    name = draft and str(tmp_path / draft)
    widen, emit, _ = commands(found, Path("out"), name, tmp_path / "results")
    assert widen == f"draftlab widen --model {tmp_path / served} --out out/draft"
    assert " --draft out/draft " in emit
    _, export, emit, _ = commands(
        decide(table(0.8, option=option), target="T.gguf"), Path("out"), name, tmp_path / "results"
    )
    assert export == "draftlab gguf export --model out/draft --vocabulary-of T.gguf --out out/draft.gguf"
    assert " --target T.gguf --draft out/draft.gguf " in emit
    assert "--greedy" not in emit


@pytest.mark.parametrize(
    ("draft", "target", "rows", "copied"),
    [
        ("owner/name", "T", 384, True),  # vLLM refuses a draft with other rows than its target
        ("owner/name", "T", 320, False),
        ("B.gguf", "T.gguf", 384, False),  # llama.cpp does not, up to 128
        ("B.gguf", "T.gguf", 512, True),
    ],
)
def test_a_draft_that_was_given_the_rows_of_its_target_is_served_so(
    tmp_path: Path, draft: str, target: str, rows: int, copied: bool
):
    copy = tmp_path / "main/models/draft"
    before = {"draftlab_rows_before": 320} if rows != 320 else {}
    write_json(copy / "config.json", {"vocab_size": rows} | before)
    steps = commands(decide(table(0.8, option="as_it_comes"), target=target), Path("out"), draft, tmp_path)
    served = next(step for step in steps if step.startswith("draftlab emit")).split()
    export = [step for step in steps if step.startswith("draftlab gguf export")]
    if target == "T.gguf" and copied:
        assert f"--model {copy} " in export[0]
    else:
        assert (served[served.index("--draft") + 1], export) == (str(copy) if copied else draft, [])


@pytest.mark.parametrize("kind", [{"draft_vocab_size": 30}, {"architectures": ["DFlashDraftModel"]}, {"pard_token": 3}])
def test_a_draft_that_llama_cpp_does_not_run_is_served_with_the_folder_of_its_target(
    kind: dict[str, Any], tmp_path: Path
):
    """A head of EAGLE-3 or DFlash, and a draft that proposes a block in one pass."""
    found = decide(table(0.8), target="T.gguf")
    draft = tmp_path / "cells/traffic_verdict/prompts.0/draft"
    write_json(draft / "config.json", kind | {"vocab_size": 40})
    emit, monitor = commands(found, Path("out"), "B", tmp_path)
    assert f" --target {tmp_path}/main/models/target --draft {draft} " in emit
    assert ":8000/metrics" in monitor


def test_a_draft_after_a_lookup_is_served_by_llama_cpp():
    found = decide(table(0.8, option="lookup_first"))
    target, draft, emit, monitor = commands(found, Path("out"), "", Path("results"))
    assert target == "python convert_hf_to_gguf.py T --outfile out/target.gguf"
    assert draft.endswith("--vocabulary-of out/target.gguf --out out/draft.gguf")
    assert emit.startswith("draftlab emit llama-cpp --lookup --draft-len ")
    assert "--target out/target.gguf --draft out/draft.gguf" in emit
    assert monitor.startswith("draftlab monitor http://localhost:8080/metrics ")
    of_file = decide(table(0.8, option="lookup_first"), target="T.gguf")
    draft, emit, _ = commands(of_file, Path("out"), "", Path("results"))
    assert "--vocabulary-of T.gguf" in draft
    assert "--target T.gguf" in emit


@pytest.mark.parametrize(
    ("model", "to_serve", "to_convert"),
    [
        ("package:smollm2-135m-instruct", "models/target/model.gguf", None),
        ("owner/name@main", "models/target", "models/target"),
        ("owner/name", None, "models/target"),
    ],
)
def test_commands_name_what_engines_find(model: str, to_serve: str | None, to_convert: str | None):
    """Only draftlab knows packages and revisions, and llama.cpp converts folders alone."""
    served = f"results/main/{to_serve}" if to_serve else model
    lookup = table(0.8, option="lookup", spread=0.1).assign(steps=0.0)
    for rows in (table(0.8), lookup):
        assert f" {served} " in commands(decide(rows, target=model), Path("out"), "", Path("results"))[0]
    first = commands(decide(table(0.8, option="lookup_first"), target=model), Path("out"), "", Path("results"))[0]
    convert = f"python convert_hf_to_gguf.py results/main/{to_convert} --outfile out/target.gguf"
    assert first == convert if to_convert else f"--vocabulary-of {served} " in first
    own = commands(decide(table(0.8, option="as_it_comes"), target=model), Path("out"), model, Path("results"))[0]
    assert f" --draft {served.replace('target', 'draft')} " in own


@pytest.mark.parametrize(
    ("option", "threshold", "described"),
    [
        ("suffix", 0.0, "suffix decoding, up to {} tokens per block, makes"),
        (
            "suffix_confident",
            0.45,
            "suffix decoding while it is sure, up to {} tokens per block (confidence 0.45), makes",
        ),
    ],
)
def test_suffix_decoding_is_served_by_vllm(option: str, threshold: float, described: str):
    rows = table(0.8, option=option, spread=0.1, threshold=threshold).assign(steps=0.0)
    found = decide(rows, facts=FACTS | {"search_seconds": 2e-4})
    assert found.best == option
    assert described.format(found.monitor.draft_len) in found.sentence
    for target, served in (("T", "T"), ("T.gguf", "results/main/models/target")):
        judged = found.model_copy(update={"target": target})
        emit, engine, monitor = commands(judged, Path("out"), "", Path("results"))
        given = f"draftlab emit --draft-len {judged.monitor.draft_len} --suffix --target {served} "
        assert emit == given + (f"--confidence {threshold:g} " if threshold else "") + "--out out/engines"
        words = shlex.split(engine)
        assert words[:4] == ["vllm", "serve", served, "--speculative-config"]
        length = judged.monitor.draft_len
        expected = {"method": "suffix", "num_speculative_tokens": length, "suffix_decoding_max_tree_depth": LONGEST}
        assert json.loads(words[4]) == expected | {"suffix_decoding_min_token_prob": threshold or LEAST}
        assert "localhost:8000/metrics" in monitor


@pytest.mark.parametrize("option", ["suffix", "suffix_confident"])
def test_suffix_decoding_pays_for_its_search_where_it_was_measured(option: str):
    """A plain step takes 10 ms, so a search of 1 ms costs a tenth of it a block; a lookup is cheaper, and a profile's engine searches beside."""
    rows = table(0.6, option=option).assign(steps=0.0)
    costs = from_probes(probes(around=(0.0, 0.01)), 100)
    facts = FACTS | {"search_seconds": 1e-3}
    (slow,) = decide(rows, costs, facts).options
    (fast,) = decide(rows, costs, FACTS | {"search_seconds": 0.0}).options
    (lookup,) = decide(rows.assign(option="lookup"), costs).options
    costs_of = [90 / option.by_length[2].speedup.estimate for option in (fast, slow, lookup)]
    blocks = float(rows.loc[rows["draft_len"] == 3, "blocks"].iloc[0])
    assert costs_of[1:] == pytest.approx([costs_of[0] + 0.1 * blocks, costs_of[0] + 0.01 * blocks])
    (elsewhere,) = decide(rows, replace(costs, is_here=False), facts).options
    assert elsewhere.speedup == lookup.speedup


@pytest.mark.usefixtures("undrawn")
def test_the_best_length_by_batch_has_its_gain_over_the_requests():
    """A lone request is the case without a load: as fast as the option at that length, if its blocks cost the same."""
    rows = table(0.8, spread=0.1)
    (option,) = decide(rows).options
    assert set(option.by_batch) == set(option.gain_by_batch)
    for batch, length in option.by_batch.items():
        gain = option.gain_by_batch[batch]
        assert (gain.estimate > 1) is (length > 0)
        assert gain.low < gain.estimate < gain.high if length else gain.low == gain.high == 1
    assert option.by_batch[1] > 0
    text = page(decide(rows))
    assert f"{option.by_batch[1]}: {option.gain_by_batch[1].show()}" in text


def test_suffix_decoding_whose_blocks_differ_in_length_is_not_simulated_under_load():
    """The simulated server would read five drafted tokens in every block, of which suffix decoding drafts two."""
    found_more = table(0.8, option="suffix").assign(steps=0.0, drafted=lambda t: t["blocks"] * t["draft_len"] * 0.4)
    rows = pd.concat([found_more, table(0.5, option="lookup").assign(steps=0.0), table(0.6)])
    found = decide(rows, facts=FACTS | {"search_seconds": 0.0}, rate=4.0)
    assert found.best == "suffix"
    assert sorted(found.load) == ["distilled", "lookup"]


def test_lookup_alone_is_served_by_the_engine_of_the_target():
    found = decide(table(0.8, option="lookup", spread=0.1).assign(steps=0.0))
    assert found.best == "lookup"
    for target, serve, port in (
        ("T", "vllm serve T --speculative-config", 8000),
        ("T.gguf", "llama-server --metrics --model T.gguf ", 8080),
    ):
        emit, engine, monitor = commands(found.model_copy(update={"target": target}), Path("out"), "", Path("results"))
        assert (
            emit == f"draftlab emit --draft-len {found.monitor.draft_len} --lookup --target {target} --out out/engines"
        )
        assert engine.startswith(serve)
        assert "--draft " not in emit + engine
        assert f"localhost:{port}/metrics" in monitor


def test_a_draft_that_proposes_its_most_probable_token_is_served_so():
    rows = table(0.8)
    rows = pd.concat([rows.assign(proposal="probabilistic", emitted=80.0), rows])
    found = decide(rows, temperature=1)
    assert " --greedy" in commands(found, Path("out"), "", Path("results"))[-2]
    sampled = decide(rows.assign(emitted=rows["emitted"].map({80.0: 90.0, 90.0: 80.0})), temperature=1)
    assert " --greedy" not in commands(sampled, Path("out"), "", Path("results"))[-2]


def answer_file(folder: Path, rows: list[str]) -> Path:
    (folder / "log.jsonl").write_text("\n".join(rows))
    return folder / "log.jsonl"


def questions(count: int) -> list[str]:
    """The rows of a log."""
    return [f'{{"prompt": "how much is {i} + {i}?"}}' for i in range(count)]


def test_a_log_too_short_is_not_yet_known_before_any_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [*questions(40), "{broken", questions(2)[1]]
    asked = VerdictSettings(traffic=answer_file(tmp_path, rows), target="no/such")
    found = run(asked, tmp_path / "out")
    assert [own for _, own in found] == [None]
    assert lines(found)[0].startswith("Not yet known")
    said = capsys.readouterr().err
    assert "40 usable requests" in said
    assert "; left out: 1 broken JSON" in said
    assert "; left out: 1 duplicates" in said
    assert not (tmp_path / "out").exists()
    two = VerdictSettings(traffic=asked.traffic, target="no/such", draft=("a/llama-1.1b", "b/llama-1.3b"))
    assert len({folder for folder, _ in run(two, tmp_path / "out")}) == 2, "neither replaces the other's verdict"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "usable requests: 0 of 0 .see draftlab data check"),
        (['{"prompt": "Why?"}'] * 70, "usable requests: 1 of 70 .see draftlab data check"),
        (['{"text_": "Why?"}'] * 70, "usable requests: 0 of 70; 70 no prompt or text"),
    ],
)
def test_a_log_that_cannot_be_used_says_how_many_requests_it_has(tmp_path: Path, rows: list[str], message: str):
    with pytest.raises(UserError, match=message):
        run(VerdictSettings(answer_file(tmp_path, rows), target="no/such"), tmp_path / "out")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"temperature": 0.5, "top_p": 1.5}, "--top-p is 1.5 .give more than 0 and at most 1"),
        ({"temperature": 0.5, "top_k": -1}, "--top-k is -1"),
        ({"temperature": 0.5, "min_p": 2.0}, "--min-p is 2.0 .give 0 to 1"),
        ({"answer_tokens": 0}, "--answer-tokens is 0 .give 1 or more"),
        ({"learning_rate": 0.0}, "--learning-rate is 0.0 .give a number between 0 and 1"),
        ({"cores": -1}, "--cores is -1 .give 1 or more, or 0 for all"),
    ],
)
def test_a_setting_out_of_bounds_is_named_as_it_was_given(tmp_path: Path, changed: dict[str, Any], message: str):
    with pytest.raises(UserError, match=message):
        run(VerdictSettings(answer_file(tmp_path, []), target="no/such", **changed), tmp_path / "out")


def runs_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *changes: dict[str, Any]) -> list[Run]:
    """The runs that a verdict starts, one for each choice of settings; none of them is carried out."""
    make_results(tmp_path / "pair")
    ran: list[list[str]] = []
    stopped = subprocess.CompletedProcess[str]([], 1)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: ran.append(command) or stopped)
    log = answer_file(tmp_path, questions(60))
    folders = {"target": str(tmp_path / "pair/models/target"), "draft": (str(tmp_path / "pair/models/draft"),)}
    for changed in changes:
        with pytest.raises(UserError, match="the workflow stopped"):
            run(VerdictSettings(log, **folders, template="plain", **changed), tmp_path / "out")
    runs = [run_of([word for word in command if "=" in word]) for command in ran]
    for command, own in zip(ran, runs, strict=True):
        assert command[-2].split("/cells/traffic_verdict/")[1].removesuffix("/rows.csv") in own.cells("traffic_verdict")
    return runs


def test_a_server_may_write_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    urls = ({}, {"server": "http://host:8000/v1"})
    runs = runs_of(tmp_path, monkeypatch, *({"answer_tokens": 32, **url} for url in urls))
    here, there = (own.settings.pairs["main"].answers for own in runs)
    assert (here.engine, here.max_new_tokens) == ("transformers", 32)
    assert (there.engine, there.url, there.max_new_tokens) == ("openai", "http://host:8000/v1", 32)
    log = tmp_path / "log.jsonl"
    with pytest.raises(UserError, match="url is not a plain http"):
        run(VerdictSettings(log, str(tmp_path / "pair/models/target"), server="host:8000"), tmp_path / "out")


def test_the_sampling_of_a_service_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cuts = ({}, {"top_p": 0.9, "top_k": 20, "min_p": 0.1})
    whole, cut = runs_of(tmp_path, monkeypatch, *({"temperature": 0.7, **own} for own in cuts))
    assert whole.name != cut.name, "the answers differ"
    assert whole.settings.pairs["main"].answers.sampling(0.7) == Sampling(0.7)
    assert cut.settings.pairs["main"].answers.sampling(0.7) == Sampling(0.7, 20, 0.9, 0.1)
    assert list(cut.cells("traffic_verdict")) == ["prompts.0.7"]


@pytest.mark.usefixtures("undrawn")
def test_verdicts_at_two_temperatures_are_both_kept_and_say_their_temperature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(verdict_command, "run_workflow", lambda *_: tmp_path / "run")
    monkeypatch.setattr(verdict_command.card, "write", lambda *_: None)
    judged = {t: decide(table(0.8), temperature=t) for t in (0, 1)}
    monkeypatch.setattr(verdict_command, "judge_run", lambda _, settings, *__: judged[settings.temperature])
    log = answer_file(tmp_path, questions(60))
    found = [
        run(VerdictSettings(log, "T", draft=drafts, temperature=temperature), tmp_path / "out")
        for drafts in ((), ("A", "B"))
        for temperature in (0, 1, 0)
    ]
    kept = [Verdict.model_validate_json((folder / "verdict.json").read_text()) for own in found for folder, _ in own]
    assert [one.temperature for one in kept] == [0, 1, 0, 0, 0, 1, 1, 0, 0]
    assert found[0][0][0] == tmp_path / "out"
    assert ["at temperature 1" in lines(own)[-1] for own in found] == [False, True, False] * 2
    assert "at temperature 1; costs" in lines(found[1])[-1]
    cut = decide(table(0.8), temperature=0.7, top_p=0.9, top_k=20, min_p=0.1)
    assert "at temperature 0.7, top-p 0.9, top-k 20, min-p 0.1; costs" in lines([(tmp_path, cut)])[-1]


@pytest.mark.usefixtures("undrawn")
def test_a_verdict_replaces_none_of_other_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(verdict_command, "run_workflow", lambda *_: tmp_path / "run")
    monkeypatch.setattr(verdict_command.card, "write", lambda *_: None)
    judged = decide(table(0.8))
    monkeypatch.setattr(verdict_command, "judge_run", lambda *_: judged)
    log = answer_file(tmp_path, questions(60))
    shipped = "rtx4090-llama-3.1-8b"
    for folder in ("first", "second"):  # files with the same names
        save(load_profile(shipped), tmp_path / folder / "mine.yaml")
        rows = [f'{{"timestamp": {i}, "input_length": 5, "output_length": 5, "hash_ids": []}}' for i in range(9)]
        write_text(tmp_path / folder / "mine.jsonl", "\n".join(rows))
        write_text(tmp_path / folder / "mine.py", "from draftlab.data.own_prompts import prompts as clean\n")
    asked = [
        {},
        *({"load": load} for load in ("4/s", "4.0000001/s")),
        *({"hardware": str(one)} for one in (shipped, tmp_path / "first/mine.yaml", tmp_path / "second/mine.yaml")),
        *({"trace": tmp_path / folder / "mine.jsonl"} for folder in ("first", "second")),
        *({"template": template} for template in ("plain", "own")),
        {"template_options": '{"enable_thinking": false}'},
        *({"cleaner": f"{tmp_path}/{folder}/mine.py:clean"} for folder in ("first", "second")),
        {"answer_tokens": 32},
        {"learning_rate": 1e-3},
        {"scale": "smollm2"},
        {"server": "http://host:8000/v1"},
        *({"temperature": 1, "top_p": top_p} for top_p in (1, 0.9, 0.95)),
        {"temperature": 1, "template": "plain", "hardware": shipped, "load": "4/s"},
    ]
    settings = [VerdictSettings(log, "T", **more) for more in asked]
    folders = [run(one, tmp_path / "out")[0][0] for one in settings]
    assert len({*folders}) == len(asked)
    assert folders[0] == tmp_path / "out"
    assert folders[1] == tmp_path / "out/load_4"
    assert run(VerdictSettings(log, "T", server="http://other:8000/v1"), tmp_path / "out")[0][0] in folders
    assert folders[-1] == tmp_path / "out/temperature_1/template_plain" / f"hardware_{shipped}" / "load_4"
    assert run(replace(settings[1], load="4"), tmp_path / "out")[0][0] == folders[1]
    names = [name_of(one, "") for one in settings]
    assert len({*names}) == 11, (
        "runs of another cleaner, template, options of it, top-p, limit of answers or scale record their own answers; one"
        " with another learning rate has its own draft"
    )


def test_a_learning_rate_is_that_of_every_draft_that_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    changes = ({"learning_rate": 1e-3, "temperature": temperature} for temperature in (0.0, 0.5))
    usual, *others = runs_of(tmp_path, monkeypatch, {}, *changes)
    rates = [
        {variant.settings.learning_rate for cell in one.cells("traffic_verdict").values() for variant in cell}
        for one in (usual, *others)
    ]
    assert rates == [{3e-4}, {1e-3}, {1e-3}]


def test_a_log_in_a_format_of_ones_own_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("ours.py").write_text(
        "from draftlab.data.fields import BadRow, Cleaned\n\n\ndef clean(row):\n"
        "    if not row['asked']:\n        raise BadRow('nothing asked')\n    return Cleaned(row['asked'])\n"
    )
    log = answer_file(tmp_path, [json.dumps({"asked": f"what is {n}?" * bool(n)}) for n in range(61)])
    seen = {}

    def workflow(settings: VerdictSettings, *more: object) -> Path:
        words = dict(word.split("=", 1) for word in _config(settings, *more))
        seen.update(config=words, sizes=yaml.safe_load(Path(words["sizes"]).read_text()))
        return tmp_path / "run"

    monkeypatch.setattr(verdict_command, "run_workflow", workflow)
    monkeypatch.setattr(verdict_command, "judge_run", lambda *given: seen.update(out=given[3]) or decide(table(0.8)))
    monkeypatch.setattr(verdict_command.card, "write", lambda *_: None)
    with pytest.raises(UserError, match=r"usable requests: 0 of 61.*--cleaner FILE.py:OBJECT"):
        run(VerdictSettings(log, "T"), tmp_path / "out")
    for wrong, message in {"clean": "--cleaner is clean .give FILE.py", "ours.py:no": "ours.py: no no in it"}.items():
        with pytest.raises(UserError, match=message):
            run(VerdictSettings(log, "T", cleaner=wrong), tmp_path / "out")
    ((folder, _),) = run(VerdictSettings(log, "T", cleaner="ours.py:clean", temperature=0.5), tmp_path / "out")
    assert folder.name.startswith("cleaner_ours.clean-")
    assert seen["out"] == {"nothing asked": 1}
    assert seen["sizes"]["data"] == {"cleaners": {"prompts": f"{tmp_path}/ours.py:clean"}}, (
        "whatever the folder of the run"
    )
    assert seen["sizes"]["experiments"]["traffic_verdict"] == {"axes": {"temperature": [0.5]}}


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("alpha", "helps"), [(0.8, True), (0.1, False)])
def test_the_commands_to_run_next_are_in_the_file_and_at_the_terminal(
    alpha: float, helps: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A server has no browser for the page."""
    log = answer_file(tmp_path, [f'{{"prompt": "{number}"}}' for number in range(60)])
    monkeypatch.setattr(verdict_command, "run_workflow", lambda *_: tmp_path / "run")
    monkeypatch.setattr(verdict_command, "judge_run", lambda *_: decide(table(alpha), log=str(log)))
    monkeypatch.setattr(verdict_command.card, "write", lambda *_: None)
    found = run(VerdictSettings(log, "T"), tmp_path / "out")
    written = json.loads((tmp_path / "out/verdict.json").read_text())["commands"]
    shown = (tmp_path / "out/verdict.html").read_text()
    assert all(html.escape(command, quote=False) in html.unescape(shown) for command in written)
    assert [line for line in lines(found) if line.startswith("Next: ")] == [f"Next: {each}" for each in written * helps]
    if helps:
        assert [command.split()[:2] for command in written] == [["draftlab", "emit"], ["draftlab", "monitor"]]


@pytest.mark.parametrize(
    ("rows", "more", "message"),
    [
        ([], {}, "usable requests: 0 of 0"),
        (["{broken"], {}, "usable requests: 0 of 1; 1 broken JSON"),
        (['{"prompt": "a"}'], {"load": "-4/s"}, "load is '-4/s'"),
        (['{"prompt": "a"}'], {"temperature": 1.5}, "temperature is 1.5"),
        (['{"prompt": "a"}'], {"top_p": 0.9, "top_k": 20}, "top_p, top_k at temperature 0"),
        (['{"prompt": "a"}'], {"hardware": "nope"}, "no profile 'nope'"),
        (['{"prompt": "a"}'], {"trace": True}, "all its requests come at once"),
    ],
)
def test_bad_input_is_one_clear_error(tmp_path: Path, rows: list[str], more: dict[str, object], message: str):
    if "trace" in more:
        more = {"trace": tmp_path / "trace.csv"}
        (tmp_path / "trace.csv").write_text("arrival_time,input_toks,output_toks\n1,8,8\n1,8,8\n")
    asked = VerdictSettings(traffic=answer_file(tmp_path, rows), target="no/such", **more)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=message):
        run(asked, tmp_path / "out")


def test_a_page_that_fails_leaves_the_verdict_before_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The two files in a folder are never of two verdicts."""
    log = answer_file(tmp_path, [f'{{"prompt": "{number}"}}' for number in range(60)])
    monkeypatch.setattr(verdict_command, "run_workflow", lambda *_: tmp_path / "run")
    monkeypatch.setattr(verdict_command, "judge_run", lambda *_: decide(table(0.8)))
    monkeypatch.setattr(verdict_command.card, "write", lambda *_: None)

    def broken(*_: object) -> str:
        raise ValueError("no page")

    monkeypatch.setattr(verdict_command, "page", broken)
    with pytest.raises(ValueError, match="no page"):
        run(VerdictSettings(log, "T"), tmp_path / "out")
    assert not (tmp_path / "out/verdict.json").exists()


@pytest.mark.parametrize("model", [{"target": "no/such/"}, {"draft": ("no/such/",)}])
def test_a_model_that_is_not_there_is_named_as_it_was_given(tmp_path: Path, model: dict[str, Any]):
    """A verdict has --target and --draft; the workflow behind it has --config, which nobody typed."""
    log = answer_file(tmp_path, [f'{{"prompt": "{number}"}}' for number in range(60)])
    settings = VerdictSettings(traffic=log, **{"target": "owner/name", "hardware": "h100-llama-2-7b"} | model)
    with pytest.raises(UserError, match=rf"^{next(iter(model))}: no such file or folder: no/such/ ") as error:
        run(settings, tmp_path / "out")
    assert "--config" not in str(error.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("hardware", "measured"), [("h100-llama-2-7b", False), (None, True)])
def test_costs_are_measured_only_where_no_profile_has_them(tmp_path: Path, hardware: str | None, measured: bool):
    """A released head could not be timed."""
    config = _config(VerdictSettings(Path("log.jsonl"), "T", hardware=hardware), "", "name", tmp_path)
    (experiments,) = (each for each in config if each.startswith("experiments="))
    assert ("traffic_cost" in experiments) is measured


def test_a_released_head_needs_the_costs_of_a_machine_that_runs_it(tmp_path: Path):
    write_json(tmp_path / "head/config.json", {"draft_vocab_size": 30, "vocab_size": 40})
    asked = VerdictSettings(answer_file(tmp_path, questions(70)), "T", (str(tmp_path / "head"),))
    with pytest.raises(UserError, match=r"head: a head on its target.s states .*give a machine's costs: --hardware"):
        run(asked, tmp_path / "out")


@pytest.mark.parametrize(
    ("more", "message"), [({"target": "no/such/folder"}, "no such file or folder"), ({"scale": "nope"}, "scale: ")]
)
def test_a_wrong_model_or_scale_is_one_clear_error(tmp_path: Path, more: dict[str, str], message: str):
    rows = questions(70)
    asked = VerdictSettings(answer_file(tmp_path, rows), **{"target": "package:smollm2-135m-instruct", **more})
    with pytest.raises(UserError, match=message):
        run(asked, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_two_verdicts_on_one_run_do_not_disturb_each_other(tmp_path: Path):
    with alone(tmp_path / "results/verdict-a"):
        with (
            pytest.raises(UserError, match="another verdict on it is under way"),
            alone(tmp_path / "results/verdict-a"),
        ):
            raise AssertionError
        with alone(tmp_path / "results/verdict-b"):
            pass
    with alone(tmp_path / "results/verdict-a"):
        pass


@pytest.mark.usefixtures("undrawn")
def test_conversations_and_prompts_that_the_target_cannot_read_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    rows = pd.concat(
        [
            table(0.8, 12, option="lookup").assign(split="train", prompt_tokens=40),
            table(0.8),
            table(0.8, option="lookup"),
        ]
    )
    cell, answers = tmp_path / "cells/traffic_verdict/prompts.0", tmp_path / "main/answers/prompts.eval"
    learnt = tmp_path / "main/answers/prompts.train"
    for folder in (cell, answers, learnt, tmp_path / "data/prompts", tmp_path / "main/models/target"):
        folder.mkdir(parents=True)
    rows.to_csv(cell / "rows.csv", index=False)
    weights = {"draft": 2_500_000, "target": 25_000_000}
    active = {"draft": 1_500_000, "target": 20_000_000}
    facts = {"parameters": weights, "active_parameters": active, "active_by_four_tokens": 36_000_000}
    write_json(cell / "run.json", {"runs": [FACTS | facts]})
    names = [f"{number}" for number in range(60)]
    asked, answer = ({"role": role, "content": "How many?"} for role in ("user", "assistant"))
    first = [{"role": "user", "content": f"{number}"} for number in range(30)] * 2
    talks = [[one] if number < 30 else [one, answer, asked] for number, one in enumerate(first)]
    prompts = [
        Prompt(
            name,
            "prompts",
            "eval",
            talk[-1]["content"],
            "x " * 500 if name in ("0", "2", "3") else None,
            conversation=talk,
        )
        for name, talk in zip(names, talks, strict=True)
    ]
    write_jsonl(tmp_path / "data/prompts/eval.jsonl", prompts)
    write_jsonl(answers / "answers.jsonl", [Answer(name, [1], [2] * 96, name >= "3") for name in names])
    steps = [[asked, *[answer, asked] * number] for number in range(12)]
    write_jsonl(
        tmp_path / "data/prompts/prompts.jsonl",
        [Prompt(f"t{n}", "prompts", "train", "How many?", conversation=talk) for n, talk in enumerate(steps)],
    )
    write_jsonl(learnt / "answers.jsonl", [Answer(f"t{n}", [1], [2], True) for n in range(12)])
    write_jsonl(answers / "rejected.jsonl", [Rejection("eval.jsonl", 61, "600 tokens", "60")])
    tokenizer = train_tokenizer(["x y"])
    tokenizer.save(tmp_path / "main/models/target")
    write_json(tmp_path / "main/models/target/config.json", {"eos_token_id": 0})
    write_json(tmp_path / "main/models/draft/config.json", {"pard_token": 3, "vocab_size": 40})
    judged, decide = [], verdict.decide
    monkeypatch.setattr(
        verdict, "decide", lambda rows, *more, **said: judged.append(rows) or decide(rows, *more, **said)
    )
    priced, profile = [], block_costs.from_profile
    monkeypatch.setattr(
        block_costs, "from_profile", lambda *given, **kind: priced.append((*given, kind)) or profile(*given, **kind)
    )
    write_text(tmp_path / "logs/log.jsonl", "a log")
    write_text(learnt / "distributions.safetensors", "12345")
    write_text(cell / "draft/model-00001-of-00002.safetensors", "123")
    write_text(cell / "draft/model-00002-of-00002.safetensors", "12")
    monkeypatch.chdir(tmp_path)
    settings = VerdictSettings(Path("logs/log.jsonl"), "models/T", hardware="rtx4090-llama-3.1-8b")
    found = judge_run(tmp_path, settings, "models/D", {"a broken line": 2}, None, None)
    assert found.left_out == {
        "a broken line": 2,
        "too long for the target, refused by its chat template, or without a token": 1,
    }
    assert verdict.lines(found)[-2] == (
        "Left out: 2 a broken line, 1 too long for the target, refused by its chat template, or without a token"
    )
    cut = sum(name < "3" for name in names)
    assert verdict.lines(found)[-1].endswith(f"; {cut} of 60 answers were cut at 96 tokens")
    assert (found.log, found.target, found.draft) == ("logs/log.jsonl", "models/T", "models/D")
    assert found.log_sha256 == hashlib.sha256(b"a log").hexdigest()
    assert [(o.recorded_bytes, o.sent_bytes) for o in found.options if o.name == "distilled"] == [(5, 5)]
    assert (found.requests, found.conversations) == (60, 30)
    assert "of which four tokens read up to 1.8 times as many weights as one: a profile of a dense model" in found.costs
    shown = page(found)
    assert "2.5 million weights (5.0 MB at two bytes each), the target 25.0 million" in shown
    assert "16 bytes for each weight of the draft (40 MB)" in shown
    held_out = judged[0][judged[0]["split"] == "eval"].drop_duplicates("request_id").sort_values("request_id")
    kind = {"is_head": False, "parallel": True, "longest": 8}
    assert priced == [("rtx4090-llama-3.1-8b", 20 + 90 / 2, 0.075, kind)], "halfway through the held-out answers"
    logged = len(tokenizer.encode("x " * 500))
    assert held_out["answer_tokens"].tolist()[:4] == [logged, 96, logged, 96], "only answers that were cut"
    (lookup,) = (option for option in found.options if option.name == "lookup")
    assert [part.verdict for part in lookup.thirds] == ["not yet known"] * 2, "the stream is one conversation"
