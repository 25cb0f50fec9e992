"""What updates cost: the paper's bytes and loads recomputed, the terms that it leaves out, and seconds against a static draft."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from pandas.testing import assert_frame_equal

from draftlab import plan
from draftlab.core import theory
from draftlab.engine.recording import load_pass
from draftlab.engine.speculate import BlockTrace
from draftlab.errors import UserError
from draftlab.models import load_model
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.llama_decoder import LlamaCache
from draftlab.models.weights import model_size
from draftlab.report import findings
from draftlab.stages import _serve_stream, break_even, medusa, memory_traffic, online, utilisation
from draftlab.stages._stage import Bench
from draftlab.train import break_even as train_break_even
from draftlab.train import learning, traffic, training
from draftlab.train import medusa as train_medusa
from draftlab.train import online as train_online
from draftlab.train.folders import Folders
from draftlab.train.settings import Training
from tests.pair import Killed, Mortal, inputs_of
from tests.synthetic import FOLDER, TABLES

PAIR = theory.ModelSize(14.0, 5.24288e-4), theory.ModelSize(0.32, 3.6864e-5)


@functools.cache
def osd_memory_traffic() -> pd.DataFrame:
    """Of a small pair, whose online draft emits 3 tokens a call at the end of its stream and whose static one 1.8; another stream is longer."""
    rows = ["dataset,method,stream_index,emitted,blocks", "gsm8k,online,49,50,10"]
    rows += ["spider,online,0,10,10", "spider,online,9,30,10", "spider,static,9,18,10"]
    [cell] = plan.load_experiment(FOLDER / "osd_memory_traffic.yaml").cells("laptop").values()
    with tempfile.TemporaryDirectory() as folder:
        target, draft, online = (Path(folder) / name for name in ("target", "draft", "osd_online.csv"))
        for path, width in ((target, 192), (draft, 64)):
            Llama(LlamaConfig(1024, width, 2 * width, 2, 2, 2, 64)).save(path)
        online.write_text("\n".join(rows) + "\n")
        inputs = memory_traffic.Inputs(target=target, draft=draft, online=online)
        return memory_traffic.run(cell[0].settings, inputs, Bench(Path(folder)))[0]


def totals(**fixed) -> dict[str, float]:
    rows = osd_memory_traffic()
    for key, value in fixed.items():
        rows = rows[rows[key] == value]
    return dict(zip(rows["system"], rows["gb"], strict=True))


@pytest.mark.parametrize("pair", [("a", 7, 0, 2, 0.5), ("a", 7, 1, 0.5, 0.5), ("a", 7, 1, 2, 1.5)])
def test_a_pair_that_cannot_be_is_refused_where_it_is_given(pair: tuple[Any, ...]) -> None:
    given: dict[str, Any] = dict.fromkeys(utilisation.Settings.model_fields, 1) | {"most": 2, "pairs": [pair]}
    with pytest.raises(ValueError, match="pairs"):
        utilisation.Settings(**given)
    assert utilisation.Settings(**given | {"pairs": [("a", 7, 1, 2, 0.5)]}).pairs == [("a", 7, 1, 2, 0.5)]


def test_a_dataset_without_a_stream_has_no_measured_block_lengths(tmp_path: Path) -> None:
    table = tmp_path / "osd_online.csv"
    table.write_text(
        "dataset,method,stream_index,emitted,blocks\ngsm8k,online,0,5,1\ngsm8k,static,0,5,1\nspider,online,0,5,1\n"
    )
    assert memory_traffic._measured(table, "gsm8k") == (5.0, 5.0)
    for dataset in ("spider", "dolly"):
        with pytest.raises(UserError, match=f"no rows of the dataset {dataset} with the method static"):
            memory_traffic._measured(table, dataset)


def test_table_5_as_printed_and_unrounded():
    one = {"terms": "printed", "batch": 1, "update_interval": 8}
    assert totals(inputs="printed", **one) == pytest.approx({"original": 1792, "vsd": 1320.96, "osd": 573.14}, abs=0.01)
    assert totals(inputs="unrounded", **one) == pytest.approx({"original": 1792, "vsd": 1331.8, "osd": 578.8}, abs=0.05)


def test_block_lengths_are_those_at_the_end_of_the_dataset_s_own_stream():
    rows = osd_memory_traffic()
    rows = rows[rows["inputs"] == "ours"]
    assert dict(zip(rows["system"], rows["block_length"], strict=True)) == {"original": 1.0, "vsd": 1.8, "osd": 3.0}


def test_a_draft_is_read_once_per_drafted_token_and_caches_grow_with_the_context():
    given = {"tokens": 128, "draft_len": 5, "block_length": 1.4}
    near, far = (theory.traffic_terms(*PAIR, context=context, **given) for context in (0, 1000))
    assert near["draft_gb"] == pytest.approx(128 / 1.4 * 5 * 0.32)
    assert near["target_gb"] == pytest.approx(128 / 1.4 * 14)
    # The target verifies and writes 6 entries; each of the draft's 5 steps writes one.
    assert near["cache_gb"] == pytest.approx(128 / 1.4 * (6 * 5.24288e-4 + 5 * 3.6864e-5))
    assert far["cache_gb"] - near["cache_gb"] == pytest.approx(128 / 1.4 * 1000 * (5.24288e-4 + 5 * 3.6864e-5))
    plain = theory.traffic_terms(*PAIR, context=0, tokens=128, draft_len=0, block_length=1.0, batch=4)
    assert plain["draft_gb"] == plain["update_gb"] == 0
    assert plain["target_gb"] == 128 * 14 / 4


def test_heads_may_be_wider_than_their_share_of_the_model(tmp_path: Path):
    llama = Llama(LlamaConfig(320, 32, 64, 2, 4, 2, 64, head_dim=16, tie_word_embeddings=False))
    llama.save(tmp_path)
    found = model_size(tmp_path)
    assert found.cache == pytest.approx(4e-9 * 2 * 2 * 2 * 16)
    assert found.weights == pytest.approx(4e-9 * sum(weight.numel() for weight in llama.parameters()))
    (tmp_path / "config.json").write_text('{"d_model": 512}')
    with pytest.raises(UserError, match="use a decoder-only model"):
        model_size(tmp_path)


def test_the_break_even_block_length_moves_as_many_bytes():
    given = {"tokens": 128, "context": 128, "draft_len": 5, "batch": 64}
    before = sum(theory.traffic_terms(*PAIR, block_length=1.4, **given).values())
    updates = {"updates_per_request": 1.0, "train_gb": 0.64}
    fixed = theory.traffic_terms(*PAIR, block_length=1.4, **given, **updates)["update_gb"]
    needed = theory.break_even_block_length(before * 1.4, 0.0, fixed, 1.4)
    assert needed > 1.4
    after = theory.traffic_terms(*PAIR, block_length=needed, **given, **updates)
    assert sum(after.values()) == pytest.approx(before)
    assert math.isinf(theory.break_even_block_length(1.0, 0.0, 2.0, 1.0))


def test_every_term_of_a_system_is_its_own():
    rows = osd_memory_traffic()
    rows = rows[rows["terms"] == "all"].set_index("system")
    assert (rows.loc["original", "draft_gb"] == 0).all()
    assert (rows.loc["vsd", "draft_gb"] > 0).all()
    osd = rows.loc["osd"]
    printed, unrounded = (osd[osd["inputs"] == name]["update_gb"].to_numpy() for name in ("printed", "unrounded"))
    np.testing.assert_allclose(printed, unrounded)
    osd = osd[np.isfinite(osd["break_even"])]
    passes = (osd["gb"] - osd["update_gb"]) * osd["block_length"]  # the rest falls with the length of a block
    np.testing.assert_allclose(passes / osd["break_even"] + osd["update_gb"], osd["vsd_gb"])


def test_updates_save_no_bytes_where_each_of_many_requests_brings_one():
    rows = osd_memory_traffic()
    rows = rows[(rows["inputs"] == "unrounded") & (rows["terms"] == "all") & (rows["system"] == "osd")]
    flips = rows[rows["gb"] > rows["vsd_gb"]]
    assert set(flips["update_interval"]) == {1}
    assert flips["batch"].min() == 1024
    assert (flips["break_even"] > flips["block_length"]).all()
    texts = findings.sentences("osd_memory_traffic", osd_memory_traffic())
    assert "when 1,024 requests share a load of the weights and each brings an update: it moves 1.0479 of" in texts


def test_the_arena_uses_half_a_percent_and_not_what_is_printed():
    rows = TABLES["osd_utilisation"]()
    first = rows[(rows["part"] == "load") & (rows["system"] == "serving")].iloc[0]
    assert first["flops_per_second"] == pytest.approx(1.111e13, rel=1e-3)
    assert first["flops_per_second"] / first["hardware_flops"] == pytest.approx(0.00445, abs=1e-5)
    ratios = rows[rows["part"] == "ratio"].set_index(["pair", "source"])["ratio"]
    assert ratios["flan-t5-xl/t5-small", "printed"] == pytest.approx(12.6, abs=0.05)
    assert ratios["flan-t5-xl/t5-small", "recomputed"] == pytest.approx(14.9, abs=0.05)


LEARNS = {"dataset": "toy", "learning_rate": 1e-2, "batch": 4}


def even(**changes) -> break_even.Settings:
    values = {"requests": 24, "intervals": [2, 8], "measurements": 3, "context": 16, "larger": "draft", "draft_len": 3}
    return break_even.Settings(**(LEARNS | values | changes))


def heads(**changes) -> medusa.Settings:
    values = {"requests": 8, "warm": ["other"], "warm_requests": 2, "live_requests": 2, "timed_updates": 1}
    values |= {"heads_learning_rate": 2e-2, "widths": [2, 1], "draft_len": 2, "update_interval": 2}
    return medusa.Settings(**(LEARNS | values | {"loss_positions": "all"} | changes))


def test_break_even_prices_every_contender_on_the_same_requests(results: Path, tmp_path: Path):
    rows, _ = break_even.run(even(), inputs_of(results), Bench(tmp_path))
    cells = rows.groupby(["contender", "update_interval"])["stream_index"].agg(list).to_dict()
    assert set(cells) == {("static", 0), ("online", 2), ("online", 8), ("larger", 0)}
    assert all(records == list(range(24)) for records in cells.values())
    by = rows.set_index(["contender", "update_interval"])
    static = by.loc[("static", 0)]
    assert (static["serve_seconds"] == static["static_seconds"]).all()
    assert (static["update_seconds"] == 0).all()
    assert by.loc[("online", 2)]["update_gb"].tolist() == (4 * by.loc[("online", 8)]["update_gb"]).tolist()
    online = by.loc[("online", 2)]
    np.testing.assert_allclose(online["serve_gb"] / online["blocks"], (static["serve_gb"] / static["blocks"]).iloc[0])
    assert online["blocks"].sum() < static["blocks"].sum()
    with pytest.raises(UserError, match="48 answers for 30 requests to serve"):
        break_even.run(even(requests=30), inputs_of(results), Bench(tmp_path))
    with pytest.raises(ValueError, match="an interval of 25 in a stream of 24 requests"):
        even(intervals=[2, 25])


def test_the_requests_share_the_updates_that_were_made(results: Path, tmp_path: Path):
    """24 requests have 4 updates after each fifth one, not 4.8."""
    rows, _ = break_even.run(even(intervals=[2, 5]), inputs_of(results), Bench(tmp_path))
    moved = rows.groupby("update_interval")["update_gb"].sum()
    assert moved[2] / moved[5] == pytest.approx(12 / 4)


def test_each_request_has_the_prices_of_its_measurement() -> None:
    rows = pd.DataFrame({"stream_index": [0, 1, 2], "blocks": [2.0, 1.0, 3.0]})
    sizes = {name: theory.ModelSize(gb, 0.0) for name, gb in (("target", 8.0), ("larger", 2.0))}
    prices = {"target": [10.0, 20.0], "larger": [1.0, 2.0], "draft": [0.0, 0.0], "update 4": [8.0, 16.0]}
    prices = {name: np.array(seconds) for name, seconds in prices.items()}
    settings = even(draft_len=3, context=5)
    found = train_break_even.priced(rows, sizes, prices, settings, "larger", update="update 4", share=0.25)
    assert found["serve_seconds"].tolist() == [2 * (3 * 1 + 10), 3 * 2 + 20, 3 * (3 * 1 + 10)]
    assert found["update_seconds"].tolist() == [2.0, 4.0, 2.0]
    np.testing.assert_allclose(found["serve_gb"] / rows["blocks"], 8 + 3 * 2)


def test_affordable_requests_hold_at_least_the_tokens() -> None:
    records = [SimpleNamespace(prompt_ids=[1] * n, answer_ids=[1, 2]) for n in (50, 1, 2, 3)]
    every = SimpleNamespace(answers=SimpleNamespace(answers=records))
    for tokens, expected in ((2, [1]), (3, [1]), (4, [1, 2]), (7, [1, 2]), (8, [1, 2, 3]), (99, [1, 2, 3])):
        assert train_break_even.affordable(every, 1, tokens) == expected


def test_a_timed_step_is_one_of_many_and_the_first_measurement_is_left_out(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock on which a step takes 1 second, and 100 in the first measurement of the three models."""
    now, steps, extend = [0.0], [0], LlamaCache.extend

    def stepped(self: LlamaCache, tokens: torch.Tensor) -> torch.Tensor:
        steps[0] += 1
        now[0] += 100.0 if steps[0] <= 3 * train_break_even.STEPS else 1.0
        return extend(self, tokens)

    monkeypatch.setattr(LlamaCache, "extend", stepped)
    monkeypatch.setattr(train_break_even, "clock_of", lambda device: lambda: now[0])
    target, draft = (load_model(results / "models" / name) for name in ("target", "draft"))
    stream = traffic.whole(load_pass(results / "answers/toy.train"), "toy")
    prices = train_break_even.measure(target, draft, draft, stream, even(intervals=[2], measurements=2))
    assert [prices[name].tolist() for name in ("draft", "larger", "target")] == [[1.0, 1.0]] * 3


def test_a_timed_update_learns_from_the_positions_that_serving_leaves_it(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shares: dict[int, list[float]] = {}

    def learn(learner, optimizer, lessons, settings):
        answers = sum(len(lesson.answers.answers[lesson.request].answer_ids) for lesson in lessons)
        shares.setdefault(len(lessons), []).append(sum(len(lesson.where) for lesson in lessons) / answers)
        return 1, 0.0

    monkeypatch.setattr(train_break_even, "learn", learn)
    break_even.run(even(loss_positions="repository"), inputs_of(results), Bench(tmp_path))  # never an answer's first
    assert set(shares) == {2, 8, 4}
    assert set(shares.pop(4)) == {1.0}  # the larger draft's batch: whole answers
    assert all(0 < np.mean(each) < 1 for each in shares.values())


@pytest.mark.parametrize(("stage", "settings"), [(medusa, heads()), (break_even, even(requests=20))])
def test_the_target_has_the_type_that_it_answers_in(
    stage: ModuleType, settings: Training, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Opened(Exception):
        pass

    def target(self: Folders, device: str, dtype: str = "float32") -> None:
        raise Opened(dtype)

    monkeypatch.setattr(Folders, "target", target)
    inputs = inputs_of(results).model_copy(update={"dtype": "float16"})
    with pytest.raises(Opened, match="float16"):
        stage.run(settings, inputs, Bench(tmp_path))


@pytest.mark.parametrize("timed", [True, False])
def test_an_online_run_that_is_timed_keeps_no_checkpoint(tmp_path: Path, timed: bool):
    settings = online.Settings.model_construct(timed=timed)
    run = _serve_stream.Run(settings, inputs_of(tmp_path, online.Inputs), Bench(tmp_path, number=3))
    assert run.checkpoint("warm") == (None if timed else tmp_path / ".3.warm.safetensors")


def test_heads_learn_on_the_target_that_decodes(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The time of an epoch stands beside times of the padded target, whose states the heads read."""
    read, timed = [], train_medusa.epoch_seconds

    def watched(models, *given):
        read.append(models["medusa"].target.config.intermediate_size)
        return timed(models, *given)

    monkeypatch.setattr(train_medusa, "epoch_seconds", watched)
    medusa.run(heads(requests=4, live_requests=1, inflated_ffn=256), inputs_of(results), Bench(tmp_path))
    assert read == [256]


@pytest.mark.parametrize(
    ("module", "name"), [(train_online, "serve"), (train_online, "learn"), (learning, "losses_at")]
)
def test_a_killed_medusa_job_learns_nothing_twice(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str
) -> None:
    settings = heads(warm_requests=8)
    untimed = [name for name in medusa.STAGE.columns if not medusa.STAGE.is_timed(name, {})]
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    monkeypatch.setattr(train_medusa, "epoch_seconds", lambda models, *_: dict.fromkeys(models, 1.0))
    counted = Mortal(getattr(module, name), dies_at=0)
    monkeypatch.setattr(module, name, counted)
    whole, facts = medusa.run(settings, inputs_of(results), Bench(tmp_path))
    needed, counted.dies_at = counted.calls, 2 * counted.calls
    with pytest.raises(Killed):
        medusa.run(settings, inputs_of(results), Bench(tmp_path, parts=tmp_path))
    again, same_facts = medusa.run(settings, inputs_of(results), Bench(tmp_path, parts=tmp_path))
    assert_frame_equal(again[untimed], whole[untimed])
    assert same_facts | {"cpu_seconds": 0} == facts | {"cpu_seconds": 0}
    assert counted.calls == 2 * needed + 1  # the last call was killed


def test_medusa_job_compares_all_contenders_and_says_which_is_lossless(results: Path, tmp_path: Path):
    settings = heads(requests=48, live_requests=8, at_once=4)
    rows, _ = medusa.run(settings, inputs_of(results), Bench(tmp_path))
    assert rows.groupby(["temperature", "contender", "verifier"]).size().eq(2).all()
    greedy = rows[rows["temperature"] == 0]
    assert list(greedy["contender"].unique()) == ["plain", "draft", "medusa", "draft_osd", "medusa_osd"]
    assert (greedy["same_text"] == greedy["requests"]).all()
    assert set(rows[rows["is_lossless"] == 0]["verifier"]) == {"typical"}
    with pytest.raises(UserError, match="update_interval is 49, but the stream has 48"):
        medusa.run(settings.model_copy(update={"update_interval": 49}), inputs_of(results), Bench(tmp_path))
    assert (rows[rows["contender"] == "plain"]["emitted"] == rows[rows["contender"] == "plain"]["blocks"]).all()
    sizes = rows.groupby("contender")["parameters"].first()
    assert sizes["medusa"] == sizes["medusa_osd"] == 2 * (32 * 32 + 32 + 320 * 32)
    blocks = greedy.groupby("contender")["blocks"].agg(list)
    assert blocks["medusa_osd"] != blocks["medusa"]  # it learnt something
    assert blocks["draft_osd"] != blocks["draft"]


def test_sampled_texts_are_timed_by_the_token_and_each_seed_draws_its_own(monkeypatch: pytest.MonkeyPatch):
    """Plain decoding takes 4 s for 8 tokens, the draft 3 s for 4; of two seeds, no draws are the same."""
    now, seeds = [0.0], []

    def decode(
        way: train_medusa.Strategy, target: object, prompts: object, **options: torch.Generator
    ) -> list[BlockTrace]:
        now[0] += 4.0 if way.name == "plain" else 3.0
        seeds.append(options["generator"].initial_seed())
        return [BlockTrace.plain([7] * (8 if way.name == "plain" else 4))]

    monkeypatch.setattr(train_medusa.Strategy, "decode", decode)
    models = {"plain": None, "draft": Any}
    ways = [train_medusa.Strategy(name, model, train_medusa.SAMPLED) for name, model in models.items()]
    for seed in range(2):
        parts = train_medusa.decode_in_turns(SimpleNamespace(device="cpu"), ways, [[[1]]] * 3, lambda: now[0], seed)
        rows = pd.concat(parts).set_index("contender")
        assert set(rows.loc["plain", "plain_seconds"]) == set(rows.loc["plain", "seconds"]) == {4.0}
        assert set(rows.loc["draft", "plain_seconds"]) == {2.0}
    assert len(set(seeds)) == 6
