"""Specialists as non-identical drafts: who learns what, and what is compared."""

import shutil

import pytest
import torch
from pandas.testing import assert_frame_equal

from draftlab.engine import speculate as engine
from draftlab.errors import UserError
from draftlab.files.atomic import SEAL
from draftlab.models import load_pair
from draftlab.stages import online_multidraft
from draftlab.stages._stage import Bench
from draftlab.train import online, training
from tests.pair import Killed, Mortal, make_results

TOPICS = ["toy", "other"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A toy pair, and its recorded answers to two topics whose prompts share no token."""
    folder = tmp_path_factory.mktemp("topics")
    make_results(folder)
    return folder


@pytest.fixture
def asked(monkeypatch):
    """The target, the drafts and the options of every call of the loop."""
    calls, speculate = [], engine.speculate

    def watched(target, draft, prompts, **options):
        calls.append((target, draft, options))
        return speculate(target, draft, prompts, **options)

    monkeypatch.setattr(engine, "speculate", watched)
    return calls


def run(folders, draft="draft", dtype="float32", parts=None, **changes):
    values = {"topics": TOPICS, "stream": 32, "requests": 8, "update_interval": 2, "learning_rate": 1e-2}
    values |= {"draft_len": 3, "max_new_tokens": 10, "seeds": [0]}
    settings = online_multidraft.Settings(**(values | changes))
    models = {role: folders / "models" / name for role, name in (("target", "target"), ("draft", draft))}
    inputs = online_multidraft.Inputs(**models, answers=folders / "answers", dtype=dtype)
    return online_multidraft.run(settings, inputs, Bench(folders, parts=parts))[0]


def test_every_arrangement_is_measured_on_every_request_of_every_topic(folders):
    rows = run(folders)
    counts = rows.groupby(["dataset", "drafts", "num_drafts", "scheme"]).size()
    assert set(counts) == {8}
    # Four arrangements of two sequences by two schemes, two of one sequence by one.
    assert len(counts) == len(TOPICS) * (4 * 2 + 2)
    assert (rows["emitted"] >= rows["blocks"]).all()


def test_a_stream_longer_than_its_answers_is_refused(folders):
    with pytest.raises(UserError, match="only 48 answers of toy for 49 requests"):
        run(folders, stream=49)


def test_settings_with_which_a_draft_learns_nothing_are_refused(folders):
    with pytest.raises(ValueError, match="update_interval is 33, but a specialist serves 32 requests"):
        run(folders, update_interval=33)
    with pytest.raises(ValueError, match="loss none is for a draft that is not trained"):
        run(folders, loss="none")


def test_the_shared_draft_and_the_specialists_together_see_the_same_requests_and_make_as_many_updates(
    folders, monkeypatch
):
    served = []
    serve = online.serve

    def watched(draft, traffic, settings, **options):
        found = serve(draft, traffic, settings, **options)
        served.append((sorted(set(traffic.group)), len(traffic), found[1].updates))
        return found

    monkeypatch.setattr(online, "serve", watched)
    run(folders, seeds=[0, 1], schemes=["specinfer"])
    assert served == [(["other", "toy"], 64, 32), (["toy"], 32, 16), (["other"], 32, 16)] * 2


def test_each_arrangement_asks_the_models_that_it_names(folders, asked):
    run(folders, schemes=["specinfer"])
    by_topic = [asked[:6], asked[6:]]
    for topic, calls in enumerate(by_topic):
        original, shared_one, shared, routed_one, routed, specialists = (draft for _, draft, _ in calls)
        assert [options["num_drafts"] for _, _, options in calls] == [2, 1, 2, 1, 2, 2]
        assert shared is shared_one is by_topic[0][1][1]
        assert routed is routed_one is specialists[topic]
        assert specialists[0] is not specialists[1]
        models = [original, shared, *specialists]
        learnt = {float(next(model.parameters()).detach().double().abs().sum()) for model in models}
        assert len(learnt) == 4  # each learnt something else


def test_a_draft_larger_than_the_target_is_refused(folders):
    larger = r"giant: the draft has [\d,]+ parameters, the target [\d,]+ \(use a draft smaller"
    with pytest.raises(UserError, match=larger):
        run(folders, draft="giant")
    with pytest.raises(UserError, match=larger):  # what pairs and live decoding begin with
        load_pair(folders / "models/target", folders / "models/giant")


def test_damaged_weights_are_one_clear_message(folders, tmp_path):
    shutil.copytree(folders / "models/draft", tmp_path / "draft", ignore=shutil.ignore_patterns(SEAL))
    (tmp_path / "draft/model.safetensors").write_bytes(b"{")
    with pytest.raises(UserError, match=r"model.safetensors: damaged weights"):
        load_pair(folders / "models/target", tmp_path / "draft")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_target_has_the_number_type_of_its_pair_and_drafts_learn_in_float32(folders, asked, dtype):
    run(folders, schemes=["specinfer"], dtype=dtype)
    assert {target.embed.dtype for target, _, _ in asked} == {getattr(torch, dtype)}
    models = [model for _, draft, _ in asked for model in (draft if isinstance(draft, list) else [draft])]
    assert {model.embed.dtype for model in models} == {torch.float32}


def test_requests_are_decoded_in_batches(folders, asked):
    few, all_at_once = (run(folders, schemes=["specinfer"], batch=batch, temperature=1e-6) for batch in (3, 0))
    assert {options["batch"] for _, _, options in asked} == {3, None}
    assert_frame_equal(few, all_at_once)


@pytest.mark.parametrize(
    ("module", "name", "once"), [(online, "serve", 6), (online, "learn", 128), (engine, "speculate", 40)]
)
def test_a_killed_job_learns_and_decodes_nothing_twice(folders, tmp_path, monkeypatch, module, name, once):
    whole = run(folders, seeds=[0, 1])
    monkeypatch.setattr(training, "CHECKPOINT_SECONDS", 0)
    killed = Mortal(getattr(module, name), dies_at=5)
    monkeypatch.setattr(module, name, killed)
    with pytest.raises(Killed):
        run(folders, seeds=[0, 1], parts=tmp_path)
    assert_frame_equal(run(folders, seeds=[0, 1], parts=tmp_path), whole)
    assert killed.calls == once + 1
