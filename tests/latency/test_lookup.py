"""Prompt lookup on an engine: the counts of replay, the text of plain decoding, blocks that end where the draft is unsure."""

from pathlib import Path

import numpy as np
import pytest

from draftlab.core.sampling_numpy import Sampling
from draftlab.engine.recording import record
from draftlab.engine.replay import replay
from draftlab.latency.lookup import SURE, LookupBackend
from draftlab.latency.loop import decode, fixed, speculate
from draftlab.models import load_model, lookup
from draftlab.models.backend import EngineOptions
from draftlab.models.llama_cpp import LlamaCpp
from tests.models.test_lookup import passages
from tests.pair import exported_pair


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return exported_pair(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("joined", [False, True])
def test_in_llama_cpp_it_counts_what_replay_counts(models: dict[str, Path], joined: bool) -> None:
    """Blocks and accepted tokens of lookup, and of lookup before a draft, request by request."""
    target, prompts = load_model(models["target"]), passages()
    recorded = record(target, [(str(i), p) for i, p in enumerate(prompts)], max_new_tokens=16, eos_ids={2})
    model = load_model(models["draft"]) if joined else target
    walked = replay(lookup.Lookup(model, joined=joined), recorded, 3)
    engine = EngineOptions(context_length=64)
    with (
        LlamaCpp(models["target"].with_suffix(".gguf"), engine) as alone,
        LlamaCpp(models["draft"].with_suffix(".gguf"), engine) as draft,
    ):
        drafting = LookupBackend(draft, joined=True) if joined else LookupBackend(alone)
        blocks = []
        for answer in recorded.answers:
            text = (answer.prompt_ids, len(answer.answer_ids))
            found = speculate(alone, drafting, *text, fixed(3), min_prob=0.0 if joined else SURE)
            assert found.tokens == answer.answer_ids == decode(alone, *text).tokens
            blocks.append(found.blocks)
    accepted = sum(block.accepted for request in blocks for block in request)
    drafted = sum(block.drafted for request in blocks for block in request)
    assert [len(request) for request in blocks] == walked.blocks.tolist()
    assert 20 < accepted < drafted
    if not joined:
        assert drafted < 3 * sum(map(len, blocks)), "lookup drafts nothing where it has no guess"


def test_a_block_ends_where_the_draft_is_unsure(models: dict[str, Path]) -> None:
    """A higher threshold drafts less, and the text stays the same; sampled blocks may have different lengths."""
    with (
        LlamaCpp(models["target"].with_suffix(".gguf")) as alone,
        LlamaCpp(models["draft"].with_suffix(".gguf")) as draft,
    ):
        drafted = []
        for min_prob in (0.0, 0.1, 0.3, 1.1):
            found = [speculate(alone, draft, prompt, 6, fixed(4), min_prob=min_prob) for prompt in passages(12)]
            assert [one.tokens for one in found] == [decode(alone, prompt, 6).tokens for prompt in passages(12)]
            drafted.append(sum(block.drafted for one in found for block in one.blocks))
        assert drafted[0] > drafted[1] > drafted[2] > drafted[3] == 0
        rng = np.random.default_rng(0)
        sampled = speculate(alone, draft, [5, 9, 11], 40, fixed(4), sampling=Sampling(1.0), rng=rng, min_prob=0.1)
        assert len(sampled.tokens) == 40
        assert 0 < sum(block.drafted for block in sampled.blocks) < 4 * len(sampled.blocks)


def test_a_prompt_is_read_once_and_again_after_probes(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever contender comes first; also if a prompt is repeated, so that the lookup has read it already."""
    read, prefill = list[int](), LlamaCpp.prefill
    with (
        LlamaCpp(models["target"].with_suffix(".gguf")) as alone,
        LlamaCpp(models["draft"].with_suffix(".gguf")) as draft,
    ):

        def watched(model: LlamaCpp, tokens: list[int]) -> np.ndarray:
            read.extend([len(tokens)] if model is draft else [])
            return prefill(model, tokens)

        monkeypatch.setattr(LlamaCpp, "prefill", watched)
        contenders = [draft, LookupBackend(draft, joined=True), LookupBackend(draft, joined=True)]
        prompts = [[3, *prompt] for prompt in passages(3)]
        for number, prompt in enumerate([*prompts, prompts[-1]]):
            draft.fill(1, 8)
            read.clear()
            for contender in contenders[:: 1 if number % 2 else -1]:
                found = speculate(alone, contender, prompt, 6, fixed(3)).tokens
                assert found == decode(alone, prompt, 6).tokens
            assert read == [len(prompt) - 1]


def test_a_guess_is_looked_up_before_the_model_is_asked(models: dict[str, Path]) -> None:
    """Only where lookup has no guess, the model runs, and reads the tokens that it missed."""
    with (
        LlamaCpp(models["draft"].with_suffix(".gguf")) as draft,
        LlamaCpp(models["draft"].with_suffix(".gguf")) as same,
    ):
        joined, alone = LookupBackend(draft, joined=True), LookupBackend(draft)
        for lookup_draft in (joined, alone):
            assert lookup_draft.guess([5, 9, 7, 5, 9]) == 7
        assert (joined.steps, draft.tokens) == (0, [])
        assert alone.guess([7, 6], SURE) is None
        assert alone.guess([6]) == 0, "it has to say something"
        assert joined.guess([7, 6]) == same.guess([5, 9, 7, 5, 9, 7, 6])
        assert (joined.steps, draft.tokens) == (1, [5, 9, 7, 5, 9, 7, 6])
        assert joined.guess([8], 1.1) is None
        assert joined.steps == 2, "a token that was not sure enough was computed all the same"


@pytest.mark.parametrize("call", ["guess", "extend"])
def test_a_model_that_missed_more_than_a_call_holds_reads_it_in_several(models: dict[str, Path], call: str) -> None:
    text, engine = [5, 9, 7] * 200 + [6], EngineOptions(context_length=768)
    with (
        LlamaCpp(models["draft"].with_suffix(".gguf"), engine) as draft,
        LlamaCpp(models["draft"].with_suffix(".gguf"), engine) as same,
    ):
        joined = LookupBackend(draft, joined=True)
        joined.prefill(text[:-1])
        same.prefill(text[:-1])
        np.testing.assert_allclose(getattr(joined, call)(text[-1:]), getattr(same, call)(text[-1:]), atol=1e-4)
        assert (joined.steps, draft.tokens) == (1, text)


def test_the_joined_model_runs_only_where_lookup_has_no_guess(models: dict[str, Path]) -> None:
    """Also where it reads two tokens, as after a block that was accepted whole, at every temperature."""
    with LlamaCpp(models["draft"].with_suffix(".gguf")) as draft:
        for read in (LookupBackend.guess, LookupBackend.extend):
            drafting = LookupBackend(draft, joined=True)
            drafting.prefill([7, 8, 9, 3])
            read(drafting, [7, 8])  # 9 came after them; no guess after the 7 alone
            assert (drafting.steps, draft.tokens) == (0, [])
            read(drafting, [4])
            assert (drafting.steps, draft.tokens) == (1, [7, 8, 9, 3, 7, 8, 4])
            draft.trim(0)
