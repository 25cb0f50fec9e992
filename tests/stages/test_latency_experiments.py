"""The latency experiments: what their rows count, what follows from rows of known times, and the processes they start."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import pandas as pd
import pytest
from pydantic import ValidationError
from scipy.stats import t, ttest_1samp

from draftlab.core import theory
from draftlab.core.sampling_numpy import Sampling
from draftlab.engine.answers import Answer
from draftlab.errors import UserError
from draftlab.files.json_files import read_object, write_json, write_jsonl
from draftlab.latency.comparison import compare
from draftlab.latency.controlled import decode_scheduled, plain_steps
from draftlab.latency.cost import SETTLED, around_calls, calibrate, cost_model
from draftlab.latency.drafters import Drafter
from draftlab.latency.lookup import SURE, LookupBackend
from draftlab.latency.loop import RequestPair, fixed, resume, speculate
from draftlab.latency.pair import open_pair
from draftlab.latency.self_check import write_toy
from draftlab.latency.settings import Engine
from draftlab.latency.trainer import Trainer, training
from draftlab.models import load_model
from draftlab.models.backend import EngineOptions, LatencyBackend
from draftlab.models.cores import can_pin, pinned, usable
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.parallel_draft import ParallelDraft
from draftlab.stages import (
    _contenders,
    _costs,
    latency_alpha,
    latency_branches,
    latency_cost,
    latency_interference,
    latency_length,
    latency_null,
    latency_requests,
)
from draftlab.stages._inputs import Target, TargetAndDraft
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench

BENCH = Bench(Path())


class Clockwork:
    """A backend whose work takes exactly known times: ``step`` seconds a call, ``token`` more for each token after the
    first, ``depth`` more for each cached token. Its next token is the last one plus ``stride``."""

    vocabulary: dict[str, str] = {}  # noqa: RUF012
    decoder_start: int | None = None

    def __init__(
        self, hands: list[float], step: float, token: float = 0.0, depth: float = 0.0, stride: int = 1
    ) -> None:
        self.hands, self.step, self.token, self.depth, self.stride = hands, step, token, depth, stride
        self.vocab_size, self.context_length = 64, 4096
        self.tokens: list[int] = []
        self.ends: set[int] = set()
        self.filled = (0, 0)
        self.change, self.size = 0.0, 0  # what a probe costs more whose number of tokens differs from the one before

    def greedy(self, tokens: Sequence[int]) -> np.ndarray:
        self.hands[0] += self.step + self.token * (len(tokens) - 1) + self.depth * len(self.tokens)
        self.tokens.extend(tokens)
        return (np.array(tokens) + self.stride) % self.vocab_size

    def guess(self, tokens: Sequence[int], min_prob: float = 0.0) -> int | None:
        return int(self.greedy(tokens)[-1])

    def extend(self, tokens: Sequence[int]) -> np.ndarray:
        raise NotImplementedError

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        self.tokens.extend(tokens)
        return np.zeros(self.vocab_size)

    def trim(self, length: int) -> None:
        del self.tokens[length:]

    def fill(self, sequences: int, context: int) -> None:
        self.filled = (sequences, context)

    def probe(self, tokens: int) -> None:
        sequences, context = self.filled
        self.hands[0] += self.step + self.token * (sequences * tokens - 1) + self.depth * sequences * context
        self.hands[0] += self.change * (tokens != self.size)
        self.size = tokens

    def clock(self) -> Callable[[], float]:
        return lambda: self.hands[0]

    def describe(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


class Cycle(Clockwork):
    """Its tokens go round in 8, so that prompt lookup finds them again, and reading a prompt again takes no time."""

    def greedy(self, tokens: Sequence[int]) -> np.ndarray:
        return super().greedy(tokens) % 8

    def extend(self, tokens: Sequence[int]) -> np.ndarray:
        return np.eye(self.vocab_size, dtype=np.float32)[self.greedy(tokens)]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    write_toy(folder / "target", num_hidden_layers=2, vocab_size=64)
    write_toy(folder / "draft", vocab_size=64, seed=1)
    return {name: folder / name for name in ("target", "draft")}


@pytest.fixture(scope="module")
def gguf(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target as a GGUF file."""
    path = tmp_path_factory.mktemp("gguf") / "target.gguf"
    export(models["target"], path, vocabulary=False)
    return path


# --- cost model --------------------------------------------------------------------------------------------------


def test_calibration_recovers_known_costs() -> None:
    hands = [0.0]
    target, draft = Clockwork(hands, 0.010, token=0.001, depth=1e-5), Clockwork(hands, 0.001)
    rows = calibrate(target, draft, [100, 300], [1, 4], [2, 6], blocks=3)
    assert len(rows) == 2 * 2 * 2 * 3
    for (context, batch), cell in rows.groupby(["context", "batch"]):
        plain = 0.010 + 0.001 * (batch - 1) + 1e-5 * context * batch
        model = cost_model(cell)
        assert model.cost_ratio == pytest.approx(0.001 / plain)
        assert model.verify_ratios == pytest.approx({n: 1 + 0.001 * batch * (n - 1) / plain for n in (2, 6)})


def test_a_cost_is_the_median_over_plain_steps_before_and_after() -> None:
    rows = pd.DataFrame({"verified": [2, 2, 2, 6, 6, 6], "verify_seconds": [2.0, 4.0, 90.0, 6.0, 8.0, 9.0]})
    rows = rows.assign(draft_seconds=[0.2, 0.2, 0.4, 0.4, 0.4, 9.0], plain_before_seconds=1.0, plain_after_seconds=3.0)
    model = cost_model(rows)
    assert (model.cost_ratio, model.verify_ratios) == (0.2, {2: 2.0, 6: 4.0})
    assert model.by_draft_len == {1: 2.0, 5: 4.0}, "one token more is verified than drafted"
    assert [model.verify(tokens) for tokens in (1, 4, 6)] == [1.0, 3.0, 4.0]


def test_calibration_measures_what_another_size_costs() -> None:
    hands = [0.0]
    target, draft = Clockwork(hands, 0.010, token=0.001), Clockwork(hands, 0.001, token=0.0005)
    target.change, draft.change = 0.002, 0.0004
    rows = calibrate(target, draft, [100], [1], [2, 6], blocks=3)
    plain, verified = 0.010, 0.010 + 0.001 * (rows["verified"] - 1)
    np.testing.assert_allclose(rows["plain_before_seconds"], plain)
    np.testing.assert_allclose(rows["verify_seconds"], verified)
    ratios = [(0.010 + 0.001 * (tokens - 1) + 2 * 0.002) / plain for tokens in (2, 6)]
    assert list(cost_model(rows, in_turns=True).verify_ratios.values()) == pytest.approx(ratios), "both changes count"
    assert list(cost_model(rows).verify_ratios.values()) == pytest.approx([1.1, 1.5])
    np.testing.assert_allclose(rows["turns_seconds"], plain + verified + 2 * 0.002)
    # A block of one token: the draft reads two tokens each time. Of five: it reads two, then one, four times.
    np.testing.assert_allclose(rows["draft_seconds"], 0.001)
    of_five = (0.0015 + 0.001 * 4 + 2 * 0.0004) / 5
    np.testing.assert_allclose(rows["caught_up_seconds"], rows["verified"].map({2: 0.0015, 6: of_five}))


def test_a_parallel_draft_is_timed_in_one_call_of_a_block() -> None:
    hands = [0.0]
    draft = Clockwork(hands, 0.001, token=0.0002)
    rows = calibrate(Clockwork(hands, 0.010), draft, [100], [1, 4], [2, 6], blocks=3, parallel=True)
    for (batch, verified), cell in rows.groupby(["batch", "verified"]):
        drafted = verified - 1
        call = 0.001 + 0.0002 * (batch * drafted - 1)
        np.testing.assert_allclose(cell["draft_seconds"], call / drafted)
        if batch == 1:
            np.testing.assert_allclose(cell["caught_up_seconds"], (call + 0.0002) / drafted)


class Warming(Clockwork):
    """After a call of another size, a few probes of one token take twice as long: the caches hold something else."""

    cold = 0

    def probe(self, tokens: int) -> None:
        self.cold = SETTLED if tokens > 1 else max(self.cold - 1, 0)
        self.hands[0] += self.step * (self.cold > 0)
        super().probe(tokens)


def test_plain_steps_are_timed_when_they_have_settled() -> None:
    hands = [0.0]
    rows = calibrate(Warming(hands, 0.010), Clockwork(hands, 0.001), [100], [1, 4], [2, 6], blocks=2)
    np.testing.assert_allclose(rows["plain_before_seconds"], 0.010)
    np.testing.assert_allclose(rows["plain_after_seconds"], 0.010)


class Building(Clockwork):
    """The first two calls of another size take 5 ms more: the engine runs step by step, then records a graph."""

    calls = 0

    def _build(self, tokens: int) -> None:
        self.calls = self.calls + 1 if tokens == self.size else 1
        self.hands[0] += 0.005 * (self.calls <= 2)
        self.size = tokens

    def greedy(self, tokens: Sequence[int]) -> np.ndarray:
        self._build(len(tokens))
        return super().greedy(tokens)

    def probe(self, tokens: int) -> None:
        self._build(tokens)
        super().probe(tokens)


def test_a_graph_is_built_before_the_clock_starts() -> None:
    hands, text = [0.0], list(range(1, 40))
    target, draft = Building(hands, 0.010), Clockwork(hands, 0.001)
    target.greedy(text[:6])
    assert plain_steps(target, text, 4, 4) == pytest.approx(4 * 0.010)
    resume(draft, text[:3])
    resume(target, text[:3])
    run = decode_scheduled(target, draft, text, 4, [3], 3)
    assert run.verify_seconds == pytest.approx(0.010)
    rows = calibrate(Building(hands, 0.010), Building(hands, 0.001), [100], [1], [2, 6], blocks=2)
    for name, seconds in {"plain_before_seconds": 0.010, "verify_seconds": 0.010, "draft_seconds": 0.001}.items():
        np.testing.assert_allclose(rows[name], seconds)
    text = list(range(latency_alpha.PROMPT + 40))
    for plan, draft_len in (([2, 2, 1], 3), ([1, 1, 1], 1)):  # in the second, the draft reads two tokens at a time
        block = latency_alpha.measure_block(Building(hands, 0.010), Building(hands, 0.001), text, plan, draft_len)
        assert block["verify_probe_seconds"] == pytest.approx(2 * 0.010)
        assert block["draft_probe_seconds"] == pytest.approx(6 * 0.001)


class Slowing(Clockwork):
    """Every probe takes longer than the one before."""

    def probe(self, tokens: int) -> None:
        self.step += 1e-5
        super().probe(tokens)


def test_plain_steps_after_a_probe_are_those_before_the_next() -> None:
    hands = [0.0]
    rows = calibrate(Slowing(hands, 0.010), Clockwork(hands, 0.001), [100], [1], [2, 6], blocks=3)
    before, after = rows["plain_before_seconds"].to_numpy(), rows["plain_after_seconds"].to_numpy()
    np.testing.assert_array_equal(after[:-1], before[1:])
    assert (after > before).all()


def test_the_time_around_calls_is_the_loop_and_the_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    hands, settle, guess = [0.0], RequestPair.settle, LookupBackend.guess

    def slow_settle(*args: Any) -> None:
        hands[0] += 0.003
        settle(*args)

    def slow_guess(*args: Any) -> int | None:
        hands[0] += 0.002
        return guess(*args)

    monkeypatch.setattr(RequestPair, "settle", slow_settle)
    monkeypatch.setattr(LookupBackend, "guess", slow_guess)
    found = around_calls(Cycle(hands, 0.010, token=0.001), 32)
    assert found == pytest.approx({"loop_seconds": 0.003, "lookup_seconds": 0.002})


def test_cost_experiment_in_llama_cpp(models: dict[str, Path]) -> None:
    settings = latency_cost.Settings(context=[8, 24], batch=[1, 3], verified=[2, 5], blocks=2)
    rows, run = latency_cost.run(settings, TargetAndDraft(**models), BENCH)
    assert len(rows) == 16
    times = rows.filter(like="seconds")
    assert (times[rows["batch"] == 1] > 0).all(axis=None)
    only_alone = ["caught_up_seconds", "turns_seconds"]
    assert (times[rows["batch"] == 3].drop(columns=only_alone) > 0).all(axis=None)
    assert times[rows["batch"] == 3][only_alone].isna().all(axis=None)
    assert run["target"]["sequences"] == 3
    with pytest.raises(ValidationError, match="greater than or equal to 2"):
        latency_cost.Settings(context=[8], batch=[1], verified=[1, 2], blocks=2)


def test_a_draft_with_a_mask_is_timed_as_it_proposes(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one call of a block: four tokens, or five if it has to catch up."""
    shutil.copytree(models["draft"], tmp_path / "draft")
    config = read_object(tmp_path / "draft/config.json") | {"pard_token": 3}
    write_json(tmp_path / "draft/config.json", config)
    read, probe = list[int](), LlamaCpp.probe
    monkeypatch.setattr(LlamaCpp, "probe", lambda self, tokens: read.append(tokens) or probe(self, tokens))
    settings = latency_cost.Settings(context=[8], batch=[1], verified=[5], blocks=1)
    for draft, sizes in ((models["draft"], {1, 2, 5}), (tmp_path / "draft", {1, 4, 5})):
        read.clear()
        latency_cost.run(settings, TargetAndDraft(target=models["target"], draft=draft), BENCH)
        assert set(read) == sizes


def test_probes_leave_no_trace(gguf: Path) -> None:
    with LlamaCpp(gguf, EngineOptions(context_length=64, sequences=3)) as model:
        expected = model.extend([1, 5, 9]).copy()
        model.fill(3, 20)
        for _ in range(30):
            model.probe(4)
        model.trim(0)
        np.testing.assert_array_equal(model.extend([1, 5, 9]), expected)


def test_a_batch_too_large_is_refused(gguf: Path) -> None:
    """llama.cpp aborts the process on more tokens than n_batch."""
    with LlamaCpp(gguf, EngineOptions(context_length=600)) as model:
        model.prefill([1] * 600)  # in parts
        model.trim(0)
        with pytest.raises(UserError, match="600 tokens in one call"):
            model.extend([1] * 600)


def test_buffers_do_not_depend_on_the_length_that_was_asked_for(gguf: Path) -> None:
    """A short context would lower n_batch, and with it the time of a step: 104 and 112 tokens must be one measurement."""
    with (
        LlamaCpp(gguf, EngineOptions(context_length=104)) as one,
        LlamaCpp(gguf, EngineOptions(context_length=112)) as other,
    ):
        rooms = [lib.llama_n_batch(model._context) for model in (one, other)]
        assert rooms[0] == rooms[1] >= 256


def test_an_impossible_cache_is_refused(gguf: Path) -> None:
    with pytest.raises(UserError, match="cannot open a context"):
        LlamaCpp(gguf, EngineOptions(sequences=1000))


# --- length ------------------------------------------------------------------------------------------------------


def test_length_adds_up_the_cost_of_segments() -> None:
    settings = latency_length.Settings(alpha=[0.8], length=[16, 64, 256], prefix=100, draft_len=3, blocks=2, rounds=25)
    hands = [0.0]
    rows = latency_length.measure(Clockwork(hands, 0.010, depth=1e-4), Clockwork(hands, 0.001), settings)
    found = latency_length.derive(rows[::-1])  # whatever the order of the rows
    assert list(found["length"].unique()) == [16, 64, 256]
    for length, group in found.groupby("length"):
        np.testing.assert_allclose(group["plain"], length * (0.010 + 1e-4 * (100 + length / 2)), rtol=0.02)
    assert found["speedup"].between(theory.speedup(0.8, 3, 0.06), theory.speedup(0.8, 3, 0.02)).all()
    expected = theory.expected_block_length(0.8, 3)
    speculative = found[found["length"] == 16]["speculative"]
    np.testing.assert_allclose(speculative, 16 / expected * (0.003 + 0.010 + 1e-4 * 110), rtol=0.1)


def test_length_experiment_in_llama_cpp(models: dict[str, Path]) -> None:
    settings = latency_length.Settings(alpha=[0.5, 0.9], length=[8, 32], prefix=16, draft_len=2, blocks=2, rounds=3)
    rows, _ = latency_length.run(settings, TargetAndDraft(**models), BENCH)
    assert len(rows) == 8
    assert (latency_length.derive(rows)["speedup"] > 0).all()


def test_an_acceptance_that_is_given_twice_counts_once(models: dict[str, Path]) -> None:
    settings = latency_length.Settings(alpha=[0.5, 0.5], length=[8, 32], prefix=16, draft_len=2, blocks=1, rounds=2)
    rows, _ = latency_length.run(settings, TargetAndDraft(**models), BENCH)
    assert rows["end"].tolist() == [8, 32]


def test_an_infinite_temperature_is_refused() -> None:
    with pytest.raises(ValueError, match="temperature"):
        served(temperature=float("inf"))
    for filters in ({"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}):
        with pytest.raises(ValueError, match="for temperatures above 0"):
            served(**filters)
        assert served(temperature=1, **filters).sampling(1.0) == Sampling(1.0, **filters)


# --- requests ----------------------------------------------------------------------------------------------------


def served(**changes: Any) -> latency_requests.Settings:
    """Two requests of a dataset, in blocks of three drafted tokens."""
    settings = {"dataset": "toy", "draft_len": 3, "requests": 2, "max_new_tokens": 12} | changes
    return latency_requests.Settings.model_validate(settings)


def answers_of(*lengths: int) -> list[Answer]:
    """Answers of these lengths to requests that differ in their last token."""
    return [Answer(str(i), [1, 5, 9 + i], [0] * length, False) for i, length in enumerate(lengths)]


def recorded(
    models: dict[str, Path], folder: Path, answers: Sequence[Answer], **drafts: Path
) -> latency_requests.Inputs:
    """The pair, perhaps with more drafts, and these recorded answers."""
    write_jsonl(folder / "answers.jsonl", answers)
    named = {"draft": models["draft"]} | drafts
    return latency_requests.Inputs(target=models["target"], drafts=named, answers=folder / "answers.jsonl")


def in_sequences(draft: LatencyBackend, length: int, min_prob: float = 0.0) -> Drafter:
    return Drafter(draft, functools.partial(speculate, draft_len=fixed(length), min_prob=min_prob))


def test_requests_of_known_cost(capsys: pytest.CaptureFixture[str]) -> None:
    hands = [0.0]
    target = Clockwork(hands, 0.010)
    contenders = {
        "good": in_sequences(Clockwork(hands, 0.001), 4),
        "bad": in_sequences(Clockwork(hands, 0.001, stride=2), 4),
    }
    requests = [Answer(str(i), [1, 2, 3 + i], [0] * length, False) for i, length in enumerate([10, 20, 5, 30])]
    settings = served(draft_len=4, requests=4, max_new_tokens=20)
    rows = latency_requests.measure(target, contenders, requests, settings)
    assert len(rows) == 4 * 4
    assert rows["same_text"].all()
    assert set(rows[rows["contender"] == "good"]["tokens"]) == {10, 20, 5}, "as long as the answers, cut at the limit"
    good = rows[rows["contender"] == "good"]
    assert (good["accepted"] == good["drafted"]).all()
    assert (rows[rows["contender"] == "bad"]["accepted"] == 0).all()
    seconds = rows.groupby("contender")["seconds"].sum()
    assert seconds["none"] / seconds["good"] == pytest.approx(55 / 11 / (1 + 4 * 0.1))
    assert seconds["none"] / seconds["bad"] == pytest.approx(1 / 1.4)
    assert seconds["none"] == pytest.approx(55 * 0.010)
    assert seconds["none_again"] == pytest.approx(seconds["none"])
    assert "toy requests: 5 of 5" in capsys.readouterr().err, "and one that warms up"


def test_times_of_requests_are_predicted_from_probed_costs(tmp_path: Path) -> None:
    """Probes of known costs predict the time of every contender exactly, lookup's blocks of any length among them."""
    hands = [0.0]
    target, draft, released = Cycle(hands, 0.010, token=0.001), Cycle(hands, 0.001), Cycle(hands, 0.004, stride=2)
    verified = [2, 4]  # v(3) lies between
    probes = {
        name: calibrate(target, own, [8], [1], verified, 2)
        for name, own in [("distilled", draft), ("released", released)]
    }
    tables = [rows.assign(draft=name) for name, rows in probes.items()]
    tables += [rows.assign(batch=4, draft_seconds=1.0) for rows in tables]  # requests come one at a time
    pd.concat(tables).to_csv(tmp_path / "costs.csv", index=False)
    costs = _costs.read_costs(tmp_path / "costs.csv", 20)
    assert costs["released"].cost_ratio == pytest.approx(0.4)
    contenders = {
        "distilled": in_sequences(draft, 3),
        "released": in_sequences(released, 3),
        "lookup": in_sequences(LookupBackend(target), 3, SURE),
        "lookup_first_distilled": in_sequences(LookupBackend(draft, joined=True), 3),
        "lookup_first": in_sequences(LookupBackend(released, joined=True), 3),
    }
    requests = [Answer(str(i), [1, 2, 3 + i], [0] * 40, False) for i in range(2)]
    settings = served(max_new_tokens=40)
    rows = latency_requests.measure(target, contenders, requests, settings, costs)
    np.testing.assert_allclose(rows["predicted_steps"] * 0.010, rows["seconds"])
    drafted, steps = (rows.groupby("contender")[name].sum() for name in ("drafted", "steps"))
    assert drafted["released"] == steps["released"] > steps["lookup_first"] > 0 == steps["lookup"] < drafted["lookup"]
    assert _costs.read_costs(tmp_path / "costs.csv", 20, verified=4) == costs
    with pytest.raises(UserError, match="costs of verifying up to 4 tokens, but the target verifies up to 5"):
        _costs.read_costs(tmp_path / "costs.csv", 20, verified=5)
    pd.concat(probes).to_csv(tmp_path / "costs.csv", index=False)
    with pytest.raises(UserError, match="no costs of the distilled draft"):
        _costs.read_costs(tmp_path / "costs.csv", 20)
    pd.concat(tables).to_csv(tmp_path / "costs.csv", index=False)
    with pytest.raises(UserError, match="no costs of the small draft"):  # those of the distilled one are not its costs
        _costs.read_costs(tmp_path / "costs.csv", 20, ["before", "small", "released"])
    pd.concat(tables[2:]).to_csv(tmp_path / "costs.csv", index=False)
    with pytest.raises(UserError, match="no costs of the distilled draft"):  # only of batches of four requests
        _costs.read_costs(tmp_path / "costs.csv", 20)
    other = tables[2].assign(context=20)
    pd.concat([*tables[:2], other]).to_csv(tmp_path / "costs.csv", index=False)
    assert _costs.read_costs(tmp_path / "costs.csv", 20) == costs, "the nearest context of single requests"


def test_drafts_of_a_pair_are_served_by_name() -> None:
    places = Places(Path("run"), {})
    settings = served(contenders=["released", "before", "distilled"], priced_by="costs")
    found = latency_requests.Inputs.locate([settings], places)
    assert found.drafts == {
        "released": Path("run/main/models/released"),
        "before": Path("run/main/models/draft"),
        "distilled": Path("run/cells/osd_offline/toy/draft"),
    }
    assert found.reads([])["tables"] == [Path("run/costs.csv")]
    priced = latency_cost.Settings(role="released", context=[8], batch=[1], verified=[2], blocks=1)
    assert latency_cost.STAGE.inputs.locate([priced], places).draft == Path("run/main/models/released")


def test_request_experiment_in_llama_cpp(models: dict[str, Path], tmp_path: Path) -> None:
    inputs = recorded(models, tmp_path, answers_of(12, 12, 12), itself=models["target"])
    settings = served(adaptive=True)
    rows, run = latency_requests.run(settings, inputs, BENCH)
    names = {"none", "draft", "draft_adaptive", "itself", "itself_adaptive", "lookup", "lookup_first", "none_again"}
    names |= {"lookup_first_draft"}
    assert set(rows["contender"]) == names
    assert len(rows) == 2 * len(names)
    assert rows["same_text"].all()
    assert (rows[rows["contender"] == "itself"]["accepted"] == 9).all()
    assert len(run["drafts"]) == 2
    write_jsonl(tmp_path / "none.jsonl", [])
    with pytest.raises(UserError, match="no requests"):
        latency_requests.run(settings, inputs.model_copy(update={"answers": tmp_path / "none.jsonl"}), BENCH)


@pytest.mark.parametrize("changes", [{"cost_aware": 192}, {"backend": "torch", "draft_len": 20, "probe_every": 1}])
def test_caches_hold_the_longest_call_after_short_requests(
    changes: dict[str, Any], models: dict[str, Path], tmp_path: Path
) -> None:
    """Costs are probed at a longer context than that of these requests."""
    inputs = recorded(models, tmp_path, [Answer("0", [1, 5, 9], [0] * 4, False)])
    rows, run = latency_requests.run(served(requests=1, max_new_tokens=4, **changes), inputs, BENCH)
    assert rows["same_text"].all()
    assert run["prices" if "cost_aware" in changes else "probes"]


def test_a_draft_with_a_mask_also_proposes_blocks_in_one_call(models: dict[str, Path], tmp_path: Path) -> None:
    draft = ParallelDraft(load_model(models["draft"]), 3)
    draft.token = 7
    draft.save(tmp_path / "masked")
    inputs = recorded(models, tmp_path, answers_of(12, 12, 12), masked=tmp_path / "masked")
    rows, _ = latency_requests.run(served(confidence=1e-9), inputs, BENCH)
    assert rows["same_text"].all()
    parallel = {name for name in set(rows["contender"]) if "parallel" in name}
    assert parallel == {"masked_parallel", "masked_parallel_confident"}
    for name in parallel:
        blocks = rows[rows["contender"] == name]
        assert (blocks["steps"] == blocks["blocks"]).all(), "one call of the draft for a block"
        assert (blocks["drafted"] == 3 * blocks["blocks"]).all()
    with pytest.raises(UserError, match="a draft is named 'mine_parallel'"):
        _contenders.check_names(["mine", "mine_parallel"], served(), ["mine"])
    _contenders.check_names(["mine", "mine_parallel"], served(), [])


def test_a_cell_serves_requests_from_any_number_on(models: dict[str, Path], tmp_path: Path) -> None:
    inputs = recorded(models, tmp_path, answers_of(12, 9, 7, 5))
    settings = served(draft_len=2, first=1)
    rows, _ = latency_requests.run(settings, inputs, BENCH)
    assert rows.groupby("request_id")["tokens"].unique().map(list).to_dict() == {1: [9], 2: [7]}
    settings = settings.model_copy(update={"requests": 3, "probe_every": 2})
    again, run = latency_requests.run(settings, inputs, BENCH)
    assert again["same_text"].all()
    probes = pd.DataFrame(run["probes"])
    assert set(zip(probes["block"], probes["verified"], strict=True)) == {(b, n) for b in (1, 3) for n in (2, 3)}
    assert (probes.filter(like="seconds") > 0).all(axis=None)
    with pytest.raises(UserError, match="no requests from number 4 on"):
        latency_requests.run(settings.model_copy(update={"first": 4}), inputs, BENCH)


def test_lookup_is_always_sure_and_the_draft_after_it_is_not(models: dict[str, Path], tmp_path: Path) -> None:
    again = [1, 5, 9, 7, 11, 3] * 4
    inputs = recorded(models, tmp_path, [Answer(str(i), [*again, i], [0] * 16, False) for i in range(3)])
    settings = served(requests=3, max_new_tokens=16, confidence=0.999)
    rows, _ = latency_requests.run(settings, inputs, BENCH)
    sums = rows.groupby("contender")[["drafted", "accepted", "blocks", "steps"]].sum()
    # The draft is never that sure, so what is drafted was found by lookup alone; each block asks the draft at most once.
    assert sums.loc["lookup_first_confident", "drafted"] == sums.loc["lookup", "drafted"] > 0
    assert sums.loc["lookup_first_confident", "blocks"] == sums.loc["lookup", "blocks"]
    assert 0 < sums.loc["lookup_first_confident", "steps"] <= sums.loc["lookup_first_confident", "blocks"]
    assert rows["same_text"].all()


def test_a_speedup_is_over_plain_decoding_with_the_same_weights() -> None:
    times = {"f16": [9.0, 5.0, 11.0], "q4_0": [3.0, 8.0, 5.0]}
    measured = {"contender": ["none", "distilled", "none_again"], "tokens": 20, "blocks": [0, 5, 0]}
    tables = [pd.DataFrame(measured).assign(weights=name, seconds=seconds) for name, seconds in times.items()]
    rows = pd.concat(tables, ignore_index=True).assign(request_id=0, dataset="toy", draft_len=3)
    found = latency_requests.derive(rows).set_index(["contender", "weights"])
    gain = (found["plain_seconds"] / found["seconds"]).unstack()
    assert gain.loc["distilled"].to_dict() == {"f16": 2.0, "q4_0": 0.5}, "over the mean of both measurements"
    calls = found["plain_calls"].unstack()
    assert calls.loc["distilled"].to_dict() == {"f16": 2.5, "q4_0": 1.0}, "5 of 20 plain steps"
    assert not calls.loc["none"].any()
    assert gain.loc["none"].to_dict() == {"f16": 1.0, "q4_0": 1.0}
    assert gain.loc["none_again"].to_dict() == {"f16": 9 / 11, "q4_0": 3 / 5}, "the two are compared with each other"


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_block_ends_where_the_draft_is_unsure(models: dict[str, Path], tmp_path: Path, temperature: float) -> None:
    inputs = recorded(models, tmp_path, answers_of(24, 24, 24))
    write_jsonl(tmp_path / "stream.jsonl", [Answer("s", [1], [5, 9, 3, 5, 9, 4, 5, 10, 3, 5, 11, 4], False)])
    inputs = inputs.model_copy(update={"remembered": tmp_path / "stream.jsonl"})

    def rows_of(confidence: float, suffix_confidence: float) -> pd.DataFrame:
        how = {"confidence": confidence, "temperature": temperature, "suffixes": True}
        how |= {"suffix_confidence": suffix_confidence}
        settings = served(draft_len=4, requests=3, max_new_tokens=24, **how)
        rows, _ = latency_requests.run(settings, inputs, BENCH)
        return rows.set_index("contender")

    never, always = rows_of(0.999, 1e-6), rows_of(1e-6, 0.999)
    assert {"draft", "draft_confident", "lookup", "lookup_first", "lookup_first_confident"} < set(never.index)
    unsure = never.loc["draft_confident"]
    assert (unsure["drafted"] == 0).all()
    assert (unsure["blocks"] == unsure["tokens"]).all()
    assert (unsure["steps"] == unsure["blocks"]).all()  # the draft was asked before every token
    assert always.loc["draft_confident", "drafted"].tolist() == always.loc["draft", "drafted"].tolist()
    assert always.loc["draft_confident", "steps"].tolist() == always.loc["draft", "steps"].tolist()
    assert {"suffix", "suffix_confident", "suffix_first_confident"} < set(never.index)
    found, sure = (rows.groupby("contender")["drafted"].sum() for rows in (never, always))
    assert found["suffix_confident"] == found["suffix"] > 0
    assert sure["suffix_confident"] < sure["suffix"]
    with pytest.raises(ValueError, match="suffix_confidence is for suffix decoding"):
        served(suffix_confidence=0.5)
    assert temperature or never["same_text"].all()


@pytest.mark.parametrize("filters", [{}, {"top_k": 1}])
def test_sampled_requests_in_llama_cpp(models: dict[str, Path], tmp_path: Path, filters: dict[str, float]) -> None:
    inputs = recorded(models, tmp_path, answers_of(40, 40, 40), itself=models["target"])
    settings = served(requests=3, max_new_tokens=40, temperature=1, **filters)
    rows, _ = latency_requests.run(settings, inputs, BENCH)
    assert set(rows["temperature"]) == {1.0}
    found = rows.set_index(["contender", "request_id"])["same_text"].groupby("contender").mean()
    assert found["none"] == found["none_again"] == 1  # the same seed
    assert (found["draft"] == 1) == bool(filters)  # sampled, in another way, unless one token alone is left
    sums = rows.groupby("contender")[["accepted", "visited"]].sum()
    assert (
        sums.loc["itself", "accepted"] == sums.loc["itself", "visited"]
    )  # a draft with the target's distribution loses nothing
    least = 0 if filters else 1  # this draft's most probable tokens are others
    assert least <= sums.loc["draft", "accepted"] < sums.loc["draft", "visited"]


@pytest.mark.parametrize("temperature", [0, 1])
def test_trees_are_served_beside_sequences(models: dict[str, Path], tmp_path: Path, temperature: float) -> None:
    inputs = recorded(models, tmp_path, answers_of(24, 24, 24), itself=models["target"])
    trees = {"trees": [4, 8], "tree_depth": 3, "tree_width": 2}
    settings = served(requests=3, max_new_tokens=24, temperature=temperature, **trees)
    rows, _ = latency_requests.run(settings, inputs, BENCH)
    is_tree = rows["contender"].str.contains("_tree")
    assert {"draft_tree4", "draft_tree8", "itself_tree4", "itself_tree8"} == set(rows[is_tree]["contender"])
    assert rows[is_tree]["same_text"].all(), "with the same random numbers, also when sampled"
    sums = rows.groupby("contender")[["drafted", "visited", "accepted", "blocks", "steps", "tokens"]].sum()
    for nodes in (4, 8):
        for draft in ("draft", "itself"):
            assert sums.loc[f"{draft}_tree{nodes}", "drafted"] == nodes * sums.loc[f"{draft}_tree{nodes}", "blocks"]
        good = sums.loc[f"itself_tree{nodes}"]
        assert good["blocks"] < sums.loc[f"draft_tree{nodes}", "blocks"] <= good["tokens"]
        assert good["blocks"] < good["steps"] <= 3 * good["blocks"]
        assert 0 < good["accepted"] <= good["visited"] < good["drafted"]
    priced, run = latency_requests.run(settings.model_copy(update={"cost_aware": 6}), inputs, BENCH)
    assert run["prices"].keys() == {"draft", "itself"}
    for price in run["prices"].values():
        assert price["verify_ratios"].keys() == {2, 3, 4, 5, 6, 7}
        assert price["cost_ratio"] > 0
    drafted = priced.groupby("contender")[["drafted", "blocks"]].sum().loc["draft_cost_aware"]
    assert drafted["drafted"] <= 6 * drafted["blocks"]
    is_priced = priced["contender"].str.endswith("_cost_aware")
    names = ["draft_cost_aware", "itself_cost_aware", "lookup_first_cost_aware", "lookup_first_draft_cost_aware"]
    assert sorted(set(priced[is_priced]["contender"])) == names
    assert priced[is_priced]["same_text"].all()
    unsure = settings.model_copy(update={"tree_confidence": 0.999})
    never, _ = latency_requests.run(unsure, inputs, BENCH)
    never = never[never["contender"] == "draft_tree4"]
    assert (never["drafted"] == 0).all()
    assert (never["steps"] == never["blocks"]).all()  # the draft was asked before every token


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trees": [4], "backend": "torch"}, "for backend llama_cpp"),
        ({"cost_aware": 4, "backend": "torch"}, "for backend llama_cpp"),
        ({"trees": [4], "priced_by": "beyond_released_cost"}, "no predicted times"),
        ({"trees": [4], "tree_width": 64}, "a tree of 384 tokens: llama.cpp can follow fewer than 256"),
        ({"trees": [256]}, "a tree of 256 tokens"),
        ({"cost_aware": 256}, "a tree of 256 tokens"),
    ],
)
def test_trees_that_cannot_be_served_are_refused_at_once(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        served(**change)
    assert served(trees=[255]).trees == [255]
    assert served(tree_width=64).shapes == {}, "nothing is drafted in trees"


def test_counts_depend_on_measured_times_only_where_a_contender_follows_them() -> None:
    stage = latency_requests.STAGE
    for changes, timed in [({"trees": [4]}, False), ({"adaptive": True}, True), ({"cost_aware": 4}, True)]:
        assert stage.is_timed("drafted", served(**changes).model_dump()) is timed


@pytest.mark.parametrize(
    "names",
    [
        ["none"],
        ["lookup"],
        ["suffix_confident"],
        ["lookup_first_confident"],
        ["mine", "mine_adaptive"],
        ["mine", "mine_confident"],
        ["mine", "mine_tree4"],
        ["mine", "mine_cost_aware"],
    ],
)
def test_a_draft_is_not_named_as_a_contender_of_its_own(names: list[str]) -> None:
    settings = served(adaptive=True, confidence=0.5, trees=[4], cost_aware=4)
    with pytest.raises(UserError, match=f"a draft is named '{names[-1]}'"):
        _contenders.check_names(names, settings, [])
    _contenders.check_names(["mine", "mine_adaptive", "mine_cost_aware"], served(), [])


# --- branches ----------------------------------------------------------------------------------------------------


def test_branches_share_only_the_known_token() -> None:
    tokens, parents = latency_branches.side_by_side(10, [[3, 4], [7, 8]])
    assert (tokens, parents) == ([10, 3, 4, 7, 8], [-1, 0, 1, 0, 3])


def test_branch_experiment_in_llama_cpp(models: dict[str, Path]) -> None:
    settings = latency_branches.Settings(num_drafts=[1, 4], draft_len=3, context=20, blocks=3)
    rows, _ = latency_branches.run(settings, Target(target=models["target"]), BENCH)
    assert rows["num_drafts"].value_counts().to_dict() == {1: 3, 4: 3}
    assert (rows.filter(like="seconds") > 0).all(axis=None)


class SlowAtFirst:
    """A model in llama.cpp whose calls take a second for each token, and the first two of a shape a hundred more."""

    vocab_size, settings = 16, EngineOptions(context_length=64, sequences=5, shared=True)

    def __init__(self) -> None:
        self.now, self.shape, self.calls = 0.0, 0, 0
        self.tokens: list[int] = []

    def clock(self) -> Callable[[], float]:
        return lambda: self.now

    def prefill(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def trim(self, length: int) -> None:
        del self.tokens[length:]

    def greedy(self, tokens: Sequence[int]) -> None:
        self.decode(tokens)
        self.tokens += tokens

    def decode(self, tokens: Sequence[int], *_: object, **__: object) -> np.ndarray:
        self.shape, self.calls = len(tokens), self.calls + 1 if len(tokens) == self.shape else 1
        self.now += len(tokens) + 100 * (self.calls <= 2)
        return np.zeros((len(tokens), self.vocab_size))

    def copy(self, *_: int) -> None: ...

    def drop_branches(self) -> None: ...


def test_branches_and_plain_steps_are_timed_once_the_engine_has_prepared_for_them() -> None:
    settings = latency_branches.Settings(num_drafts=[1, 4], draft_len=3, context=20, blocks=3)
    rows = latency_branches.measure(SlowAtFirst(), settings)  # type: ignore[arg-type]
    assert set(rows["plain_seconds"]) == {1.0}
    assert set(rows["one_branch_seconds"]) == {4.0}
    assert (rows["branches_seconds"] == 1 + 3 * rows["num_drafts"]).all()


# --- noise -------------------------------------------------------------------------------------------------------


def test_the_interval_of_paired_times_is_that_of_a_t_test() -> None:
    first, second = [1.0, 1.3, 1.1, 1.6], [1.0, 1.0, 1.2, 1.1]
    interval = ttest_1samp(np.log(np.divide(first, second)), 0).confidence_interval(0.99)
    found = compare(first, second)
    assert (found.low, found.high) == pytest.approx(tuple(np.exp(interval)))


def test_comparisons() -> None:
    noise = np.random.default_rng(0).lognormal(0, 0.01, (2, 12))
    assert not compare(noise[0], noise[1]).differs
    slower, faster = compare(1.1 * noise[0], noise[1]), compare(noise[0], 1.1 * noise[1])
    assert slower.differs
    assert faster.differs
    assert faster.high < 1 < slower.low < 1.1 < slower.high
    assert slower.ratio == pytest.approx(1.1, abs=0.02)


def test_null_experiment_in_llama_cpp(models: dict[str, Path]) -> None:
    settings = latency_null.Settings(repeats=3, pairs=4, steps=2)
    rows, _ = latency_null.run(settings, Target(target=models["target"]), BENCH)
    assert rows.groupby("repeat").size().to_dict() == {0: 4, 1: 4, 2: 4}


def test_a_drift_falls_on_both_of_two_equal_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(1.0)
    monkeypatch.setattr("draftlab.latency.controlled.plain_steps", lambda *_: next(times))
    target = SimpleNamespace(vocab_size=9)
    rows = latency_null.measure(target, latency_null.Settings(repeats=2, pairs=2, steps=3))  # type: ignore[arg-type]
    assert rows["a_seconds"].tolist() == rows["b_seconds"].tolist() == [7.0, 15.0, 23.0, 31.0]


def test_more_pairs_reveal_a_smaller_difference_of_equals() -> None:
    rng = np.random.default_rng(0)
    noisy = rng.lognormal(sigma=0.05, size=(400, 2))
    rows = pd.DataFrame(
        {"repeat": np.repeat(np.arange(100), 4), "pair": np.tile(np.arange(4), 100)}
        | {"a_seconds": noisy[:, 0], "b_seconds": noisy[:, 1]}
    )
    found = latency_null.derive(rows.sample(frac=1, random_state=0))
    pd.testing.assert_frame_equal(found, latency_null.derive(rows), obj="pairs in the order of their measurement")
    of_size = found.groupby("compared")
    assert of_size["block"].nunique().to_dict() == {3: 133, 5: 80, 10: 40, 20: 20, 40: 10}
    assert (of_size.size() == [399, 400, 400, 400, 400]).all(), "each pair once, left-over pairs not at all"
    visible = of_size["visible"].mean()
    assert visible.is_monotonic_decreasing
    assert visible[40] == pytest.approx(100 * t.ppf(0.995, 39) * 0.05 * 2**0.5 / 40**0.5, rel=0.1)
    assert of_size["winner"].mean()[3] < 0.04, "99 % intervals of equals seldom leave out 1"


@pytest.mark.parametrize(("pairs", "compared"), [(4, 4), (6, 3)])
def test_few_pairs_are_compared_all_at_once_or_in_two_comparisons(pairs: int, compared: int) -> None:
    rows = pd.DataFrame({"repeat": 0, "pair": range(pairs), "a_seconds": [1.0, 1.1] * (pairs // 2), "b_seconds": 1.0})
    assert latency_null.derive(rows)["compared"].tolist() == [compared] * pairs


# --- interference ------------------------------------------------------------------------------------------------


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the draft may train, work goes on until it has made an update: on a busy machine that takes seconds."""
    is_running = [True]
    run, steps_during = Trainer.run, Trainer.steps_during

    def switch(trainer: Trainer, running: bool) -> None:
        is_running[0] = running
        run(trainer, running)

    def measure(trainer: Trainer, work: Callable[[], None]) -> dict[str, float]:
        def longer() -> None:
            steps, deadline = trainer.steps, time.monotonic() + 60
            work()
            while is_running[0] and trainer.steps == steps and time.monotonic() < deadline:
                time.sleep(0.01)

        return steps_during(trainer, longer)

    monkeypatch.setattr(Trainer, "run", switch)
    monkeypatch.setattr(Trainer, "steps_during", measure)


@pytest.mark.slow
@pytest.mark.usefixtures("patient")
def test_interference_experiment(models: dict[str, Path]) -> None:
    settings = latency_interference.Settings(
        alpha=[0.8], draft_len=[2], blocks=2, rounds=20, update_batch=1, update_tokens=4
    )
    cores = os.sched_getaffinity(0)
    rows, run = latency_interference.run(settings, TargetAndDraft(**models), BENCH)
    assert os.sched_getaffinity(0) == cores
    assert run["target"]["clock"] == "thread_time"
    assert rows["phase"].value_counts().to_dict() == {"alone": 4, "training": 4}
    assert (rows[rows["phase"] == "alone"]["training_steps"] <= 1).all(), "a stopped process makes no updates"
    assert (rows[rows["phase"] == "training"]["training_steps"] > 0).all()
    assert (rows["idle_training_steps"] > 0).all()


def test_a_draft_that_cannot_train_is_refused(tmp_path: Path, models: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"failed: .*no such file"), training(tmp_path, 1, 4):
        pass
    settings = latency_interference.Settings(alpha=[0.8], draft_len=[2], blocks=1, rounds=2)
    with pytest.raises(UserError, match="not a folder"):
        latency_interference.run(
            settings, TargetAndDraft(target=models["target"], draft=tmp_path / "draft.gguf"), BENCH
        )


def test_training_needs_a_core_of_its_own(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    settings = latency_interference.Settings(alpha=[0.8], draft_len=[2], blocks=1, rounds=2)
    with pytest.raises(UserError, match="no second core"):
        latency_interference.run(settings, TargetAndDraft(**models), BENCH)


def test_a_training_process_that_is_killed_ends_the_measurement(models: dict[str, Path]) -> None:
    """Otherwise the rest would be measured beside no training."""
    with training(models["draft"], 1, 4) as trainer:
        trainer.process.kill()
        with pytest.raises(UserError, match="failed: it ended with -9"):
            trainer.steps_during(trainer.process.wait)


@pytest.mark.slow
def test_the_training_process_ends_with_the_block(models: dict[str, Path]) -> None:
    with training(models["draft"], 1, 4) as trainer:
        before = trainer.steps
        deadline = time.monotonic() + 20
        while trainer.steps == before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert trainer.steps > before
    assert trainer.process.poll() is not None


@pytest.mark.skipif(not can_pin() or len(usable()) < 2, reason="this system pins no process, or has one core")
def test_threads_that_run_already_are_pinned_too() -> None:
    """As torch's own threads, which begin when a model is opened."""
    before, done = usable(), threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        number = thread.native_id
        assert number is not None
        with pinned(1):
            assert sorted(os.sched_getaffinity(number)) == before[:1]
        assert sorted(os.sched_getaffinity(number)) == before
    finally:
        done.set()
        thread.join()


@pytest.mark.skipif(not can_pin(), reason="this system pins no process")
def test_threads_are_pinned_while_a_pair_is_open(models: dict[str, Path]) -> None:
    before = usable()
    with open_pair(models["target"], settings=Engine(), context_length=64):
        assert usable() == before[:1]
    assert usable() == before
    with pinned(1) as others:
        assert others == before[1:]
