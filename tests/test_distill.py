"""Distillation on a toy pair: what is learnt, which positions the online loss sees, and that nothing depends on chance."""

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_array_equal

from draftlab import distill, experiments
from draftlab.errors import UserError
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.tokenizer import train_tokenizer
from draftlab.replay import Agreement, load_pass, record, walk

VOCAB = 320


def small_llama(hidden, seed):
    # Untied: with one table for reading and writing, random models repeat their last token and agree before any training.
    config = LlamaConfig(VOCAB, hidden, 2 * hidden, 1, 2, 2, 64, tie_word_embeddings=False)
    return Llama(config).initialise(torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """A target with sharp, prompt-dependent answers; a draft that knows nothing; recorded passes of 48 and 16 requests."""
    folder = tmp_path_factory.mktemp("pair")
    target, draft = small_llama(32, 0), small_llama(16, 1)
    with torch.no_grad():
        for weight in target.parameters():
            weight.mul_(6.0 if weight.ndim == 2 else 1.0)
    generator = torch.Generator().manual_seed(2)
    prompts = [(str(i), torch.randint(4, 40, (6,), generator=generator).tolist()) for i in range(64)]
    passes = [record(target, part, max_new_tokens=12, eos_ids={2}) for part in (prompts[:48], prompts[48:])]
    draft.save(folder / "draft")
    tokenizer = train_tokenizer(["some text"] * 4, VOCAB)
    tokenizer.save(folder / "draft")
    for name, found in zip(("train", "held_out"), passes, strict=True):
        found.save(folder / name)
    return folder


def offline_settings(**changes):
    values = {
        "dataset": "toy",
        "sample_source": "teacher",
        "loss": "forward_kl",
        "epochs": 8,
        "batch": 8,
        "learning_rate": 1e-2,
    }
    return experiments.Offline(**(values | changes))


def alpha(rows):
    return rows["overlap"].sum() / rows["visited"].sum()


def run_offline(pair, out, **changes):
    passes = (load_pass(pair / name) for name in ("train", "held_out"))
    return distill.offline(offline_settings(**changes), *passes, pair / "draft", out)


def test_distillation_raises_alpha_on_requests_it_has_seen(pair, tmp_path):
    train = load_pass(pair / "train")
    before, _ = distill.offline(offline_settings(sample_source="none", loss="none"), train, train, pair / "draft", tmp_path / "a")
    after, facts = distill.offline(offline_settings(), train, train, pair / "draft", tmp_path / "b")
    assert alpha(after) > alpha(before) + 0.1
    assert facts == {"updates": 48, "positions": 8 * sum(train.lengths)}


def test_the_original_draft_is_saved_unchanged(pair, tmp_path):
    run_offline(pair, tmp_path, sample_source="none", loss="none")
    assert (tmp_path / "draft/model.safetensors").read_bytes() == (pair / "draft/model.safetensors").read_bytes()
    assert (tmp_path / "draft/tokenizer.json").exists()


def test_the_same_seed_gives_the_same_table_and_another_seed_another(pair, tmp_path):
    first, _ = run_offline(pair, tmp_path / "a")
    again, _ = run_offline(pair, tmp_path / "b")
    other, _ = run_offline(pair, tmp_path / "c", seeds=[1])
    pd.testing.assert_frame_equal(first, again)
    weights = [(tmp_path / name / "draft/model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    assert set(other["seed"]) == {1}


def online_settings(**changes):
    values = {"dataset": "toy", "methods": ["online"], "batch": 8, "learning_rate": 1e-2, "update_interval": 8}
    return experiments.Online(**(values | changes))


def test_alpha_of_a_request_is_measured_before_the_update_that_uses_it(pair):
    stream, held_out = load_pass(pair / "train"), load_pass(pair / "held_out")
    rows, _ = distill.online(online_settings(methods=["online", "static"]), stream, held_out, pair / "draft")
    counts = rows.drop(columns=["method"]).groupby(rows["method"])
    online, static = counts.get_group("online"), counts.get_group("static")
    assert_array_equal(online["accepted"][:8], static["accepted"][:8])  # before the first update
    assert list(online["record"]) == list(range(48))


def test_online_learns_on_a_stream_that_repeats(pair):
    stream = load_pass(pair / "train")
    draft = distill.load_model(pair / "draft")
    for seed in range(6):
        rows, seen = distill.serve(draft, stream, online_settings(), seed=seed)
    static, _ = distill.online(online_settings(methods=["static"]), stream, stream, pair / "draft")
    assert seen > 0
    assert alpha(rows) > alpha(static) + 0.1


def test_an_interval_longer_than_the_stream_is_refused(pair):
    stream = load_pass(pair / "train")
    with pytest.raises(UserError, match="update_interval is 49, the stream has 48"):
        distill.online(online_settings(update_interval=49), stream, stream, pair / "draft")


def learn(flags, lengths, which, draft_len=2):
    values = np.asarray(flags, float)
    live = Agreement(lengths, values, values, values)
    return distill.positions_to_learn(live, walk(live, draft_len), which).tolist()


def test_positions_that_the_online_loss_sees():
    # Two requests of 6 and 2 positions; blocks of two drafted tokens and one of the target's:
    # request 0: accept, accept, bonus | reject | accept, (last, accepted or not) ; request 1: reject | reject
    flags, lengths = [1, 1, 0, 0, 1, 1, 0, 0], [6, 2]
    assert learn(flags, lengths, "all") == list(range(8))
    assert learn(flags, lengths, "rejected") == [3, 6, 7]  # position 2 is the bonus: nothing was drafted there
    assert learn(flags, lengths, "block_end") == [2, 3, 5, 6, 7]
    assert learn(flags, lengths, "repository") == [3, 4, 7]  # one later; past the end of an answer there is nothing


def test_a_stream_without_rejections_teaches_nothing():
    assert learn([1, 1, 1], [3], "rejected") == []
