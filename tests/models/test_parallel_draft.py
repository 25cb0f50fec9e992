"""Drafts that propose a block in one pass, or token after token on their target's states, or both: in the loop, along records and as learners."""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from draftlab.conformance import Budget, check_samples
from draftlab.core.sampling import Sampling
from draftlab.core.verify import VERIFIERS
from draftlab.engine.generate import generate
from draftlab.engine.recording import record
from draftlab.engine.replay import replay
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.models import load_model
from draftlab.models.config import HEADS
from draftlab.models.eagle import Eagle, of_blocks
from draftlab.models.llama import Llama
from draftlab.models.parallel_draft import ParallelDraft, spare_token
from draftlab.models.tokenizer import train_tokenizer
from draftlab.train.designs import trim_head
from draftlab.train.learning import train
from draftlab.train.sources import Scene
from draftlab.train.trimmed_head import kept_by
from tests.engine.test_speculate import EOS, TARGET, make
from tests.models.test_eagle import LEARNS, PROMPTS, narrow, records
from tests.models.test_medusa import second_tokens

AT_ONCE = ["alone", "on states"]
KINDS = [*AT_ONCE, "token after token"]


def fresh(kind: str, depth: int = 3, draft: Llama | None = None, target: Llama = TARGET) -> ParallelDraft | Eagle:
    """A draft that has not learnt to read its mask or its target's states."""
    model = of_blocks(draft or narrow(), None if kind == "alone" else target, depth, parallel=kind in AT_ONCE)
    assert isinstance(model, ParallelDraft if kind == "alone" else Eagle)
    return model


def drafted(kind: str, depth: int = 3, draft: Llama | None = None, target: Llama = TARGET) -> ParallelDraft | Eagle:
    """A draft to which its mask and its target's states matter from the start."""
    model = fresh(kind, depth, draft, target)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if not name.startswith("draft."):
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(1))
    return model


def learnt(kind: str, steps: int = 120, draft: Llama | None = None) -> ParallelDraft | Eagle:
    """A draft that has learnt to propose three tokens."""
    model = fresh(kind, draft=draft)
    train(Scene(model, records()), range(len(PROMPTS)), steps, LEARNS)
    return model


@pytest.mark.parametrize("kind", AT_ONCE)
def test_each_prediction_reads_the_text_and_then_masks(kind: str):
    """By the definition: the d-th prediction of a token reads the text up to d places before it, and then d - 1 masks."""
    model, text = drafted(kind), [1, 4, 7, 5, 9, 6, 8, 3]
    with torch.no_grad():
        found = model.answer_logits([text[:3]], [text[3:]])
        of_target = torch.nn.functional.pad(TARGET.states(torch.tensor([text])), (0, 0, 1, 0))
        for depth in range(1, 4):
            for place in range(3, len(text)):
                known = torch.tensor([text[: place - depth + 1]])
                if isinstance(model, Eagle):
                    inputs = model.inputs(known, of_target[:, : known.shape[1]], own=False)
                else:
                    inputs = model.draft.embed[known]
                inputs = torch.cat([inputs, model.mask.expand(1, depth - 1, -1)], 1)
                decoder = model.draft.decoder()
                cache, _ = decoder.begin([text], 8)
                states = cache.states(torch.zeros(inputs.shape[:2], dtype=torch.long), hidden=inputs)
                wanted = decoder.project(states)[-1]
                torch.testing.assert_close(found[depth - 1, place - 3], wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 4, None])
@pytest.mark.parametrize("draft_len", [1, 3, 5])
def test_greedy_text_is_the_targets(kind: str, draft_len: int, batch: int | None):
    model, options = learnt(kind), {"max_new_tokens": 20, "eos_ids": [EOS], "batch": batch}
    found = speculate(TARGET, model, PROMPTS, draft_len=draft_len, **options)
    assert [trace.answer_ids for trace in found.traces] == generate(TARGET, PROMPTS, **options)
    assert sum(sum(trace.accepted) for trace in found.traces) > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prompts", [[[3] * 44], [[3] * 44, [1, 5]], [[3] * 44] * 2])
def test_the_context_may_be_filled_to_the_last_place(kind: str, prompts: list[list[int]]):
    options = {"max_new_tokens": TARGET.context_length - 44, "eos_ids": []}
    found = speculate(TARGET, drafted(kind), prompts, draft_len=3, **options)
    assert [trace.answer_ids for trace in found.traces] == generate(TARGET, prompts, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_the_shorter_context_is_that_of_the_draft(kind: str):
    draft, prompts = narrow(), [[1] * 18, [1, 5]]
    draft.config = replace(draft.config, max_position_embeddings=22)  # padded prompts would have 32 places
    options = {"max_new_tokens": 4, "eos_ids": []}
    found = speculate(TARGET, drafted(kind, draft=draft), prompts, draft_len=3, **options)
    assert [trace.answer_ids for trace in found.traces] == generate(TARGET, prompts, **options)
    with pytest.raises(UserError, match="the context holds 22"):
        speculate(TARGET, drafted(kind, draft=draft), prompts, draft_len=3, **options | {"max_new_tokens": 5})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, None])
def test_replay_counts_what_live_decoding_counts(kind: str, batch: int | None):
    model, prompts = learnt(kind), [*PROMPTS, *([1, 5 + i % 7, 9 + i % 11, 3 + i % 5] for i in range(40))]
    walked = replay(model, records(prompts=prompts), 3)
    decoded = speculate(TARGET, model, prompts, draft_len=3, max_new_tokens=20, eos_ids=[EOS], batch=batch).traces
    assert walked.blocks.tolist() == [len(trace.emitted) for trace in decoded]
    assert walked.accepted.tolist() == [sum(trace.accepted) for trace in decoded]
    assert 0 < walked.accepted.sum() < walked.visited.sum()


@pytest.mark.parametrize("kind", KINDS)
def test_replay_expects_what_live_sampling_finds(kind: str):
    model, generator = learnt(kind), torch.Generator().manual_seed(0)
    options = {"max_new_tokens": 20, "eos_ids": [EOS], "sampling": Sampling(1.0), "generator": generator}
    traces = speculate(TARGET, model, PROMPTS * 60, draft_len=3, **options).traces
    recorded = record(TARGET, [(str(i), p) for i, p in enumerate(PROMPTS * 60)], **options)
    expected = replay(model, recorded, 3)
    live = sum(sum(trace.emitted) for trace in traces) / sum(len(trace.emitted) for trace in traces)
    assert live == pytest.approx(expected.emitted.sum() / expected.blocks.sum(), abs=0.05)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verifier", ["single", "block"])
def test_sampled_text_follows_the_targets_distribution(kind: str, verifier: str):
    target = make(5, vocab=6)
    options = {"sampling": Sampling(1.0), "generator": torch.Generator().manual_seed(0)}
    options |= {"draft_len": 2, "verifier": VERIFIERS[verifier]}
    draft = drafted(kind, 2, narrow(6), target)
    drawn = itertools.islice(second_tokens(target, draft, [1, 2, 3, 5], **options), 5000)
    assert check_samples(drawn, Budget(5000, 1e-3, 0)).lossless


@pytest.mark.parametrize("kind", AT_ONCE)
def test_it_learns_to_propose_the_later_tokens(kind: str):
    untrained = fresh(kind)
    before, model = untrained.mask.detach().clone(), learnt(kind)
    assert replay(model, records(), 3).accepted.sum() >= 2 * replay(untrained, records(), 3).accepted.sum()
    assert not torch.isclose(model.mask, before).any(), "the mask is learnt"
    second = replay(model, records(), 3).accepted.sum() - replay(model, records(), 1).accepted.sum()
    assert second > 0, "tokens after the first are accepted"


def test_a_frozen_embedding_leaves_the_mask_to_learn():
    draft = narrow()
    draft.embed.requires_grad_(False)
    model, embed = ParallelDraft(draft, 3), draft.embed.clone()
    before = model.mask.detach().clone()
    train(Scene(model, records()), range(len(PROMPTS)), 3, LEARNS)
    assert torch.equal(draft.embed, embed)
    assert not torch.equal(model.mask, before)


def test_the_first_token_is_drafted_as_before():
    draft = narrow()
    with torch.no_grad():
        first = ParallelDraft(copy.deepcopy(draft), 3).answer_logits(PROMPTS, PROMPTS)[0]
        torch.testing.assert_close(first, draft.answer_logits(PROMPTS, PROMPTS))


@pytest.mark.parametrize("kind", KINDS)
def test_a_trimmed_head_proposes_only_its_tokens(kind: str):
    kept = [0, 2, 5, 6, 9, 11]
    model = learnt(kind, draft=trim_head(narrow(), kept))
    assert kept_by(model) is model.draft.kept
    logits = model.answer_logits([[1, 2, 3]], [[4, 5, 6]])
    assert logits.isfinite().all(0).all(0).nonzero()[:, 0].tolist() == kept


def test_it_is_saved_as_a_language_model_with_the_mask_as_a_token(tmp_path):
    """Opened again it proposes the same, but for the probability of that token, whose row the head shares."""
    model = learnt("alone")
    model.token = 33
    model.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["pard_token"] == 33
    opened = load_model(tmp_path)
    assert isinstance(opened, Llama)
    again = ParallelDraft(opened, 3)
    assert again.token == 33
    assert torch.equal(again.mask, model.mask)
    with torch.no_grad():
        wanted, found = (one.answer_logits([[1, 2, 3]], [[4, 5, 6]]) for one in (model, again))
    others = [token for token in range(40) if token != 33]
    assert torch.equal(found[..., others], wanted[..., others])
    assert not torch.equal(found[..., 33], wanted[..., 33])
    (tmp_path / "config.json").write_text((tmp_path / "config.json").read_text().replace("33", "40"))
    with pytest.raises(UserError, match="the mask, token 40, is none of the 40 tokens"):
        load_model(tmp_path)


def test_a_draft_on_states_is_saved_for_nobody_else(tmp_path):
    model = learnt("on states", steps=2)
    model.save(tmp_path / "draft")
    assert torch.equal(load_file(tmp_path / "draft" / HEADS)["mask"], model.mask)
    with pytest.raises(UserError, match="this draft reads its target's states"):
        load_model(tmp_path / "draft")


def test_the_mask_takes_the_place_of_the_rarest_token():
    tokenizer = train_tokenizer(
        ["one two three " * 20], vocab_size=270
    )  # <pad>, <s>, </s>, <unk>, then bytes and merges
    every = list(range(tokenizer.vocab_size))
    assert spare_token(tokenizer, [[1, 7, 8]]) == 3, "the last special one that is in no text, and not </s>"
    assert spare_token(tokenizer, [[0, 1, 3, 7]]) == tokenizer.vocab_size - 1, "else the last one in no text"
    assert spare_token(tokenizer, [every, [t for t in every if t != 40]]) == 40, "else the rarest"


def test_the_weights_beside_the_drafts_are_counted():
    assert of_blocks(narrow(), None, 3, parallel=True).added == 12
    assert of_blocks(narrow(), TARGET, 3, parallel=True).added == 12 * 16 + 12
    assert of_blocks(narrow(), TARGET, 3, parallel=False).added == 12 * 16 + 12 * 12
    draft = narrow()
    assert of_blocks(draft, None, 3, parallel=False) is draft


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_cannot_do_is_refused(kind: str):
    options = {"draft_len": 3, "num_drafts": 2, "max_new_tokens": 4, "eos_ids": []}
    with pytest.raises(UserError, match="writes one sequence"):
        speculate(TARGET, drafted(kind), PROMPTS, verifier=VERIFIERS["rrs"], **options)
    with pytest.raises(UserError, match="not one of several"):
        speculate(TARGET, [narrow(), drafted(kind)], PROMPTS, verifier=VERIFIERS["specinfer"], **options)
    with pytest.raises(UserError, match="guesses 3 tokens per block"):
        replay(drafted(kind), records(), 4)
    with pytest.raises(UserError, match="depth is 0"):
        drafted(kind, depth=0)
