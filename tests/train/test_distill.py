"""Distillation on a toy pair: what is learnt and from whose tokens, resume, and that one pass of the target serves all."""

import dataclasses
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from draftlab import plan
from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.verify.optimum import optimum_iid
from draftlab.engine.recording import load_pass, on_head, record
from draftlab.engine.replay import replay
from draftlab.errors import UserError
from draftlab.files.json_files import read_json
from draftlab.models import hf, load_model, load_tokenizer
from draftlab.models.ngrams import Ngrams
from draftlab.models.tokenizer import train_tokenizer
from draftlab.stages import STAGES
from draftlab.stages._stage import Bench
from draftlab.train import folders, learning, offline, replay_log, sources, tokens, training, trimmed_head
from draftlab.train.designs import trim_head
from draftlab.train.settings import ReplayLog
from tests.conftest import ROOT
from tests.models.test_lookup import passages
from tests.pair import Killed, Mortal, alpha, inputs_of, keep_held_out, run_cell, small_llama, weights

VALUES = {"dataset": "toy", "epochs": 8, "batch": 8, "learning_rate": 1e-2, "draft_len": 3}
COUNTS = ["accepted", "visited", "overlap", "blocks", "emitted"]


def settings(**changes):
    return STAGES["offline"].settings(**(VALUES | changes))


def run(results, out, inner=None, **changes):
    return run_cell("offline", results, out, VALUES | changes, inner)


def scene(results, target=True):
    draft = load_model(results / "models/draft")
    return sources.Scene(
        draft,
        load_pass(results / "answers/toy.train"),
        load_model(results / "models/target") if target else None,
        12,
        {2},
    )


# --- offline -----------------------------------------------------------------------------------------------------


def test_distillation_raises_alpha_on_held_out_requests(results, tmp_path):
    before, _ = run(results, tmp_path / "a", sample_source="none", loss="none")
    after, facts = run(results, tmp_path / "b", epochs=30)
    assert alpha(after) > alpha(before) + 0.05
    train = load_pass(results / "answers/toy.train")
    assert facts["runs"][0]["updates"] == 180
    assert facts["runs"][0]["positions"] == 30 * sum(train.lengths)


def test_an_embedding_can_stay_as_it_is(results):
    """The head learns; the embedding does not, and the optimizer keeps no state for it."""
    chosen = settings(keeps_embedding=True)
    draft = folders.Folders(results / "answers", results / "models").draft(chosen)
    own = dataclasses.replace(scene(results, target=False), draft=draft)
    before = {name: value.detach().clone() for name, value in own.draft.named_parameters()}
    learning.train(own, range(8), 2, chosen)
    changed = {name for name, value in own.draft.named_parameters() if not torch.equal(value, before[name])}
    assert changed == set(before) - {"embed"}
    assert len(training.adamw(own.draft).param_groups[0]["params"]) == len(before) - 1


def test_the_share_of_held_out_tokens_in_a_trimmed_head_is_recorded(results, tmp_path):
    """A draft can propose no other tokens, and a head covers less of new answers than of those that it was chosen from."""
    mine = tmp_path / "mine"
    shutil.copytree(results, mine)
    draft, tokenizer = load_model(mine / "models/draft"), load_tokenizer(mine / "models/draft")
    answers = [answer.answer_ids for answer in load_pass(mine / "answers/toy.eval").answers]
    kept = sorted({token for answer in answers[::2] for token in answer})
    trim_head(draft, kept).save(mine / "models/draft")
    tokenizer.save(mine / "models/draft")
    _, facts = run(mine, tmp_path / "out", sample_source="none", loss="none")
    every = [token for answer in answers for token in answer]
    assert facts["runs"][0]["head_coverage"] == sum(token in kept for token in every) / len(every) < 1
    _, facts = run(results, tmp_path / "whole", sample_source="none", loss="none")
    assert "head_coverage" not in facts["runs"][0]


def test_recorded_distributions_are_spread_where_the_draft_is(results):
    elsewhere = dataclasses.replace(scene(results, target=False), draft=scene(results).draft.to("meta"))
    samples = sources.teacher(elsewhere, [0, 1], torch.Generator())
    assert samples.target_logits.device.type == "meta"
    assert samples.target_logits.shape == elsewhere.recorded.target_logits([0, 1]).shape


def test_the_original_draft_is_saved_unchanged(results, tmp_path):
    run(results, tmp_path, sample_source="none", loss="none")
    original = results / "models/draft/model.safetensors"
    assert (tmp_path / "draft/model.safetensors").read_bytes() == original.read_bytes()
    assert (tmp_path / "draft/tokenizer.json").exists()


def test_variants_are_columns_and_the_wanted_draft_is_saved(results, tmp_path):
    inner = {"method": {"ft": {"loss": "hard_label"}, "kl": {}}, "seed": [0, 1]}
    table, facts = run(results, tmp_path / "a", epochs=1, inner=inner, save="kl")
    assert table.groupby(["method", "seed", "loss"]).ngroups == 4
    assert [run["method"] for run in facts["runs"]] == ["ft", "ft", "kl", "kl"]
    alone, _ = run(results, tmp_path / "b", epochs=1)
    chosen = table[(table["method"] == "kl") & (table["seed"] == 0)].set_index("request_id")
    pd.testing.assert_frame_equal(chosen[COUNTS], alone.set_index("request_id")[COUNTS])
    saved = [(tmp_path / name / "draft/model.safetensors").read_bytes() for name in "ab"]
    assert saved[0] == saved[1]


def test_one_pass_of_the_target_serves_every_variant(results, tmp_path):
    inner = {"loss": ["forward_kl", "tvd"], "seed": [0, 1]}
    _, facts = run(results, tmp_path, epochs=1, inner=inner)
    recorded = sum(sum(load_pass(results / f"answers/toy.{split}").lengths) for split in ("train", "eval"))
    assert [(run["recorded_tokens"], run["target_tokens"]) for run in facts["runs"]] == [(recorded, 0)] * 4
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("source", sorted(sources.LIVE))
def test_the_target_reads_again_only_what_a_draft_wrote(results, tmp_path, source, monkeypatch):
    asked, write = [], sources.SOURCES[source]
    monkeypatch.setitem(
        sources.SOURCES, source, lambda scene, *given: asked.append(len(given[0])) or write(scene, *given)
    )
    _, facts = run(results, tmp_path, epochs=1, sample_source=source, sample_batch=16)
    assert 0 < facts["runs"][0]["target_tokens"] <= 48 * 12
    assert facts["runs"][0]["updates"] == 6
    assert asked == [16] * 3, "the draft answers the requests of two updates at once"


def test_probes_measure_while_training(results, tmp_path):
    plain, _ = run(results, tmp_path / "a", epochs=2)
    table, _ = run(results, tmp_path / "b", epochs=2, probes=2)
    assert sorted(table["epoch"].unique()) == [0, 0.5, 1, 1.5, 2]
    assert len(table) == 5 * 16
    last = table[table["epoch"] == 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(last, plain, check_dtype=False)
    tokens = table.groupby("epoch")["tokens"].first().tolist()
    assert tokens == sorted(tokens)
    assert tokens[0] == 0 < tokens[2] == tokens[4] / 2
    timed, _ = run(results, tmp_path / "c", epochs=2, probes=2, timed=True)
    assert (timed.groupby("epoch")["learning_seconds"].first().diff()[1:] > 0).all()
    pd.testing.assert_frame_equal(timed.drop(columns="learning_seconds"), table)


def test_several_draft_lengths_are_measured_on_one_draft(results, tmp_path):
    table, facts = run(results, tmp_path, epochs=1, draft_lens=[1, 8])
    blocks = table.groupby("draft_len")["blocks"].sum()
    assert list(blocks.index) == [1, 3, 8]
    assert blocks[1] >= blocks[3] >= blocks[8]
    assert len(facts["runs"]) == 1


def test_a_draft_length_that_is_named_twice_is_measured_once(results, tmp_path):
    table, _ = run(results, tmp_path, epochs=0, draft_lens=[3, 8, 8])
    assert table.groupby("draft_len")["request_id"].agg(list).to_dict() == {3: [*range(16)], 8: [*range(16)]}


def test_a_log_is_replayed_without_thresholds_of_confidence(results, tmp_path):
    values = VALUES | {"epochs": 1, "update_interval": 8, "draft_lens": [2], "thresholds": []}
    table, _ = run_cell("replay_log", results, tmp_path, values)
    assert {"distilled", "lookup_first"} <= set(table["option"])
    assert not table["option"].str.endswith("_confident").any()


def test_live_decoding_counts_what_replay_counts(results, tmp_path):
    table, _ = run(results, tmp_path, epochs=4, live=True)
    replayed, live = (table[table["measured"] == name].set_index("request_id")[COUNTS] for name in ("replay", "live"))
    pd.testing.assert_frame_equal(replayed, live)
    assert replayed["accepted"].sum() > 0


def test_with_a_draft_that_reads_the_targets_states_live_decoding_counts_what_replay_counts(results, tmp_path):
    few = {"epochs": 4, "draft_lens": [1, 5]}
    alone, facts = run(results, tmp_path / "a", **few)
    table, with_states = run(results, tmp_path / "b", reads_target=True, live=True, **few)
    replayed, live = (
        table[(table["measured"] == name) & (table["draft_len"] == 3)].set_index("request_id")[COUNTS]
        for name in ("replay", "live")
    )
    pd.testing.assert_frame_equal(replayed, live)
    assert replayed["accepted"].sum() > 0
    (facts,), (with_states,) = facts["runs"], with_states["runs"]
    assert (facts["target_tokens"], with_states["target_tokens"]) == (0, with_states["tokens"])
    assert (table["parameters"] - alone["parameters"].iloc[0] == 16 * 32 + 16 * 16).all(), "two matrices more"


@pytest.mark.parametrize("reads_target", [False, True])
def test_with_a_draft_that_proposes_a_block_in_one_pass_live_decoding_counts_what_replay_counts(
    results, tmp_path, reads_target
):
    alone, _ = run(results, tmp_path / "a", epochs=4)
    table, facts = run(results, tmp_path / "b", epochs=4, parallel=True, reads_target=reads_target, live=True)
    replayed, live = (table[table["measured"] == name].set_index("request_id")[COUNTS] for name in ("replay", "live"))
    pd.testing.assert_frame_equal(replayed, live)
    assert 0 < replayed["accepted"].sum() < replayed["visited"].sum()
    assert facts["runs"][0]["target_tokens"] == reads_target * facts["runs"][0]["tokens"]
    assert (table["parameters"] - alone["parameters"].iloc[0] == 16 + reads_target * 16 * 32).all()


def test_a_parallel_draft_that_was_saved_is_replayed_as_it_is(results, tmp_path):
    """As a published one would be: without learning."""
    learnt, _ = run(results, tmp_path / "a", epochs=4, parallel=True)
    mine = tmp_path / "mine"
    shutil.copytree(results, mine)
    (draft,) = mine.rglob("models/draft")
    shutil.rmtree(draft)
    shutil.copytree(tmp_path / "a" / "draft", draft)
    opened, _ = run(mine, tmp_path / "b", epochs=0, parallel=True)
    alone, _ = run(mine, tmp_path / "c", epochs=0)
    pd.testing.assert_frame_equal(opened[COUNTS], learnt[COUNTS])
    assert (alone["accepted"] != opened["accepted"]).any(), "the same draft token after token"


@pytest.mark.parametrize("kind", ["reads_target", "parallel"])
def test_a_draft_that_depends_on_its_block_writes_no_answers(results, kind):
    with pytest.raises(ValueError, match="sample_source must be teacher"):
        settings(sample_source="student", **{kind: True})


# --- sources -----------------------------------------------------------------------------------------------------


def test_distributions_of_samples_are_the_targets(results):
    found = scene(results)
    for name, source in sources.SOURCES.items():
        samples = source(found, [3, 0, 7], torch.Generator().manual_seed(1))
        assert samples.prompts == [found.recorded.answers[request].prompt_ids for request in (3, 0, 7)], name
        with torch.no_grad():
            expected = found.target.answer_logits(samples.prompts, samples.answers).log_softmax(-1)
        torch.testing.assert_close(samples.target_logits.log_softmax(-1), expected, atol=3e-3, rtol=3e-3)
        read = {"teacher": 0, "mix_request": samples.scored}.get(name, len(samples.labels))
        assert samples.scored == read, name


def test_who_writes(results):
    found = scene(results)
    generator = torch.Generator().manual_seed(0)
    requests = list(range(24))
    recorded = [found.recorded.answers[request].answer_ids for request in requests]
    assert sources.teacher(found, requests, generator).answers == recorded
    student = sources.student(found, requests, generator)
    logits = found.draft.answer_logits(student.prompts, student.answers)
    written = torch.tensor([token for answer in student.answers for token in answer])
    torch.testing.assert_close(logits.argmax(-1), written)  # its own most probable tokens
    mixed = sources.mix_request(found, requests, generator)
    by_target = [answer == own for answer, own in zip(mixed.answers, recorded, strict=True)]
    by_draft = [answer == own for answer, own in zip(mixed.answers, student.answers, strict=True)]
    assert all(a or b for a, b in zip(by_target, by_draft, strict=True))
    assert 4 <= sum(by_target) <= 20
    assert mixed.scored == sum(len(a) for a, own in zip(mixed.answers, by_target, strict=True) if not own)


@pytest.mark.parametrize("source", sorted(sources.LIVE))
def test_no_more_requests_are_decoded_together_than_fit(results, source, monkeypatch):
    """An update of more requests than fit in memory gives the same samples."""
    decoder = type(scene(results).draft.decoder())
    seen, prefill = [], decoder.prefill

    def watched(model, prompts, room):
        seen.append(len(prompts))
        return prefill(model, prompts, room)

    def draw(at_once):
        found = dataclasses.replace(scene(results), at_once=at_once)
        return sources.SOURCES[source](found, range(12), torch.Generator().manual_seed(3))

    whole = draw(None)
    monkeypatch.setattr(decoder, "prefill", watched)
    parts = draw(5)
    assert max(seen) <= 5
    assert [len(answer) for answer in parts.answers] != [0] * 12
    if source != "mix_token":  # whose coins are thrown token by token, all requests of a batch together
        assert parts.answers == whole.answers
        torch.testing.assert_close(parts.target_logits, whole.target_logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("source", sorted(sources.LIVE))
def test_the_target_is_read_in_the_type_of_its_answers(results, tmp_path, source, monkeypatch):
    """The target takes half the memory, and the loss is computed in float32."""
    seen = []
    inputs = inputs_of(results).model_copy(update={"dtype": "bfloat16"})
    losses = learning.losses_at

    def watched(name, logits, target_logits, *rest):
        seen.append(target_logits.dtype)
        return losses(name, logits, target_logits, *rest)

    monkeypatch.setattr(learning, "losses_at", watched)
    bench = Bench(tmp_path)
    rows, _ = STAGES["offline"].run(settings(epochs=1, sample_source=source, live=True), inputs, bench)
    assert {value.dtype for value in bench.kept["target", "cpu"].parameters()} == {torch.bfloat16}
    assert set(seen) == {torch.float32}
    assert set(rows["measured"]) == {"replay", "live"}


def sampled(results, temperature):
    """The scene of ``results`` with answers that the target sampled."""
    found = scene(results)
    own = record(
        found.target,
        [(answer.id, answer.prompt_ids) for answer in found.recorded.answers],
        max_new_tokens=12,
        eos_ids={2},
        sampling=Sampling(temperature),
        generator=torch.Generator().manual_seed(4),
    )
    return dataclasses.replace(found, recorded=own)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("source", sorted(sources.SOURCES))
def test_nothing_is_left_to_learn_for_the_target_itself(results, source, temperature):
    """The losses compare distributions at temperature 1, at whatever temperature the answers were sampled."""
    found = sampled(results, temperature)
    samples = sources.SOURCES[source](found, range(16), torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = found.target.answer_logits(samples.prompts, samples.answers)
    assert float(learning.losses_at("forward_kl", logits, samples.target_logits, samples.labels).max()) < 1e-4


@pytest.mark.parametrize("source", sorted(sources.SOURCES))
def test_a_trimmed_head_changes_the_columns_and_no_label(results, source):
    whole = scene(results)
    trimmed = dataclasses.replace(whole, draft=trim_head(whole.draft, range(whole.draft.vocab_size)[::-1]))
    generators = [torch.Generator().manual_seed(1) for _ in range(2)]
    expected, samples = (
        sources.SOURCES[source](one, range(4), generator)
        for one, generator in zip((whole, trimmed), generators, strict=True)
    )
    assert samples.answers == expected.answers
    assert torch.equal(samples.labels, expected.labels)
    torch.testing.assert_close(samples.target_logits, on_head(expected.target_logits, trimmed.draft.kept))


@pytest.mark.parametrize("fast", [True, False])
def test_autocast_rounds_only_where_bfloat16_is_fast(results, monkeypatch, fast):
    monkeypatch.setattr(trimmed_head, "has_fast_bfloat16", lambda device: fast)
    draft = scene(results, target=False).draft
    exact, logits = (trimmed_head.answer_logits(draft, [[1, 5, 9]], [[7, 8]], autocast) for autocast in (False, True))
    assert torch.equal(exact, logits) != fast


@pytest.mark.parametrize("source", sorted(sources.SOURCES))
def test_fine_tuning_learns_the_tokens_that_the_target_wrote(results, source):
    found = sampled(results, 1.0)
    samples = sources.SOURCES[source](found, range(16), torch.Generator().manual_seed(1))
    written = torch.tensor([token for answer in samples.answers for token in answer])
    best = samples.target_logits.argmax(-1)
    assert bool(((samples.labels == written) | (samples.labels == best)).all())
    by_target = samples.labels == written
    assert bool((by_target & (written != best)).any()) == (source != "student")
    assert bool(by_target.all()) == (source == "teacher")
    logits = torch.zeros(len(written), found.target.vocab_size)
    logits[range(len(written)), samples.labels] = 50.0
    assert float(learning.losses_at("hard_label", logits, samples.target_logits, samples.labels).max()) < 1e-6


@pytest.mark.parametrize("source", ["mix_request", "mix_token"])
def test_coins_are_drawn_where_the_generator_is(results, monkeypatch, source):
    """On a GPU torch refuses a generator of another device."""

    class Far:
        device = torch.device("cuda")

    real, devices = torch.rand, []

    def strict(*shape, generator, device="cpu", **options):
        assert torch.device(device) == generator.device
        devices.append(device)
        return real(*shape, **options)

    monkeypatch.setattr(torch, "rand", strict)
    sources.SOURCES[source](scene(results), range(4), Far())
    assert devices


@pytest.mark.parametrize("source", sorted(sources.LIVE))
def test_a_broken_target_labels_no_token(results, monkeypatch, source):
    found = scene(results)
    dict(found.target.named_parameters())["norm"].data[3] = np.nan
    monkeypatch.setattr(sources, "_flip_coins", lambda count, generator: [False] * count)  # the draft writes
    with pytest.raises(UserError, match=r"logits.* hold NaN"):
        sources.SOURCES[source](found, range(4), torch.Generator().manual_seed(0))


def test_a_broken_draft_proposes_no_token(results):
    found = scene(results, target=False)
    dict(found.draft.named_parameters())["norm"].data[3] = np.nan
    with pytest.raises(UserError, match=r"logits.* hold NaN"):
        tokens.token_counts(found.draft, found.recorded, 3)


def test_mixed_tokens_come_from_both(results):
    found = scene(results)
    samples = sources.mix_token(found, list(range(48)), torch.Generator().manual_seed(0))
    drafted = found.draft.answer_logits(samples.prompts, samples.answers).argmax(-1)
    tokens = torch.tensor([token for answer in samples.answers for token in answer])
    from_target, from_draft = (best == tokens for best in (samples.target_logits.argmax(-1), drafted))
    assert bool((from_target | from_draft).all())
    undecided = from_target & from_draft
    share = (from_target & ~undecided).sum() / (~undecided).sum()
    assert 0.4 < share < 0.6


# --- updates -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro_batch", [1, 3, 8])
def test_micro_batches_change_nothing(results, micro_batch):
    whole, parts = scene(results), scene(results)
    learning.train(whole, range(48), 4, settings())
    effort = learning.train(parts, range(48), 4, settings(micro_batch=micro_batch))
    torch.testing.assert_close(weights(whole.draft), weights(parts.draft), atol=1e-5, rtol=1e-4)
    learnt = [r for step in learning.orders(range(48), 8, 4, 0) for r in step]
    assert effort.positions == sum(whole.recorded.lengths[r] for r in learnt)
    assert effort.tokens == effort.positions + sum(len(whole.recorded.answers[r].prompt_ids) for r in learnt)


def test_the_learning_rate_rises_over_the_first_steps_and_gradients_are_clipped(results, monkeypatch):
    given = {}
    monkeypatch.setattr(training, "fit", lambda model, losses, schedule, **rest: given.update(rest, schedule=schedule))
    learning.train(scene(results, target=False), range(48), 100, settings(clip=0.3))
    assert given["schedule"] == training.Schedule(1e-2, 100, warmup=3, floor=0.0)
    assert given["clip"] == 0.3


def test_an_epoch_ends_with_a_short_batch(results, tmp_path):
    _, facts = run(results, tmp_path, epochs=2, batch=20, requests=30)
    assert facts["runs"][0]["updates"] == 2 * 2
    assert facts["runs"][0]["positions"] == 2 * sum(load_pass(results / "answers/toy.train").lengths[:30])


def test_an_epoch_has_every_request_once_in_an_order_of_its_own():
    requests = range(5, 28)
    batches = list(learning.orders(requests, 5, 13, seed=3))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 3] * 2 + [5, 5, 5]
    first, second, third = ([r for batch in batches[start : start + 5] for r in batch] for start in (0, 5, 10))
    assert sorted(first) == sorted(second) == list(requests)
    assert len({*third}) == 15
    assert first != second
    assert third not in (first[:15], second[:15])
    assert batches != list(learning.orders(requests, 5, 13, seed=4))


def test_every_seed_and_step_has_draws_of_its_own(results, monkeypatch):
    seen = []

    def watched(scene, requests, generator):
        seen.append(generator.initial_seed())
        return sources.teacher(scene, requests, generator)

    monkeypatch.setitem(sources.SOURCES, "teacher", watched)
    for seed in range(3):
        learning.train(scene(results, target=False), range(8), 4, settings(batch=2, seed=seed))
    assert len(set(seen)) == 12


@pytest.mark.parametrize("micro_batch", [0, 3])
def test_every_position_weighs_the_same(results, monkeypatch, micro_batch):
    """Whatever the length of its answer: the loss of a step is the mean over positions, not over requests."""
    found, losses, update = scene(results, target=False), [], training.update
    answers = [
        dataclasses.replace(answer, answer_ids=answer.answer_ids[: 1 + number * 5 % 12])
        for number, answer in enumerate(found.recorded.answers)
    ]
    cut = dataclasses.replace(found.recorded, answers=answers, begins=found.recorded.first_positions)
    alone = []
    for request in range(8):
        record = answers[request]
        logits = found.draft.answer_logits([record.prompt_ids], [record.answer_ids])
        alone.append(learning.losses_at("forward_kl", logits, cut.target_logits([request]), torch.tensor([])))
    monkeypatch.setattr(training, "update", lambda *given: losses.append(update(*given)) or losses[-1])
    learning.train(dataclasses.replace(found, recorded=cut), range(8), 1, settings(micro_batch=micro_batch))
    assert len({len(answer.answer_ids) for answer in answers[:8]}) == 8
    assert losses == [pytest.approx(float(torch.cat(alone).mean().detach()), rel=1e-5)]


@pytest.mark.parametrize("source", ["teacher", "student"])
@pytest.mark.parametrize("killed_at", [3, 9])
def test_a_killed_run_ends_with_the_same_weights(results, tmp_path, monkeypatch, source, killed_at):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    chosen = settings(sample_batch=32)
    options = {"sample_batch": 32, "checkpoint": tmp_path / "c.safetensors"}
    straight = scene(results)
    effort = learning.train(straight, range(48), 12, chosen, source, sample_batch=32)
    watch = Mortal(lambda step: None, dies_at=killed_at + 1)
    with pytest.raises(Killed):
        learning.train(scene(results), range(48), 12, chosen, source, **options, watch=watch)
    assert (tmp_path / "c.safetensors").exists() == (source == "teacher" or killed_at > 4)
    steps = []
    resumed = scene(results)
    assert learning.train(resumed, range(48), 12, chosen, source, **options, watch=steps.append) == effort
    assert steps[0] == (killed_at if source == "teacher" else killed_at // 4 * 4)
    assert torch.equal(weights(straight.draft), weights(resumed.draft))


def test_counts_by_token_go_on_with_the_distillation_that_was_killed(results, tmp_path, monkeypatch):
    stage = STAGES["tokens"]
    chosen, inputs = stage.settings(**VALUES), inputs_of(results, stage.inputs)
    straight, _ = stage.run(chosen, inputs, Bench(tmp_path / "straight"))
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    killed = Mortal(training.update, dies_at=10)
    monkeypatch.setattr(training, "update", killed)
    (tmp_path / "killed").mkdir()
    with pytest.raises(Killed):
        stage.run(chosen, inputs, Bench(tmp_path / "killed"))
    resumed, _ = stage.run(chosen, inputs, Bench(tmp_path / "killed"))
    assert killed.calls == 48 + 1
    pd.testing.assert_frame_equal(resumed, straight)


@pytest.mark.parametrize("what", ["nothing", "draft", "answers", "distribution", "length"])
def test_a_checkpoint_of_another_draft_or_target_is_left_aside(results, tmp_path, monkeypatch, what):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    path = tmp_path / "c.safetensors"
    watch = Mortal(lambda step: None, dies_at=4)
    with pytest.raises(Killed):
        learning.train(scene(results), range(48), 6, settings(), checkpoint=path, watch=watch)
    found = scene(results)
    answers = found.recorded.answers
    if what == "draft":
        with torch.no_grad():
            next(found.draft.parameters()).mul_(1.01)
    changed = {
        "answers": {"answers": [dataclasses.replace(answers[0], prompt_ids=[9, 9, 9]), *answers[1:]]},
        "distribution": {"log_probs": found.recorded.log_probs * 1.01},
    }
    found = dataclasses.replace(found, recorded=dataclasses.replace(found.recorded, **changed.get(what, {})))
    found = dataclasses.replace(found, max_new_tokens=found.max_new_tokens - (what == "length"))
    steps = []
    learning.train(found, range(48), 6, settings(), checkpoint=path, watch=steps.append)
    assert steps[0] == (3 if what == "nothing" else 0)


@pytest.mark.parametrize("changes", [{}, {"reads_target": True, "micro_batch": 3}, {"parallel": True}])
def test_probes_survive_a_killed_run(results, tmp_path, monkeypatch, changes):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    straight, _ = run(results, tmp_path / "a", epochs=2, probes=3, **changes)
    monkeypatch.setattr(offline, "measure", Mortal(offline.measure, dies_at=4))
    with pytest.raises(Killed):
        run(results, tmp_path / "b", epochs=2, probes=3, **changes)
    resumed, _ = run(results, tmp_path / "b", epochs=2, probes=3, **changes)
    pd.testing.assert_frame_equal(straight, resumed)


def test_measurements_of_other_held_out_requests_are_left_aside(results, tmp_path, monkeypatch):
    """After a kill the held-out requests became fewer; the draft and what it learns from stayed."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    mine = tmp_path / "mine"
    shutil.copytree(results, mine)
    monkeypatch.setattr(training, "update", Mortal(training.update, dies_at=9))
    with pytest.raises(Killed):
        run(mine, tmp_path / "killed", epochs=2, probes=2)
    keep_held_out(mine, 8)
    again, _ = run(mine, tmp_path / "killed", epochs=2, probes=2)
    straight, _ = run(mine, tmp_path / "straight", epochs=2, probes=2)
    pd.testing.assert_frame_equal(again, straight)


def test_a_checkpoint_of_another_architecture_is_left_aside(results, tmp_path, monkeypatch):
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    path = tmp_path / "c.safetensors"
    small, other = (load_model(results / "models" / name) for name in ("draft", "giant"))
    training.save_checkpoint(path, "same", other, training.adamw(other), 5, {})
    before = weights(small).clone()
    assert training.load_checkpoint(path, "same", small, training.adamw(small), {}) == 0
    assert torch.equal(before, weights(small))


def test_a_loss_that_is_no_number_ends_the_run_in_one_line(results, tmp_path):
    with pytest.raises(
        UserError, match=r"^toy teacher forward_kl, step \d+: the loss is (nan|inf).*lower learning_rate"
    ):
        run(results, tmp_path, learning_rate=1e30, clip=0.0, epochs=3)


def divides_by_zero(draft_logits, target_logits):
    return draft_logits / (1 // 0)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda draft, target: (draft - target).square().mean(), r"returned shape \(\) \(return one number per posi"),
        (lambda draft, target: (draft - target).square(), r"returned shape \(\d+, \d+\)"),
        (lambda draft, target: 1.0, "returned 1.0"),
        (lambda draft, target: (draft - target).square().sum(-1).detach(), "has no gradient"),
        (lambda draft: draft, "raised TypeError: .*takes 1 positional argument"),
        (divides_by_zero, "raised ZeroDivisionError"),
    ],
)
def test_a_wrong_loss_is_refused_by_its_name(results, monkeypatch, loss, message):
    monkeypatch.setitem(learning.LOSSES, "forward_kl", loss)
    with pytest.raises(UserError, match=f"loss forward_kl {message}") as caught:
        learning.train(scene(results, target=False), range(8), 1, settings())
    if loss is divides_by_zero:
        assert (caught.value.file, caught.value.line) == (__file__, loss.__code__.co_firstlineno + 1)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (lambda *given: None, "sample source teacher returned NoneType"),
        (lambda scene, asked, generator: sources.teacher(scene, asked[:4], generator), "returned 4 prompts and 4 answers"),
        (lambda *given: dataclasses.replace(sources.teacher(*given), labels=torch.tensor([1])), "1 labels .*of the .* tokens"),
        (sources.student, r"add its name to LIVE in train/sources.py"),
        (lambda *given: given[0].target.answer_logits([], []), r"test_distill.py:\d+: sample source teacher raised Attr"),
    ],
)  # fmt: skip
def test_a_wrong_sample_source_is_refused_by_its_name(results, monkeypatch, source, message):
    monkeypatch.setitem(sources.SOURCES, "teacher", source)
    with pytest.raises(UserError, match=message):
        learning.train(scene(results, target=False), range(8), 1, settings())


def test_a_draft_larger_than_the_target_is_refused(results, tmp_path):
    with pytest.raises(UserError, match=r"the draft has [\d,]+ parameters, the target [\d,]+"):
        run(results, tmp_path, draft="giant")


@pytest.mark.slow
def test_two_processes_learn_what_one_does(results, tmp_path):
    """Also if a batch has only one request, so that the other process has none."""
    words = plan.flags(settings(batch=47, epochs=3, probes=2))
    paths = ["--answers", results / "answers", "--models", results / "models", "--max-new-tokens", 12]
    launchers = {"one": [], "two": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]}
    for name, launcher in launchers.items():
        command = [sys.executable, *launcher, "-m", "draftlab", "offline", *words, *paths, "--out", tmp_path / name]
        done = subprocess.run(
            list(map(str, command)), env=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (weights(load_model(tmp_path / name / "draft")) for name in launchers)
    start = weights(load_model(results / "models/draft"))
    torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-3)
    assert float((one - start).abs().max()) > 0.01
    assert [read_json(tmp_path / name / "run.json")["runs"][0]["processes"] for name in launchers] == [1, 2]
    counted = [pd.read_csv(tmp_path / name / "rows.csv")["visited"].sum() for name in launchers]
    assert np.isclose(*counted, rtol=0.05)


def test_each_process_tosses_its_own_coins(results, monkeypatch):
    """With the same coins, two requests of a batch would always have the same source."""
    coins = []

    def source(scene, requests, generator):
        coins.append(torch.rand(24, generator=generator).tolist())
        return sources.teacher(scene, requests, generator)

    monkeypatch.setitem(sources.SOURCES, "mix_request", source)
    monkeypatch.setattr("draftlab.train.parallel.PROCESSES", 2)
    for name in ("total", "add_up"):
        monkeypatch.setattr(f"draftlab.train.parallel.{name}", lambda value: value)
    for rank in range(2):
        monkeypatch.setattr("draftlab.train.parallel._state", lambda rank=rank: SimpleNamespace(process_index=rank))
        learning.train(scene(results), range(48), 1, settings(batch=48), "mix_request")
    assert coins[0] != coins[1]


def test_processes_part_before_a_model_is_loaded(results, tmp_path, monkeypatch):
    """Each process is assigned a GPU when it joins; models that were loaded earlier would all be on the first GPU."""
    happened = []
    monkeypatch.setattr("draftlab.train.parallel.PROCESSES", 2)
    monkeypatch.setattr("draftlab.train.parallel._state", lambda: happened.append("joined"))

    def stop(*args, **options):
        happened.append("loaded")
        raise Killed

    monkeypatch.setattr(folders, "load_model", stop)
    with pytest.raises(Killed):
        run(results, tmp_path)
    assert happened == ["joined", "loaded"]


# --- tokens ------------------------------------------------------------------------------------------------------


def test_tokens_are_counted_as_decoding_counts_them(results, tmp_path):
    stage = STAGES["tokens"]
    table, _ = stage.run(stage.settings(**(VALUES | {"epochs": 30})), inputs_of(results), Bench(tmp_path))
    rows, _ = run(results, tmp_path, epochs=30)
    sums = table.groupby("method")[["proposed", "accepted", "generated"]].sum()
    distilled = sums.loc["distilled"]
    assert (distilled["proposed"], distilled["accepted"]) == (rows["visited"].sum(), rows["accepted"].sum())
    assert distilled["generated"] == sum(load_pass(results / "answers/toy.eval").lengths)
    assert (table["accepted"] <= table[["proposed", "generated"]].min(axis=1)).all()
    assert sums.loc["distilled", "accepted"] > sums.loc["original", "accepted"]
    tokenizer = load_tokenizer(results / "models/target")
    assert list(table["text"]) == [tokenizer.decode([token]) for token in table["token"]]


def test_the_token_view_spells_the_answer_and_counts_as_replay_does(results, tmp_path):
    run(results, tmp_path, epochs=30)
    answers = load_pass(results / "answers/toy.eval")
    tokenizer = load_tokenizer(results / "models/target")
    drafts = load_model(results / "models/draft"), load_model(tmp_path / "draft")
    view = tokens.token_view(*drafts, answers, tokenizer, 3)
    record = next(answer for answer in answers.answers if answer.id == view["request_id"])
    gains = []
    for side, draft in zip(("before", "after"), drafts, strict=True):
        shown = [token["token"] for token in view[side] if token["kind"] != "rejected"]
        assert "".join(shown) == tokenizer.decode(record.answer_ids)
        counted = replay(draft, answers, 3)
        place = answers.answers.index(record)
        kinds = [token["kind"] for token in view[side]]
        assert kinds.count("accepted") == counted.accepted[place]
        assert kinds.count("accepted") + kinds.count("rejected") == counted.visited[place]
        gains.append(counted.accepted)
    gain = gains[1] - gains[0]
    assert gain[place] == np.sort(gain)[len(gain) // 2] > 0, "the typical request, and it gains"


def test_the_token_view_shows_a_character_of_several_tokens_with_its_last():
    tokenizer = train_tokenizer(["plain words"] * 5, 262)
    written = np.array(tokenizer.encode("a é日 😀"))
    drafted = np.where(np.arange(len(written)) % 2, written, tokenizer.encode("x"))
    proposals = tokens.Proposals(drafted, written, np.ones(len(written), bool), [len(written)])
    rows = tokens._kinds(proposals, tokenizer)
    assert "".join(row["token"] for row in rows if row["kind"] != "rejected") == "a é日 😀"
    assert {row["token"] for row in rows if row["kind"] != "rejected"} >= {"é", "日", "😀"}
    assert sum(row["kind"] == "rejected" for row in rows) == (drafted != written).sum()


def of_log(**changes):
    return ReplayLog(learning_rate=1e-2, batch=8, update_interval=8, **changes)


def test_a_length_or_threshold_that_is_named_twice_is_replayed_once():
    chosen = of_log(draft_lens=[3, 1, 3], thresholds=[0.3, 0.3])
    assert (chosen.draft_lens, chosen.thresholds) == ([3, 1], [0.3])


def test_the_steps_of_a_draft_after_a_lookup_do_not_depend_on_the_next_request(results):
    held_out = load_pass(results / "answers/toy.eval")
    chosen = of_log(ceiling=0, draft_lens=[6])
    draft = load_model(results / "models/draft")
    steps = [
        replay_log.fixed_lengths("lookup_first", draft, held_out.take(requests), chosen)["steps"]
        for requests in (range(16), reversed(range(16)))
    ]
    assert steps[0].tolist() == steps[1].tolist()[::-1]
    assert steps[0].nunique() > 1


def test_the_steps_of_a_draft_after_a_lookup_are_those_of_a_loop():
    """Also where a block goes on after a rejected token, with a text that is not the answer, or beyond the answer's end."""
    draft, asked = small_llama(16, 1, scale=4.0), [(str(i), prompt) for i, prompt in enumerate(passages()[:6])]
    recorded = record(small_llama(32, 0, scale=4.0), asked, max_new_tokens=12, eos_ids={2})
    chosen = of_log(ceiling=0, draft_lens=[1, 3, 6])
    rows = replay_log.fixed_lengths("lookup_first", draft, recorded, chosen)

    def steps_of(answer, draft_len):
        steps, place, written = 0, 0, answer.answer_ids
        while place < len(written):
            text = [*answer.prompt_ids, *written[:place]]
            for _ in range(draft_len):
                token = Ngrams(text).guess
                if token is None:
                    token, steps = int(draft.answer_logits([text], [[0]]).argmax()), steps + 1
                text.append(token)
            drafted = text[-draft_len:]
            agrees = [a == b for a, b in zip(drafted, written[place:], strict=False)]
            place += [*agrees, False].index(False) + 1
        return steps

    for draft_len in chosen.draft_lens:
        expected = [steps_of(answer, draft_len) for answer in recorded.answers]
        assert rows.loc[rows["draft_len"] == draft_len, "steps"].tolist() == expected


def test_a_draft_that_samples_proposes_tokens_that_the_target_has_cut():
    """vLLM and SGLang apply top-k and top-p to the target alone. A draft like the target has the share of its tokens accepted that these keep."""
    model, asked = small_llama(32, 0, scale=4.0), [(str(i), prompt) for i, prompt in enumerate(passages()[:6])]
    sampling, drawn = Sampling(0.8, top_k=3, top_p=0.95), torch.Generator().manual_seed(4)
    recorded = record(model, asked, max_new_tokens=12, eos_ids={2}, sampling=sampling, generator=drawn)
    rows = replay_log.fixed_lengths("as_it_comes", model, recorded, of_log(ceiling=2, draft_lens=[1]))
    sampled, accepted, optimum = rows[rows["proposal"] == "probabilistic"], [], 0.0
    for number, answer in enumerate(recorded.answers):
        whole = (model.answer_logits([answer.prompt_ids], [answer.answer_ids]).detach() / 0.8).softmax(-1)
        cut = to_probs(recorded.target_logits([number], whole.device, to_sample=True), sampling)
        is_kept = cut.gather(-1, torch.tensor(answer.answer_ids)[:, None])[:, 0] > 0  # all but one, on the border
        kept = (whole * (cut > 0)).sum(-1).double() * is_kept
        begins = 1.0  # blocks of one token each: one begins where the last one, of one token or two, has ended
        accepted.append(0.0)
        for share in kept.tolist():
            accepted[-1] += begins * share
            begins = 1 - begins * share
        optimum += float(optimum_iid(cut, whole.to(cut), 2).sum()) * (number < 2)
    assert sampled["accepted"].tolist() == pytest.approx(accepted, rel=5e-3)
    assert sampled["optimum_2"].sum() == pytest.approx(optimum, rel=5e-3)


def test_lookup_before_an_encoder_decoder_is_replayed():
    target, draft = (hf.new_t5(320, width, 64, 1, 2, torch.Generator().manual_seed(width)) for width in (32, 16))
    asked = [(str(number), [5, 6, 7, 5, 6, 7, number]) for number in range(4)]
    recorded = record(target, asked, max_new_tokens=8, eos_ids={1})
    chosen = of_log(ceiling=0, draft_lens=[3])
    rows = replay_log.fixed_lengths("lookup_first", draft, recorded, chosen)
    assert (rows["emitted"] == recorded.lengths).all()
    assert (rows["steps"] <= rows["drafted"]).all()
