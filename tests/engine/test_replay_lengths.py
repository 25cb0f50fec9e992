"""Rules for the length of a block: the counts of replay and of decoding, and what the oracle reaches."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from draftlab.core.sampling import Sampling
from draftlab.engine.recording import record
from draftlab.engine.replay import replay
from draftlab.engine.replay_lengths import Drafted, cut, draft_everywhere, guess
from draftlab.errors import UserError
from draftlab.latency.loop import fixed, speculate
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.lookup import Lookup
from tests.models.test_lookup import passages
from tests.pair import small_llama


@pytest.fixture(scope="module")
def pair():
    target, draft = (small_llama(size, size, scale) for size, scale in ((32, 4.0), (16, 16.0)))
    prompts = [(str(i), p) for i, p in enumerate(passages())]
    return target, draft, record(target, prompts, max_new_tokens=14, eos_ids={2})


@pytest.mark.parametrize("kind", ["itself", "draft", "lookup", "lookup first"])
def test_a_fixed_length_gives_the_blocks_of_replay(pair, kind):
    target, draft, recorded = pair
    models = {"itself": target, "draft": draft, "lookup": Lookup(draft), "lookup first": Lookup(draft, joined=True)}
    drafted = draft_everywhere(models[kind], recorded, 4)
    for length in (1, 3, 4):
        walked, blocks = replay(models[kind], recorded, length), cut(drafted.upto(length), drafted.fixed(length))
        assert blocks.blocks.tolist() == walked.blocks.tolist()
        assert blocks.accepted.tolist() == walked.accepted.tolist()
        assert blocks.judged.tolist() == walked.visited.tolist()
        assert blocks.emitted.tolist() == walked.emitted.tolist()
        assert blocks.whole.tolist() == walked.whole.tolist()
        assert not blocks.changes.any()
    assert kind != "itself" or blocks.whole.sum() > 0
    assert kind != "lookup" or 0 < (drafted.confidence == 1).mean() < 1, "sure of what it finds alone"
    assert kind not in ("itself", "draft") or drafted.confidence.max() < 1


def test_a_draft_whose_numbers_overflow_drafts_nothing(pair):
    _, _, recorded = pair
    broken = small_llama(16, 16)
    with torch.no_grad():
        broken.head[7] = torch.nan
    for draft in (broken, Lookup(broken, joined=True)):
        with pytest.raises(UserError, match=r"logits.* hold NaN"):
            draft_everywhere(draft, recorded, 2)


def test_a_length_that_follows_the_confidence_is_that_of_the_engine(pair, tmp_path):
    target, draft, recorded = pair
    drafted = draft_everywhere(draft, recorded, 4)
    for name, model in (("target", target), ("draft", draft)):
        model.save(tmp_path / name)
        export(tmp_path / name, tmp_path / f"{name}.gguf", vocabulary=False)
    with LlamaCpp(tmp_path / "target.gguf") as alone, LlamaCpp(tmp_path / "draft.gguf") as own:
        for min_prob in (0.05, 0.2):
            found = [
                speculate(alone, own, record.prompt_ids, len(record.answer_ids), fixed(4), min_prob=min_prob).blocks
                for record in recorded.answers
            ]
            blocks = cut(drafted, drafted.confident(min_prob), asks=True)
            assert blocks.blocks.tolist() == [len(own) for own in found]
            assert blocks.drafted.tolist() == [sum(block.drafted for block in own) for own in found]
            assert 0 < blocks.drafted.sum() < 4 * blocks.blocks.sum()
            sizes = [[block.drafted for block in own] for own in found]
            assert blocks.changes.tolist() == [sum(a != b for a, b in pairwise(own)) for own in sizes]
            assert blocks.changes.sum() > 0


def test_the_oracle_drafts_what_stands_and_asks_cost_a_step():
    """Two answers: at the first position 3 drafted tokens are accepted, at later ones fewer; nothing is accepted in the second answer."""
    shown = np.tile([0.9, 0.8, 0.3, 1.0], (7, 1))
    drafted = Drafted([5, 2], np.array([3, 2, 1, 0, 0, 0, 0]), shown, shown, shown, found=shown == 1)
    oracle = cut(drafted, drafted.accepted)
    assert oracle.blocks.tolist() == [2, 2]
    assert oracle.drafted.tolist() == oracle.accepted.tolist() == [3, 0]
    assert oracle.emitted.tolist() == [5, 2]
    assert oracle.changes.tolist() == [1, 0]
    assert oracle.whole.tolist() == [0, 0]
    assert cut(drafted.upto(3), drafted.upto(3).accepted).whole.tolist() == [1, 0]
    short = drafted.upto(2)  # the oracle of a short block knows no more than the block holds
    assert cut(short, short.accepted).accepted.tolist() == [2, 0]
    rule = drafted.confident(0.5)
    assert rule.tolist() == [2] * 7
    asked = cut(drafted, rule, asks=True)
    assert asked.blocks.tolist() == [3, 2]  # 2 stand, and a token; none stands; none stands
    assert asked.steps.tolist() == [9, 6], "two drafted, and the third that was not"
    assert cut(drafted, drafted.fixed(4)).steps.tolist() == [6, 6], "a token found by lookup takes no step"


def test_a_model_is_never_as_sure_as_prompt_lookup():
    """A probability that float32 rounds to 1 still takes a step of the model."""
    cache = SimpleNamespace(extend=lambda tokens: torch.tensor([[[0.0, 50.0, 0.0]]]))
    token, sure, *_ = guess(cache, torch.tensor([2]))
    assert token.tolist() == [1]
    assert 0.999 < float(sure) < 1


def test_sampled_answers_have_no_fixed_blocks(pair):
    target, draft, _ = pair
    sampled = record(
        target, [("0", [1, 2, 3])], max_new_tokens=4, eos_ids={2}, sampling=Sampling(1.0),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    with pytest.raises(UserError, match="no fixed blocks"):
        draft_everywhere(draft, sampled, 2)
