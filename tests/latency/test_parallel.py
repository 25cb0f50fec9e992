"""Drafts that propose a block in one call, on both engines: the text of plain decoding, and the blocks that replay counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from draftlab.core.sampling import GREEDY, Sampling
from draftlab.engine.recording import record
from draftlab.engine.replay import agree_along, replay, walk
from draftlab.latency.loop import Generation, decode, fixed, speculate
from draftlab.latency.settings import Engine
from draftlab.latency.torch_backend import open_torch
from draftlab.models import load_model
from draftlab.models.backend import EngineOptions, LatencyBackend, confident_argmaxes
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.parallel_draft import ParallelDraft
from draftlab.stages.offline import Settings as Offline
from draftlab.train.designs import trim_head
from draftlab.train.learning import train
from draftlab.train.sources import Scene
from tests.engine.test_speculate import near
from tests.models.test_lookup import passages
from tests.pair import small_llama

PROMPTS, NEW, MASK = passages(8), 24, 250
OPTIONS = EngineOptions(context_length=256)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, and two drafts that learnt to propose three tokens at once; one has a trimmed head."""
    folder = tmp_path_factory.mktemp("models")
    target = small_llama(32, 0, scale=4.0)
    with torch.no_grad():
        target.vocab_weight.mul_(8)
    recorded = record(target, [(str(i), p) for i, p in enumerate(PROMPTS)], max_new_tokens=NEW, eos_ids=[])
    used = {token for answer in recorded.answers for token in answer.answer_ids}
    target.save(folder / "target")
    for name, model in (("draft", near(target, 0.3)), ("trimmed", trim_head(near(target, 0.3), sorted(used)))):
        draft = ParallelDraft(model, 3)
        learns = Offline(dataset="toy", epochs=1, batch=4, learning_rate=1e-2)
        train(Scene(draft, recorded), range(len(PROMPTS)), 60, learns)
        draft.token = MASK
        draft.save(folder / name)
    for path in sorted(folder.iterdir()):
        export(path, folder / f"{path.name}.gguf", vocabulary=False)
    return folder


@pytest.fixture(params=["draft", "trimmed"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["llama_cpp", "torch"])
def pair(request: pytest.FixtureRequest, folder: Path, name: str) -> Iterator[tuple[LatencyBackend, LatencyBackend]]:
    if request.param == "torch":
        settings = Engine(backend="torch")
        yield open_torch(folder / "target", settings, OPTIONS), open_torch(folder / name, settings, OPTIONS)
        return
    with LlamaCpp(folder / "target.gguf", OPTIONS) as target, LlamaCpp(folder / f"{name}.gguf", OPTIONS) as draft:
        yield target, draft


def written(pair: tuple[LatencyBackend, LatencyBackend], prompt: list[int], **how) -> Generation:
    return speculate(*pair, prompt, NEW, fixed(3), mask=MASK, **how)


def test_blocks_are_those_that_replay_counts(
    folder: Path, name: str, pair: tuple[LatencyBackend, LatencyBackend]
) -> None:
    """The saved draft is opened again as a parallel one, whose mask is the embedding of its token."""
    draft = ParallelDraft(load_model(folder / name), 3)
    assert torch.equal(draft.mask, draft.draft.embed[MASK])
    target = load_model(folder / "target")
    recorded = record(target, [(str(i), p) for i, p in enumerate(PROMPTS)], max_new_tokens=NEW, eos_ids=[])
    walked, found = replay(draft, recorded, 3), [written(pair, prompt) for prompt in PROMPTS]
    assert [answer.tokens for answer in found] == [decode(pair[0], prompt, NEW).tokens for prompt in PROMPTS]
    assert [len(answer.blocks) for answer in found] == walked.blocks.tolist()
    assert all(block.calls == 1 and block.drafted == 3 for answer in found for block in answer.blocks)
    assert 0 < walked.accepted.sum() < walked.visited.sum()


def test_nothing_is_guessed_after_a_token_that_is_unsure() -> None:
    sure, unsure = [0.0, 5.0, 0.0], [0.1, 0.0, 0.0]
    logits = np.array([sure, sure, unsure, sure], dtype=np.float32)
    assert confident_argmaxes(logits, 0.5) == [1, 1]
    assert confident_argmaxes(logits, 0.0) == [1, 1, 0, 1]


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0)])
def test_a_block_ends_where_the_draft_is_unsure(
    pair: tuple[LatencyBackend, LatencyBackend], sampling: Sampling
) -> None:
    whole, some, none = (
        [written(pair, prompt, min_prob=least, sampling=sampling) for prompt in PROMPTS] for least in (0.0, 0.4, 1.0)
    )
    drafted = [sum(block.drafted for answer in found for block in answer.blocks) for found in (whole, some, none)]
    per_block = [
        total / sum(len(a.blocks) for a in found) for total, found in zip(drafted, (whole, some, none), strict=True)
    ]
    assert per_block[0] == 3 > per_block[1] > per_block[2] == 0
    if sampling == GREEDY:
        assert [answer.tokens for answer in some] == [answer.tokens for answer in whole] == [a.tokens for a in none]


def test_sampled_blocks_are_those_that_replay_expects(
    folder: Path, name: str, pair: tuple[LatencyBackend, LatencyBackend]
) -> None:
    draft, target = ParallelDraft(load_model(folder / name), 3), load_model(folder / "target")
    many, rng = [(str(i), PROMPTS[i % 8]) for i in range(64)], np.random.default_rng(0)
    generator = torch.Generator().manual_seed(0)
    recorded = record(target, many, max_new_tokens=NEW, eos_ids=[], sampling=Sampling(1.0), generator=generator)
    expected = walk(agree_along(draft, recorded), 3)
    found = [written(pair, prompt, sampling=Sampling(1.0), rng=rng) for _, prompt in many]
    blocks = sum(len(answer.blocks) for answer in found)
    assert NEW * len(many) / blocks == pytest.approx(expected.emitted.sum() / expected.blocks.sum(), rel=0.06)


def test_the_last_place_of_the_context_is_filled(folder: Path, pair: tuple[LatencyBackend, LatencyBackend]) -> None:
    for model in pair:
        model.context_length = len(PROMPTS[0]) + NEW
    assert written(pair, PROMPTS[0]).tokens == decode(pair[0], PROMPTS[0], NEW, sampling=GREEDY).tokens
