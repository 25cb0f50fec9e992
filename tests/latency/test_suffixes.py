"""Suffix decoding on an engine: the blocks of replay, the text of plain decoding, and its distribution where it is sampled."""

from pathlib import Path

import numpy as np
import pytest

from draftlab.core.sampling_numpy import Sampling
from draftlab.engine.recording import record
from draftlab.engine.replay_lengths import cut, draft_everywhere
from draftlab.engine.replay_suffixes import continue_everywhere, first_or_else
from draftlab.latency.lookup import SURE, LookupBackend
from draftlab.latency.loop import decode, fixed
from draftlab.latency.suffixes import speculate_with_suffixes
from draftlab.models import load_model
from draftlab.models.backend import EngineOptions
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.suffixes import Memory
from tests.models.test_lookup import passages
from tests.pair import exported_pair


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return exported_pair(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize("least", [0.0, 0.6])
@pytest.mark.parametrize("joined", [False, True])
def test_in_llama_cpp_it_drafts_what_replay_drafts(models: dict[str, Path], joined: bool, least: float) -> None:
    """Blocks, drafted and accepted tokens, request by request; the text is that of plain decoding."""
    requests = [(str(number), prompt) for number, prompt in enumerate(passages())]
    recorded = record(load_model(models["target"]), requests, max_new_tokens=16, eos_ids={2})
    stream, held_out = recorded.take(range(len(requests) // 2)), recorded.take(range(len(requests) // 2, len(requests)))
    drafted = continue_everywhere(held_out, stream.answers, 3, least)
    lengths = drafted.without_model()
    if joined:
        takes = drafted.found[:, 0] & (drafted.confidence[:, 0] >= SURE)
        model = draft_everywhere(load_model(models["draft"]), held_out, 3)
        drafted, lengths = first_or_else(drafted, model, takes), np.where(takes, lengths, model.confident(least))
        assert 0 < takes.sum() < len(takes)
    expected = cut(drafted, lengths, asks=joined)
    engine = EngineOptions(context_length=64)
    with (
        LlamaCpp(models["target"].with_suffix(".gguf"), engine) as alone,
        LlamaCpp(models["draft"].with_suffix(".gguf"), engine) as draft,
    ):
        drafting = draft if joined else LookupBackend(alone)
        memory, blocks = Memory(answer.answer_ids for answer in stream.answers), []
        for answer in held_out.answers:
            text = (answer.prompt_ids, len(answer.answer_ids))
            found = speculate_with_suffixes(alone, drafting, *text, fixed(3), memory, joined=joined, min_prob=least)
            assert found.tokens == answer.answer_ids == decode(alone, *text).tokens
            blocks.append(found.blocks)
    assert [len(own) for own in blocks] == expected.blocks.tolist()
    assert [sum(block.drafted for block in own) for own in blocks] == expected.drafted.tolist()
    assert [sum(block.accepted for block in own) for own in blocks] == expected.accepted.tolist()
    assert 10 < expected.accepted.sum() < expected.drafted.sum()
    if not joined:
        assert sum(block.calls for own in blocks for block in own) == 0, "no model drafts"


def test_sampled_text_has_the_targets_distribution(models: dict[str, Path]) -> None:
    """The first two tokens of many samples, which suffix decoding guesses from a memory of others, beside those of plain decoding."""
    prompt, count, rng = passages()[0], 800, np.random.default_rng(0)
    with LlamaCpp(models["target"].with_suffix(".gguf")) as alone:
        plain = [decode(alone, prompt, 2, sampling=Sampling(0.1), rng=rng).tokens for _ in range(count)]
        often = max(plain, key=plain.count)
        memory, drafting, accepted = Memory([[prompt[-1], *often]]), LookupBackend(alone), 0
        found = []
        for _ in range(count):
            written = speculate_with_suffixes(
                alone, drafting, prompt, 2, fixed(2), memory, sampling=Sampling(0.1), rng=rng
            )
            found.append(written.tokens)
            accepted += sum(block.accepted for block in written.blocks)
    assert 0.2 * count < accepted < 1.8 * count, "guesses are often right and often wrong"
    for place in range(2):
        for token in {text[place] for text in plain}:
            shares = [sum(text[place] == token for text in texts) / count for texts in (plain, found)]
            error = np.sqrt(2 * shares[0] * (1 - shares[0]) / count)
            assert abs(shares[0] - shares[1]) < 5 * error + 2 / count
