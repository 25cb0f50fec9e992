"""Online distillation on a toy pair: what is measured before it is learnt, lag, replay, gates, routes, and live serving."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal

from draftlab.core.sampling import Sampling
from draftlab.data.prompts import Prompt
from draftlab.engine.recording import load_pass, on_head, record
from draftlab.engine.replay import Agreement, walk
from draftlab.errors import UserError
from draftlab.files.json_files import read_json, write_jsonl
from draftlab.files.machine import peak_mb
from draftlab.models import load_model
from draftlab.models.eagle import Eagle
from draftlab.report import tidy
from draftlab.stages import STAGES
from draftlab.train import online, traffic, training
from draftlab.train.designs import trim_head
from draftlab.train.folders import Folders
from draftlab.train.learning import losses_at
from draftlab.train.live import live_server
from draftlab.train.online import positions_to_learn
from tests.pair import ROOM, Killed, Mortal, alpha, keep_held_out, run_cell, weights

VALUES = {"dataset": "toy", "batch": 8, "learning_rate": 1e-2, "update_interval": 8, "draft_len": 3}
OTHER = {"toy": "other", "other": "toy"}
STREAM = {"kind": "concatenated", "per_group": 16}
COUNTS = ["accepted", "visited", "overlap", "overlap_repo", "blocks", "emitted"]


def settings(**changes):
    return STAGES["online"].settings(**(VALUES | changes))


def run(results, tmp_path, inner=None, **changes):
    return run_cell("online", results, tmp_path, VALUES | changes, inner)


@pytest.fixture
def stream(results):
    return traffic.whole(load_pass(results / "answers/toy.train"), "toy")


def draft_of(results):
    return load_model(results / "models/draft")


def test_a_trimmed_head_learns_from_its_columns(results, stream):
    draft = trim_head(draft_of(results), range(2, 40))
    lesson, chosen = online.whole_answers(stream, 0, 1)[0], settings()
    record = stream.answers.answers[0]
    target = on_head(stream.answers.target_logits([0]), draft.kept)
    logits = draft.head_logits([record.prompt_ids], [record.answer_ids])
    expected = losses_at(chosen.loss, logits, target, lesson.labels, draft.kept).mean()
    _, loss = online.learn(draft, training.adamw(draft), [lesson], chosen)
    assert loss == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize("lag", [0, 4])
def test_an_embedding_can_stay_as_it_is(results, stream, lag):
    """A draft that learns while it serves, or whose copy does, keeps its embedding too."""
    chosen = settings(keeps_embedding=True, lag=lag)
    draft = Folders(results / "answers", results / "models").draft(chosen)
    before = {name: value.detach().clone() for name, value in draft.named_parameters()}
    online.serve(draft, stream, chosen)
    changed = {name for name, value in draft.named_parameters() if not torch.equal(value, before[name])}
    assert changed == set(before) - {"embed"}


# --- serving -----------------------------------------------------------------------------------------------------


def test_alpha_of_a_request_is_measured_before_the_update_that_uses_it(results, tmp_path):
    table, _ = run(results, tmp_path, inner={"method": {"online": {}, "static": {"learns": False}}})
    learning, static = (table[table["method"] == name].reset_index(drop=True) for name in ("online", "static"))
    assert_array_equal(learning.loc[:7, COUNTS], static.loc[:7, COUNTS])  # before the first update
    assert not learning[COUNTS].equals(static[COUNTS])
    assert list(learning["stream_index"]) == list(range(48))


def test_a_request_never_sees_an_update_from_itself_or_later(results, stream):
    """Whether the last request updates the draft changes no row."""
    other = dataclasses.replace(stream, trains=np.append(np.ones(47, bool), False))
    found = [online.serve(draft_of(results), s, settings(update_interval=1))[0] for s in (stream, other)]
    pd.testing.assert_frame_equal(*(rows.drop(columns=["updates", "update_loss"]) for rows in found))


def test_serving_is_algorithm_1_request_by_request(results, stream):
    """OSD, Algorithm 1, written out: AdamW keeps its moments from update to update, gradients are clipped, and only requests that may
    train count and teach."""
    gated = dataclasses.replace(stream, trains=np.arange(48) % 3 > 0)
    chosen = settings(update_interval=5, clip=0.05, loss_positions="all")
    draft, buffer, rows = draft_of(results), [], []
    optimizer = torch.optim.AdamW(draft.parameters(), chosen.learning_rate, weight_decay=0.0)
    for request in range(48):
        rows.append(online.serve_unchanged(draft, gated.take([request]), chosen.draft_len))
        buffer += [request] if gated.trains[request] else []
        if len(buffer) == chosen.update_interval:
            records = [gated.answers.answers[number] for number in buffer]
            logits = [draft.answer_logits([record.prompt_ids], [record.answer_ids]) for record in records]
            target = gated.answers.target_logits(buffer)
            loss = torch.nn.functional.cross_entropy(torch.cat(logits), target.softmax(-1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(draft.parameters(), chosen.clip)
            optimizer.step()
            buffer = []
    served = draft_of(results)
    found, effort = online.serve(served, gated, chosen)
    assert effort.updates == 6
    assert_array_equal(found[COUNTS], pd.concat(rows)[COUNTS])
    moved = weights(draft) - weights(draft_of(results))
    assert float((weights(served) - weights(draft)).norm() / moved.norm()) < 1e-3


def test_online_learns_on_a_stream_that_repeats(results, stream):
    draft = draft_of(results)
    for _ in range(6):
        rows, effort = online.serve(draft, stream, settings())
    static, _ = online.serve(draft_of(results), stream, settings(update_interval=48))
    assert effort.updates == 6
    assert effort.positions > 0
    assert alpha(rows) > alpha(static) + 0.1


def test_requests_without_a_position_to_learn_cost_no_training(results, stream):
    def server(draft, traffic, requests, *_):
        lessons = [online.Lesson(traffic.answers, r, np.arange(r % 2)) for r in requests]
        return online.serve_unchanged(draft, traffic.take(requests), 3), lessons

    _, effort = online.serve(draft_of(results), stream, settings(), server=server)
    assert effort.positions == 24
    odd = [stream.answers.answers[r] for r in range(1, 48, 2)]
    assert effort.tokens == sum(len(record.prompt_ids) + len(record.answer_ids) for record in odd)


@pytest.mark.parametrize(
    "changes",
    [
        {"replay": 4},
        {"loss_positions": "all", "buffer": 3, "replay": 2},
        {"bin": 4},
        {"reads_target": True, "temperature": 1.0},
        {"parallel": True},
    ],
)
@pytest.mark.parametrize("killed_after", [5, 17, 30])
def test_a_killed_stream_goes_on_to_the_same_bytes(results, tmp_path, monkeypatch, changes, killed_after):
    """Counts, losses, probes and the saved draft are the same as without a kill."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    chosen = {"inner": {"method": {"online": {}}}, "save": "online", "update_interval": 5, **changes}
    served = []

    def replay(draft, traffic, requests, *rest):
        if killed_after in requests and len(served) < 40:
            served.extend(range(40))
            raise Killed
        served.append(requests[0])
        return replay_server(draft, traffic, requests, *rest)

    run(results, tmp_path / "whole", **chosen)
    replay_server = online.replay_server
    monkeypatch.setattr(online, "replay_server", replay)
    with pytest.raises(Killed):
        run(results, tmp_path / "killed", **chosen)
    served_before = len(served)
    run(results, tmp_path / "killed", **chosen)
    assert served[served_before] == killed_after // 5 * 5
    weights_file = "heads" if "reads_target" in changes else "model"
    for name in ("rows.csv", f"draft/{weights_file}.safetensors"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not [file for file in (tmp_path / "killed").iterdir() if file.name.startswith(".")]


def test_probes_of_other_held_out_requests_are_left_aside(results, tmp_path, monkeypatch):
    """After a kill the held-out requests became fewer; the draft and its stream stayed."""
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0.0)
    mine = tmp_path / "mine"
    shutil.copytree(results, mine)
    monkeypatch.setattr(online, "replay_server", Mortal(online.replay_server, dies_at=5))
    with pytest.raises(Killed):
        run(mine, tmp_path / "killed", probes=3)
    keep_held_out(mine, 8)
    again, _ = run(mine, tmp_path / "killed", probes=3)
    straight, _ = run(mine, tmp_path / "straight", probes=3)
    pd.testing.assert_frame_equal(again, straight)


def test_the_draft_at_the_end_of_the_stream_is_kept_with_the_loss_of_every_update(results, tmp_path, stream):
    methods = {"static": {"learns": False}, "online": {}, "online_all": {"loss_positions": "all"}}
    table, _ = run(results, tmp_path, {"method": methods}, save="online")
    draft = draft_of(results)
    online.serve(draft, stream, settings())
    assert torch.equal(weights(load_model(tmp_path / "draft")), weights(draft))
    learnt = table.set_index("method").loc
    assert learnt["static"]["updates"].sum() == 0
    assert list(learnt["online"].query("updates > 0")["stream_index"]) == [7, 15, 23, 31, 39, 47]
    losses = learnt["online_all"].query("updates > 0")["update_loss"]
    assert (losses > 0).all()
    assert losses.iloc[-1] < losses.iloc[0]


def replayed_as_live(draft, same, stream, chosen, server):
    """The rows and the effort of a draft on replay, after its twin was served live with the same result."""
    replayed, effort = online.serve(draft, stream, chosen)
    live, other = online.serve(same, stream, chosen, server=server)
    losses = [rows.pop("update_loss") for rows in (replayed, live)]  # sums of floats, in another order
    pd.testing.assert_series_equal(*losses, rtol=1e-3)
    pd.testing.assert_frame_equal(replayed, live[replayed.columns], check_dtype=False)
    assert effort == other
    return replayed, effort


def test_live_serving_is_replay(results, stream):
    """Same counts, same updates, same weights (but for rounding) at temperature 0; the target makes no second forward pass."""
    target = load_model(results / "models/target")
    forwards = []
    real = target.answer_logits
    target.answer_logits = lambda *a, **k: forwards.append(1) or real(*a, **k)
    server = live_server(target, ROOM, {2})
    for which, buffer in (("rejected", 0), ("all", 0), ("block_end", 0), ("repository", 0), ("all", 3)):
        chosen = settings(loss_positions=which, replay=buffer, buffer=3 * buffer)
        drafts = [draft_of(results), draft_of(results)]
        _, effort = replayed_as_live(*drafts, stream, chosen, server)
        assert effort.positions > 0
        # AdamW makes a step of any gradient, however close to zero, so single weights may differ.
        served, expected = (weights(draft) for draft in drafts)
        assert float((served - expected).norm() / expected.norm()) < 0.001
    assert not forwards


def reader_of(results):
    """A draft that reads its target's states, and knows some use of them."""
    model = Eagle(draft_of(results), load_model(results / "models/target"), 3)
    with torch.no_grad():
        for weight in (model.from_target, model.from_own):
            weight.normal_(std=0.5, generator=torch.Generator().manual_seed(0))
    return model


@pytest.mark.parametrize("loss_positions", ["rejected", "block_end"])
def test_live_serving_is_replay_for_a_draft_that_reads_the_targets_states(results, stream, loss_positions):
    chosen = settings(loss_positions=loss_positions)
    model, other = reader_of(results), reader_of(results)
    replayed, effort = replayed_as_live(model, other, stream, chosen, live_server(other.target, ROOM, {2}))
    assert effort.target_tokens == effort.tokens > 0, "the target reads what the draft learns from"
    assert 0 < replayed["accepted"].sum() < replayed["visited"].sum()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_stream_is_served_by_a_draft_that_depends_on_its_block(results, tmp_path, temperature):
    """With all that a stream can ask for: probes, a lag, distillation before, old requests again, parts of an update."""
    options = {"temperature": temperature, "probes": 2, "warm_on": "stream", "warm_share": 0.25, "lag": 3}
    options |= {"replay": 2, "micro_batch": 3, "keeps_embedding": True}
    kinds = {"alone": {}, "reads": {"reads_target": True}, "parallel": {"parallel": True}}
    rows, _ = run(results, tmp_path, {"method": kinds | {"both": kinds["reads"] | kinds["parallel"]}}, **options)
    counted = {name: part[COUNTS].sum() for name, part in rows.groupby("method")}
    assert len({float(counts["emitted"]) for counts in counted.values()}) == 1
    assert len({tuple(part["overlap"]) for _, part in rows.groupby("method")}) == 4


def test_updates_reach_a_served_draft_that_reads_the_targets_states(results, stream):
    """After the last update has arrived, the served draft has the weights of one that learnt the same lessons without a lag."""
    served, fresh = reader_of(results), reader_of(results)
    before = weights(served).clone()
    chosen = settings(loss_positions="all", update_interval=len(stream) - 4)
    online.serve(served, stream, chosen.model_copy(update={"lag": 4}))
    online.serve(fresh, stream, chosen)
    assert torch.equal(weights(served), weights(fresh))
    assert not torch.equal(weights(served), before)


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_live_serving_agrees_with_replay_when_sampling(results, temperature):
    target = load_model(results / "models/target")
    asked = [(answer.id, answer.prompt_ids) for answer in load_pass(results / "answers/toy.train").answers]
    generator = torch.Generator().manual_seed(7)
    limits = {"max_new_tokens": ROOM, "eos_ids": {2}}
    recorded = record(target, asked, sampling=Sampling(temperature), generator=generator, **limits)
    stream = traffic.whole(recorded, "toy")
    still = settings(update_interval=48)
    expected, _ = online.serve(draft_of(results), stream, still)
    server = live_server(target, ROOM, {2})
    live = pd.concat(
        online.serve(draft_of(results), stream, still.model_copy(update={"seed": seed}), server=server)[0]
        for seed in range(8)
    )
    accepted, overlap = live["accepted"].sum() / live["visited"].sum(), alpha(expected)
    noise = 4 * np.sqrt(overlap * (1 - overlap) / live["visited"].sum())
    assert abs(accepted - overlap) < noise + 0.01


def test_a_lesson_holds_the_tokens_as_they_were_sampled(results):
    warm = load_pass(results / "answers/toy.train.t1")
    request = next(r for r in range(48) if [*warm.target_logits([r]).argmax(-1)] != warm.answers[r].answer_ids)
    where = np.arange(len(warm.answers[request].answer_ids))[::2]
    assert online.Lesson(warm, request, where).labels.tolist() == warm.answers[request].answer_ids[::2]


@pytest.mark.parametrize("micro_batch", [0, 1, 3])
def test_every_chosen_position_weighs_the_same(results, stream, monkeypatch, micro_batch):
    """Whatever the length of its answer: the loss of an update is the mean over positions, not over requests or micro-batches."""
    lengths = [12, 1, 5, 8]
    answers = [
        dataclasses.replace(answer, answer_ids=answer.answer_ids[:length])
        for answer, length in zip(stream.answers.answers, lengths, strict=False)
    ]
    cut = dataclasses.replace(stream.answers, answers=answers, begins=stream.answers.first_positions[:4])
    lessons = [online.Lesson(cut, request, np.arange(length)[::2]) for request, length in enumerate(lengths)]
    by_hand, draft, chosen = draft_of(results), draft_of(results), settings(micro_batch=micro_batch, clip=0)
    alone = []
    for lesson in lessons:
        record = cut.answers[lesson.request]
        logits = by_hand.answer_logits([record.prompt_ids], [record.answer_ids])[::2]
        alone.append(losses_at(chosen.loss, logits, lesson.target_logits(), lesson.labels))
    mean = torch.cat(alone).mean()
    mean.backward()
    read, forward = [], online.answer_logits
    monkeypatch.setattr(online, "answer_logits", lambda draft, *of: read.append(len(of[0])) or forward(draft, *of))
    positions, loss = online.learn(draft, training.adamw(draft), lessons, chosen)
    assert positions == 6 + 1 + 3 + 4
    assert loss == pytest.approx(mean.item(), rel=1e-5)
    for weight, same in zip(draft.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, same.grad, atol=1e-6, rtol=1e-3)
    assert read == {0: [4], 1: [1, 1, 1, 1], 3: [3, 1]}[micro_batch]


def test_a_stream_without_rejections_teaches_nothing(results, stream):
    lesson = online.Lesson(stream.answers, 0, np.array([], int))
    assert online.learn(draft_of(results), None, [lesson], settings()) == (0, 0.0)


# --- what the loss sees ------------------------------------------------------------------------------------------


def learn(starts, rejected, lengths, which):
    flags = (np.array(values, bool) for values in (starts, rejected))
    return np.flatnonzero(positions_to_learn(lengths, *flags, which)).tolist()


def test_positions_that_the_online_loss_sees():
    # Two requests of 6 and 2 positions; blocks of two drafted tokens and one of the target's:
    # request 0: accept, accept, bonus | reject | accept, (last, accepted or not) ; request 1: reject | reject
    starts, rejected, lengths = [1, 0, 0, 1, 1, 0, 1, 1], [0, 0, 0, 1, 0, 0, 1, 1], [6, 2]
    assert learn(starts, rejected, lengths, "all") == list(range(8))
    assert learn(starts, rejected, lengths, "rejected") == [3, 6, 7], "position 2 is the bonus: nothing was drafted"
    assert learn(starts, rejected, lengths, "block_end") == [2, 3, 5, 6, 7]
    assert learn(starts, rejected, lengths, "repository") == [3, 4, 7], "one later, but never past the end of an answer"


@pytest.mark.parametrize("which", ["rejected", "block_end"])
def test_lessons_from_sampled_answers_are_those_of_one_run(which):
    """Each position draws whether its token is accepted. Its counts are the expected ones all the same."""
    lengths, ratio = [40, 25], np.random.default_rng(1).random(65)
    agree = Agreement(lengths, ratio, ratio, ratio)
    sampled = SimpleNamespace(answers=SimpleNamespace(sampling=Sampling(1.0)))
    chosen = settings(loss_positions=which)
    rows, lessons = online.served_by(agree, sampled, [0, 1], chosen, np.random.default_rng(2))
    flags = np.split(np.random.default_rng(2).random(65) < ratio, [40])
    for lesson, accepts, length in zip(lessons, flags, lengths, strict=True):
        expected, at = [], 0
        while at < length:
            block = accepts[at : at + chosen.draft_len].tolist()
            end = at + (block.index(False) if False in block else len(block))
            if which == "block_end":
                expected.append(min(end, length - 1))
            elif False in block:
                expected.append(end)
            at = end + 1
        assert lesson.where.tolist() == expected
    assert_array_equal(rows["blocks"], walk(agree, chosen.draft_len).blocks)


# --- lag, replay, gates ------------------------------------------------------------------------------------------


def test_stretches_cut_at_updates_and_at_their_arrival():
    found = list(online.stretches(np.ones(10, bool), 4, 0))
    assert [(s.start, s.end, s.updates) for s in found] == [(0, 4, True), (4, 8, True), (8, 10, False)]
    found = list(online.stretches(np.ones(10, bool), 4, 3))
    assert [(s.end, s.updates, s.arrives) for s in found] == [
        (4, True, False), (7, False, True), (8, True, False), (10, False, False),
    ]  # fmt: skip
    gated = np.array([0, 1, 0, 1, 1, 0], bool)
    assert [(s.end, s.updates) for s in online.stretches(gated, 2, 0)] == [(4, True), (6, False)]
    probed = online.stretches(np.ones(10, bool), 4, 0, probes=[4, 6])
    assert [(s.end, s.updates) for s in probed] == [(4, True), (6, False), (8, True), (10, False)]


def test_a_probe_sees_the_updates_from_the_requests_before_it_alone(results, stream):
    """At 20 requests, that of the first 16; at 24, that of all 24; and the stream is served as without probes."""
    draft, seen = draft_of(results), {}

    def probe(after):
        seen[after] = weights(draft).clone()
        return pd.DataFrame({"after": [after]})

    rows, _ = online.serve(draft, stream, settings(), probe=probe, probes=[16, 20, 24])
    assert list(rows["after"].dropna()) == [16, 20, 24]
    assert torch.equal(seen[16], seen[20])
    assert not torch.equal(seen[20], seen[24])
    plain, _ = online.serve(draft_of(results), stream, settings())
    assert_array_equal(rows[rows["after"].isna()][COUNTS], plain[COUNTS])


@pytest.mark.parametrize("lag", [3, 8, 20])
def test_an_update_reaches_the_server_lag_requests_later(results, stream, lag):
    now, _ = online.serve(draft_of(results), stream, settings())
    late, effort = online.serve(draft_of(results), stream, settings(lag=lag))
    static, _ = online.serve(draft_of(results), stream, settings(update_interval=48))
    first = 8 + lag
    assert_array_equal(late.loc[: first - 1, COUNTS], static.loc[: first - 1, COUNTS])
    assert not late.loc[first:, COUNTS].equals(static.loc[first:, COUNTS])
    assert effort.updates == 6
    assert not late[COUNTS].equals(now[COUNTS])


def test_a_replay_buffer_adds_older_requests(results, stream, monkeypatch):
    """An update learns from the requests since the last one, once each, and from some of those before."""
    learnt, learn = [], online.learn

    def watched(learner, optimizer, lessons, settings):
        learnt.append([lesson.request for lesson in lessons])
        return learn(learner, optimizer, lessons, settings)

    monkeypatch.setattr(online, "learn", watched)
    assert set(stream.answers.lengths) == {ROOM}
    for changes, older in (
        ({}, [0, 0, 0, 0, 0, 0]),
        ({"replay": 4}, [0, 4, 4, 4, 4, 4]),
        ({"replay": 4, "buffer": 2}, [0, 2, 2, 2, 2, 2]),
        ({"replay": 30}, [0, 8, 16, 24, 30, 30]),
    ):
        learnt.clear()
        _, effort = online.serve(draft_of(results), stream, settings(loss_positions="all", **changes))
        assert effort.positions == ROOM * (48 + sum(older))
        for number, (requests, more) in enumerate(zip(learnt, older, strict=True)):
            assert requests[:8] == list(range(8 * number, 8 * number + 8))
            kept = range(max(0, 8 * number - changes.get("buffer", 48)), 8 * number)
            assert len(requests[8:]) == more == len({*requests[8:]} & {*kept})


def test_requests_behind_a_gate_are_served_and_not_learnt(results, stream):
    closed = dataclasses.replace(stream, trains=np.zeros(48, bool))
    draft = draft_of(results)
    before = weights(draft).clone()
    rows, effort = online.serve(draft, closed, settings())
    assert len(rows) == 48
    assert effort.updates == 0
    assert torch.equal(before, weights(draft))


def test_seeds_give_other_orders_of_the_same_requests(stream):
    again, other = stream.reordered(0), stream.reordered(1)
    ids = [[answer.id for answer in t.answers.answers] for t in (stream, again, other)]
    assert ids[0] == ids[1] != ids[2]
    assert sorted(ids[0]) == sorted(ids[2])
    blocks, gate = np.arange(48) // 16, np.arange(48) % 3 > 0
    mixed = dataclasses.replace(stream, group=["a", "b"] * 24, segment=blocks, trains=gate).reordered(1)
    names = [answer.id for answer in mixed.answers.answers]
    assert set(names[::2]) == set(ids[0][::2])
    assert_array_equal(mixed.segment, blocks, "blocks and gates stay where they are")
    assert_array_equal(mixed.trains, gate)


def test_rows_name_their_request_in_every_order(results, tmp_path, streams):
    """An interval draws requests with all their seeds, not places of the stream, which hold another request in each seed."""
    table, _ = mixed(results, tmp_path, streams, learns=False, probes=1, inner={"seed": [0, 1]})
    first, second = (rows.set_index(["split", "request_id"])[[*COUNTS, "group"]] for _, rows in table.groupby("seed"))
    pd.testing.assert_frame_equal(first, second, check_like=True)  # a draft that learns nothing counts a request alike
    assert not table[table["seed"] == 1]["request_id"].is_monotonic_increasing
    served = table[table["split"] == "train"]
    assert sorted(served["request_id"].unique()) == [*range(16), *range(48, 64)]  # 48 answers of toy come first
    assert sorted(table[table["split"] == "eval"]["request_id"].unique()) == list(range(32))
    assert tidy.resampled_column(table) == "request_id"


# --- streams of several datasets ---------------------------------------------------------------------------------


@pytest.fixture
def streams(results, tmp_path):
    """The requests of toy and other; every fourth served request reads like a request of the other class."""

    def write(dataset, split):
        path = tmp_path / "data" / dataset / f"{split}.jsonl"
        answers = load_pass(results / f"answers/{dataset}.{split}").answers
        likes = [OTHER[dataset] if split == "train" and number % 4 == 0 else dataset for number in range(len(answers))]
        write_jsonl(path, [
            Prompt(answer.id, dataset, split, f"a question that is {like}", None, {"time": number + 100 * (dataset == "other")})
            for number, (answer, like) in enumerate(zip(answers, likes, strict=True))
        ])  # fmt: skip
        return path

    parts = {"requests": "train", "held_out": "eval"}
    return {part: [write(dataset, split) for dataset in OTHER] for part, split in parts.items()}


def mixed(results, tmp_path, streams, inner=None, **changes):
    """A stream of 16 requests of toy and then 16 of other; the rest is set aside."""
    values = {"dataset": "", "of": ["toy", "other"], "stream": STREAM, "aside": 32, "update_interval": 4}
    return run_cell("online", results, tmp_path / "cell", VALUES | values | changes, inner, **streams)


def test_a_stream_carries_its_groups(results, tmp_path, streams):
    table, facts = mixed(results, tmp_path, streams)
    assert list(table["group"]) == ["toy"] * 16 + ["other"] * 16
    assert facts["runs"][0]["updates"] == 8
    passes = [load_pass(results / f"answers/{d}.train") for d in ("toy", "other")]
    expected = [length for found in passes for length in found.lengths[:16]]
    assert list(table["emitted"]) == expected


def test_the_seeds_of_a_stream_in_time_move_neighbours_alone(results, tmp_path, streams):
    stream = {"stream": STREAM | {"kind": "by_time"}, "learns": False, "bin": 4, "inner": {"seed": [0, 1]}}
    table, _ = mixed(results, tmp_path, streams, **stream)
    courses = table.sort_values("stream_index").groupby("seed")["request_id"].apply(list)
    assert courses[0] == courses[1]
    table, _ = mixed(results, tmp_path, streams, **(stream | {"stream": STREAM | {"kind": "shuffled"}}))
    courses = table.sort_values("stream_index").groupby("seed")["request_id"].apply(list)
    assert courses[0] != courses[1]


def test_separate_drafts_learn_from_their_own_requests(results, tmp_path, streams):
    inner = {"drafts": ["shared", "by_group", "by_route"]}
    table, facts = mixed(results, tmp_path, streams, inner=inner)
    assert [run["updates"] for run in facts["runs"]] == [8, 8, 8]
    shared, own, routed = (table[table["drafts"] == name].reset_index(drop=True) for name in inner["drafts"])
    assert list(own["stream_index"]) == list(range(32))
    assert_array_equal(own.loc[:15, COUNTS], shared.loc[:15, COUNTS])  # toy comes first: the other draft is still fresh
    assert not own.loc[16:, COUNTS].equals(shared.loc[16:, COUNTS])
    assert not routed[COUNTS].equals(own[COUNTS])
    assert not own["misrouted"].any()
    assert list(routed["misrouted"]) == [int(place % 4 == 0) for place in range(16)] * 2
    assert read_json(tmp_path / "cell/routing.json")["correct"] == 24
    alone = traffic.whole(load_pass(results / "answers/other.train"), "other").take(range(16))
    expected, _ = online.serve(draft_of(results), alone, settings(update_interval=4))
    assert_array_equal(own.loc[16:, COUNTS], expected[COUNTS])


def test_static_drafts_are_distilled_on_requests_kept_aside(results, tmp_path, streams):
    inner = {"warm_share": [0.25, 1.0]}
    table, facts = mixed(results, tmp_path, streams, learns=False, warm_on="aside", warm_epochs=2, inner=inner)
    assert [run["updates"] for run in facts["runs"]] == [2 * 2, 2 * 8]
    assert facts["runs"][0]["positions"] < facts["runs"][1]["positions"] / 3
    assert len(table) == 64


def test_separate_drafts_are_measured_on_the_held_out_requests_of_their_class(results, tmp_path, streams):
    inner = {"drafts": ["shared", "by_group"]}
    table, facts = mixed(results, tmp_path, streams, learns=False, warm_on="aside", measured_on="held_out", inner=inner)
    shared, own = (table[table["drafts"] == name].reset_index(drop=True) for name in inner["drafts"])
    assert list(own["stream_index"]) == list(shared["stream_index"]) == list(range(32))
    assert_array_equal(own["group"], shared["group"])
    assert not own[COUNTS].equals(shared[COUNTS])
    assert [run["updates"] for run in facts["runs"]] == [8, 8]


def test_a_draft_is_not_measured_on_what_it_was_distilled_on(results, tmp_path):
    table, facts = run(results, tmp_path, learns=False, warm_on="stream", warm_share=0.25, warm_fair=True)
    assert list(table["stream_index"]) == list(range(12, 48))
    assert facts["runs"][0]["updates"] == 6  # as many as an online draft makes
    larger = {"learns": False, "warm_on": "stream", "warm_share": 0.25, "warm_fair": True, "batch": 16}
    _, other = run(results, tmp_path / "other", **larger)
    assert other["runs"][0]["positions"] == facts["runs"][0]["positions"], "of as many requests each, not of batch"


def test_probes_on_held_out_requests(results, tmp_path, streams):
    table, _ = mixed(
        results, tmp_path, streams, probes=2, inner={"method": {"online": {}, "static": {"learns": False}}}
    )
    probes = table[table["split"] == "eval"]
    assert sorted(probes["after"].unique()) == [16, 32]
    assert probes.groupby(["method", "after", "group"]).size().eq(16).all()
    static = probes[probes["method"] == "static"]
    assert_array_equal(*(static[static["after"] == after][COUNTS] for after in (16, 32)))
    learnt = probes[probes["method"] == "online"]
    early, late = (learnt[learnt["after"] == after].reset_index()[COUNTS] for after in (16, 32))
    assert not early.equals(late)


def test_bins_sum_requests(results, tmp_path):
    whole, _ = run(results, tmp_path)
    binned, _ = run(results, tmp_path, bin=16)
    assert list(binned["stream_index"]) == list(binned["request_id"]) == [0, 16, 32]
    assert list(binned["requests"]) == [16, 16, 16]
    assert_array_equal(binned[COUNTS].sum(), whole[COUNTS].sum())


def test_a_bin_holds_the_same_requests_in_every_seed(results, tmp_path, streams):
    """An interval draws bins with all their seeds: a draft that learns nothing counts the same in each."""
    table, _ = mixed(results, tmp_path, streams, learns=False, probes=2, bin=4, inner={"seed": [0, 1]})
    keys = ["split", "after", "group", "request_id"]
    first, second = (rows.groupby(keys)[[*COUNTS, "requests"]].sum() for _, rows in table.groupby("seed"))
    pd.testing.assert_frame_equal(first, second)
    assert set(first["requests"]) == {4}
    places = table[table["split"] == "train"].groupby("seed")["stream_index"].apply(list)
    orders = table[table["split"] == "train"].sort_values("stream_index").groupby("seed")["request_id"].apply(list)
    assert orders[0] != orders[1]
    assert set(places[0]) == set(places[1]) == set(range(0, max(places[0]) + 1, 4))


def test_a_stream_in_time_keeps_its_course(stream):
    """Neighbours change places; nothing else does."""
    timed = dataclasses.replace(stream, group=["a", "b"] * 24).reordered(1, 6, in_time=True)
    bins = timed.request // 2 // 6
    assert_array_equal(bins, np.arange(48) // 2 // 6)
    assert_array_equal(timed.request % 2, np.arange(48) % 2)
    assert not np.array_equal(timed.request, np.arange(48))


def test_peak_memory_is_in_mb_on_every_system(monkeypatch):
    for system, counted in (("linux", 300 * 1024), ("darwin", 300 * 1024**2)):
        monkeypatch.setattr("sys.platform", system)
        monkeypatch.setattr("resource.getrusage", lambda who, counted=counted: SimpleNamespace(ru_maxrss=counted))
        assert peak_mb() == 300


# --- what is refused ---------------------------------------------------------------------------------------------


def test_an_interval_longer_than_the_stream_is_refused(results, tmp_path):
    with pytest.raises(UserError, match="update_interval is 49, but the stream has 48"):
        run(results, tmp_path, update_interval=49)
    with pytest.raises(UserError, match="update_interval is 25, but the stream has 24"):
        run(results, tmp_path, update_interval=25, warm_on="stream", warm_share=0.5)


def test_a_share_is_the_decimal_number_as_written():
    assert (traffic.part_of(100, 0.07), traffic.part_of(180, 0.55), traffic.part_of(24, 0.1)) == (7, 99, 3)


@pytest.mark.parametrize("learns", [True, False])
def test_a_draft_distilled_on_the_whole_stream_has_nothing_left_to_serve(results, tmp_path, streams, learns):
    changes = {"warm_on": "stream", "warm_share": 1.0, "update_interval": 1, "learns": learns}
    with pytest.raises(UserError, match="distilled on all 48 requests of the stream, and none is left"):
        run(results, tmp_path, **changes)
    with pytest.raises(UserError, match="distilled on all 16 requests of toy, and none is left"):
        mixed(results, tmp_path, streams, drafts="by_group", **changes)
    held_out, _ = run(results, tmp_path, **changes | {"learns": False}, measured_on="held_out")
    assert len(held_out) == 16


def test_a_request_without_a_recorded_answer_has_no_place_in_a_stream(results, tmp_path, streams):
    table, _ = mixed(results, tmp_path, streams, of=["toy"], learns=False)
    assert list(table["group"]) == ["toy"] * 16


def test_a_class_that_sets_nothing_aside_is_refused(results, tmp_path, streams, stream):
    short = streams["requests"][1]
    short.write_text("".join(short.read_text().splitlines(keepends=True)[:16]))
    assert set(mixed(results, tmp_path, streams, drafts="by_group")[0]["group"]) == {"toy", "other"}
    with pytest.raises(UserError, match=r"requests of each dataset after 16 that are skipped, but other has 16"):
        mixed(results, tmp_path, streams, drafts="by_group", warm_on="aside", learns=False)
    assert stream.first(0.25, "toy") == stream.first(0.25) == list(range(12))
    assert dataclasses.replace(stream, group=["a", "b"] * 24).first(0.1) == list(range(6)), "3 of 24, rounded up"
    with pytest.raises(UserError, match="no request of class 'other' was kept aside"):
        stream.first(1.0, "other")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": ""}, "a dataset, or a stream"),
        ({"stream": {"kind": "shuffled"}}, "a dataset, or a stream"),
        ({"dataset": "", "of": ["toy"], "stream": {"kind": "shufled"}}, r"(?s)stream\.kind.*'shuffled'"),
        ({"dataset": "", "of": ["toy"], "stream": {"kind": "shuffled", "perod": 3}}, "perod"),
        ({"warm_on": "aside"}, "aside"),
        # a stream of all requests leaves none: the draft would be measured on those that it was distilled on
        (
            {"dataset": "", "of": ["toy"], "stream": {"kind": "shuffled"}, "aside": 8, "warm_on": "aside"},
            "set per_group",
        ),
        ({"measured_on": "held_out"}, "set learns to false"),  # it would be measured before it learnt anything
        ({"live": True, "learns": False}, "leave live out"),
        ({"loss": "none"}, "loss none is for a draft that is not trained"),
        ({"loss": "none", "learns": False, "warm_on": "stream"}, "loss none is for a draft that is not trained"),
        ({"lag": -1}, "greater than or equal to 0"),
        ({"loss_positions": "wrong"}, "'rejected', 'all', 'block_end' or 'repository'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        settings(**change)


def test_a_draft_that_never_learns_needs_no_loss():
    assert settings(loss="none", learns=False).loss == "none"
    for change in ({"sample_source": "none"}, {"epochs": 0}):
        STAGES["offline"].settings(
            dataset="toy", **{"batch": 8, "learning_rate": 1e-2, "epochs": 1, "loss": "none"} | change
        )
    with pytest.raises(ValueError, match="loss none is for a draft that is not trained"):
        STAGES["offline"].settings(dataset="toy", batch=8, learning_rate=1e-2, epochs=1, loss="none")
