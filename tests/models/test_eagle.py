"""EAGLE drafts: what they read, along records and as learners; ``test_parallel_draft`` has them in the loop."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import rms_norm

from draftlab.core.sampling import Sampling
from draftlab.core.tree import Tree
from draftlab.core.verify import VERIFIERS
from draftlab.engine.generate import generate
from draftlab.engine.recording import record
from draftlab.engine.replay import agree_along, at_its_depth, replay, walk
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.models import load_model
from draftlab.models.config import HEADS
from draftlab.models.eagle import Eagle
from draftlab.models.llama import Llama
from draftlab.models.medusa import Medusa
from draftlab.stages.offline import Settings as Offline
from draftlab.train.designs import trim_head
from draftlab.train.learning import train
from draftlab.train.sources import Scene
from draftlab.train.trimmed_head import kept_by
from tests.engine.test_speculate import EOS, TARGET

LEARNS = Offline(dataset="toy", epochs=1, batch=3, learning_rate=1e-2)
PROMPTS = [[1], [1, 2], *([1, 2, 3, *range(5, 6 + i % 5), 7 + i] for i in range(7))]


def narrow(vocab: int = 40) -> Llama:
    """A draft of another width and depth than the target's."""
    sizes = {"hidden_size": 12, "intermediate_size": 24, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}
    config = replace(TARGET.config, vocab_size=vocab, tie_word_embeddings=True, **sizes)
    model, generator = Llama(config), torch.Generator().manual_seed(8)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.4, generator=generator)
    return model


def drafted(depth: int = 3, draft: Llama | None = None, target: Llama = TARGET) -> Eagle:
    """A draft to which states matter from the start."""
    model = Eagle(draft or narrow(), target, depth)
    with torch.no_grad():
        for weight in (model.from_target, model.from_own):
            weight.normal_(std=0.5, generator=torch.Generator().manual_seed(1))
    return model


def records(sampling: Sampling | None = None, prompts: list[list[int]] = PROMPTS):
    options = {"sampling": sampling, "generator": torch.Generator().manual_seed(3)} if sampling else {}
    requests = [(str(i), p) for i, p in enumerate(prompts)]
    return record(TARGET, requests, max_new_tokens=20, eos_ids=[EOS], **options)


def learnt(draft: Llama | None = None) -> Eagle:
    """A draft that has learnt to read states."""
    model = Eagle(draft or narrow(), TARGET, 3)
    train(Scene(model, records()), range(len(PROMPTS)), 120, LEARNS)
    return model


def test_each_prediction_reads_the_targets_states_and_then_its_own():
    """By the definition, token by token: the d-th prediction of a token has d - 1 places after the last state of the target."""
    model, text = drafted(3), [1, 4, 7, 5, 9, 6, 8, 3]
    with torch.no_grad():
        found = model.answer_logits([text[:3]], [text[3:]])
        whole = TARGET.states(torch.tensor([text]))
        size = model.draft.embed.square().mean().sqrt()
        for depth in range(1, 4):
            for place in range(3, len(text)):
                given = place - depth  # the last token with a state of the target before it
                before = [torch.zeros(16), *whole[0, :given]]
                cache, _ = model.draft.decoder().begin([text], 8)
                for number in range(place):
                    token = torch.tensor([[text[number]]])
                    weight = model.from_own if number > given else model.from_target
                    scaled = rms_norm(before[number], before[number].shape) * size
                    hidden = model.draft.embed[text[number]] + weight @ scaled
                    raw = cache.read(token, hidden=hidden[None, None])
                    state = rms_norm(raw, (12,), model.draft.norm, 1e-5)
                    if number >= given:
                        before.append(state[0])
                wanted = model.draft.decoder().project(state)[0]
                torch.testing.assert_close(found[depth - 1, place - 3], wanted, atol=1e-4, rtol=1e-4)


def test_realised_replays_have_the_expected_counts_on_average():
    agree, rng = agree_along(learnt(), records(Sampling(1.0))), np.random.default_rng(0)
    expected, runs = walk(agree, 3), [walk(agree.realise(rng), 3) for _ in range(2000)]
    for name in ("accepted", "visited", "blocks"):
        counts = np.array([getattr(run, name) for run in runs])
        assert (counts == counts.round()).all(), "one run of decoding"
        np.testing.assert_allclose(counts.mean(0), getattr(expected, name), atol=0.25)
    assert not np.allclose(agree.ratio[:, 0], agree.ratio[:, 2]), "the depth must matter"


def test_a_token_has_the_depth_that_it_has_in_its_block():
    """Blocks begin at the first and the fifth token; the fourth is the token of the target after three drafted ones."""
    values, starts = np.arange(18).reshape(6, 3), np.array([True, False, False, False, True, False])
    assert at_its_depth(values, starts).tolist() == [0, 4, 8, 11, 12, 16]
    assert at_its_depth(values[:, 0], starts).tolist() == [0, 3, 6, 9, 12, 15]


def test_it_learns_what_the_target_says_and_leaves_it_alone():
    before = [weight.clone() for weight in TARGET.parameters()]
    untrained, model = Eagle(narrow(), TARGET, 3), learnt()
    assert replay(model, records(), 3).accepted.sum() >= 2 * replay(untrained, records(), 3).accepted.sum()
    for weight in (model.from_target, model.from_own):
        assert (weight != 0).all(), "both kinds of states are learnt"
    assert all(torch.equal(a, b) for a, b in zip(before, TARGET.parameters(), strict=True))
    assert all(weight.grad is None for weight in TARGET.parameters())


def test_a_trimmed_head_proposes_only_its_tokens(tmp_path):
    kept = [0, 2, 5, 6, 9, 11]
    model = learnt(trim_head(narrow(), kept))
    assert kept_by(model) is model.draft.kept
    model.save(tmp_path / "draft")
    assert load_file(tmp_path / "draft" / HEADS)["draft.kept"].tolist() == kept
    with pytest.raises(UserError, match=r"draft: this draft reads its target's states, .*reads_target: false"):
        load_model(tmp_path / "draft")
    logits = model.answer_logits([[1, 2, 3]], [[4, 5, 6]])
    assert logits.isfinite().all(0).all(0).nonzero()[:, 0].tolist() == kept
    options = {"max_new_tokens": 20, "eos_ids": [EOS]}
    traces = speculate(TARGET, model, PROMPTS, draft_len=3, **options).traces
    assert [trace.answer_ids for trace in traces] == generate(TARGET, PROMPTS, **options)


def test_a_copy_has_weights_of_its_own_and_the_same_target():
    model = drafted()
    other = copy.deepcopy(model)
    assert other.target is model.target
    assert not {id(weight) for weight in other.parameters()} & {id(weight) for weight in model.parameters()}


def test_what_it_cannot_do_is_refused():
    options = {"draft_len": 3, "num_drafts": 2, "max_new_tokens": 4, "eos_ids": []}
    several = [narrow(), Medusa(TARGET, Tree.of_widths((1, 1, 1)))]
    with pytest.raises(UserError, match="not one of several"):
        speculate(TARGET, several, PROMPTS, verifier=VERIFIERS["specinfer"], **options)
    other = drafted(draft=narrow(30))
    with pytest.raises(UserError, match="draft has 30 tokens, but the recorded target has 40"):
        replay(other, records(), 3)
    with pytest.raises(UserError, match=r"different vocabularies \(40 and 30 tokens\)"):
        speculate(TARGET, other, PROMPTS, draft_len=3, max_new_tokens=4, eos_ids=[])


def test_states_of_any_size_are_read_at_the_size_of_an_embedding():
    model, token = drafted(), torch.tensor([[4]])
    with torch.no_grad():
        model.from_own.copy_(torch.eye(12))
        for scale in (1.0, 100.0):
            added = model.inputs(token, scale * torch.arange(12.0)[None, None], own=True) - model.draft.embed[4]
            size = model.draft.embed.square().mean().sqrt()
            torch.testing.assert_close(added.square().mean().sqrt(), size)


def test_it_starts_as_the_draft_that_it_was():
    draft = narrow()
    model = Eagle(copy.deepcopy(draft), TARGET, 3)
    with torch.no_grad():
        wanted = draft.answer_logits(PROMPTS, PROMPTS)
        for logits in model.answer_logits(PROMPTS, PROMPTS):
            torch.testing.assert_close(logits, wanted)
