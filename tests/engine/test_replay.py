"""Replay against live speculative decoding: exactly in expectation over all texts, and block by block at temperature 0."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from draftlab.core.sampling import Sampling
from draftlab.core.tree import Tree
from draftlab.core.verify import PATH_VERIFIERS
from draftlab.engine.recording import record
from draftlab.engine.replay import Agreement, agree_along, agreement, replay, tree_agreement, walk
from draftlab.errors import UserError
from draftlab.models.llama import Llama, LlamaConfig

VOCAB, EOS, LONGEST = 3, 0, 4


@functools.cache
def distribution(model: str, text: tuple[int, ...]) -> Tensor:
    """A next-token distribution that depends on the whole text before it."""
    seed = hash((model == "target", *text)) % 2**31
    logits = 1.5 * torch.randn(VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return logits.softmax(-1)


def texts(prefix: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every text that ends with its first EOS or at the longest length."""
    for token in range(VOCAB):
        text = (*prefix, token)
        if token == EOS or len(text) == LONGEST:
            yield text
        else:
            yield from texts(text)


def live_expectation(verifier: str, draft_len: int, text: tuple[int, ...] = ()) -> np.ndarray:
    """Expected (accepted, visited, overlap, overlap_repo, blocks) of live decoding from ``text`` on, by enumerating every path and outcome."""
    if text and (text[-1] == EOS or len(text) == LONGEST):
        return np.zeros(5)
    path_len = min(draft_len, LONGEST - len(text))
    total = np.zeros(5)
    for path in itertools.product(range(VOCAB), repeat=path_len):
        target = torch.stack([distribution("target", text + path[:i]) for i in range(path_len + 1)])
        draft = torch.stack([distribution("draft", text + path[:i]) for i in range(path_len)])
        drafted = float(torch.stack([draft[i, token] for i, token in enumerate(path)]).prod())
        outcomes = PATH_VERIFIERS[verifier].distribution(target, draft, torch.tensor(path))
        for accepted, following in itertools.product(range(path_len + 1), range(VOCAB)):
            probability = drafted * float(outcomes[accepted, following])
            if probability == 0:
                continue
            emitted = (*path[:accepted], following)[: LONGEST - len(text)]
            if EOS in emitted:
                emitted = emitted[: emitted.index(EOS) + 1]
            visited = min(accepted + (accepted < path_len), len(emitted))
            shared = target[:visited].minimum(draft[:visited])
            overlap_repo = (draft[:visited] * shared).sum()
            counts = np.array([min(accepted, len(emitted)), visited, float(shared.sum()), float(overlap_repo), 1.0])
            total += probability * (counts + live_expectation(verifier, draft_len, text + emitted))
    return total


@pytest.mark.parametrize("draft_len", [1, 2, 3])
@pytest.mark.parametrize("verifier", sorted(PATH_VERIFIERS.keys() & {"single", "block"}))
def test_replay_is_unbiased_over_the_text(verifier: str, draft_len: int) -> None:
    """The mean of the replayed counts over all texts of the target is the mean of the live counts, without any sampling."""
    expected = np.zeros(5)
    for text in texts():
        target = torch.stack([distribution("target", text[:i]) for i in range(len(text))])
        draft = torch.stack([distribution("draft", text[:i]) for i in range(len(text))])
        probability = float(torch.stack([target[i, token] for i, token in enumerate(text)]).prod())
        agree = agreement(draft.log(), target.log(), torch.tensor(text), [len(text)], Sampling())
        found = walk(agree, draft_len, verifier)  # type: ignore[arg-type]
        expected += probability * np.array(
            [found.accepted[0], found.visited[0], found.overlap[0], found.overlap_repo[0], found.blocks[0]]
        )
    live = live_expectation(verifier, draft_len)
    if verifier == "single":
        np.testing.assert_allclose(expected, live, rtol=1e-12)
    else:  # all of a path is looked at: visited and what is summed over it are the single verifier's notions
        np.testing.assert_allclose(expected[[0, 4]], live[[0, 4]], rtol=1e-12)


def test_realised_flags_average_to_the_expectation() -> None:
    rng = np.random.default_rng(0)
    agree = Agreement([7, 5], rng.random(12) * 1.3, rng.random(12), rng.random(12))
    expected = walk(agree, 3)
    runs = [walk(agree.realise(rng), 3) for _ in range(4000)]
    for field in ("accepted", "visited", "overlap", "overlap_repo", "blocks"):
        values = np.array([getattr(run, field) for run in runs])
        error = values.std(0) / np.sqrt(len(runs))
        assert (np.abs(values.mean(0) - getattr(expected, field)) < 4 * error + 1e-12).all(), field
    assert all(set(np.unique(run.starts)) <= {0.0, 1.0} for run in runs[:100])


def blocks_by_hand(flags: list[bool], draft_len: int) -> list[int]:
    """Tokens emitted by each block, counted one by one."""
    blocks, at = [], 0
    while at < len(flags):
        accepted = 0
        while accepted < draft_len and at + accepted < len(flags) and flags[at + accepted]:
            accepted += 1
        blocks.append(min(accepted + 1, len(flags) - at))
        at += accepted + 1
    return blocks


@pytest.mark.parametrize("draft_len", [1, 2, 5, 16])
def test_flags_are_cut_into_blocks(draft_len: int) -> None:
    rng = np.random.default_rng(draft_len)
    lengths = [1, 30, 2, 17]
    flags = rng.random(sum(lengths)) < 0.7
    cuts = np.split(flags, np.cumsum(lengths)[:-1])
    agree = Agreement(lengths, flags.astype(float), flags.astype(float), flags.astype(float))
    for verifier in ("single", "block"):
        found = walk(agree, draft_len, verifier)  # type: ignore[arg-type]
        blocks = [blocks_by_hand(list(cut), draft_len) for cut in cuts]
        np.testing.assert_array_equal(found.blocks, [len(row) for row in blocks])
        np.testing.assert_array_equal(found.emitted, lengths)
        starts = [float(i in {sum(row[:j]) for j in range(len(row))}) for row in blocks for i in range(sum(row))]
        np.testing.assert_array_equal(found.starts, starts)
        # No token follows a block that ends with an accepted draft at the end of its answer.
        at_the_end = [cut[-1] and row[-1] <= draft_len for cut, row in zip(cuts, blocks, strict=True)]
        accepted = [sum(row) - len(row) + end for row, end in zip(blocks, at_the_end, strict=True)]
        np.testing.assert_array_equal(found.accepted, accepted)
        np.testing.assert_array_equal(found.overlap, found.accepted)


@pytest.mark.parametrize(
    ("target", "draft", "expected"),
    [
        (Sampling(0.0), Sampling(0.0), (1.0, 1.0, 1.0)),
        (Sampling(0.0), Sampling(0.5), (0.8, 0.8, 0.64)),  # the target's text is certain
        (Sampling(1.0), Sampling(0.5), (1.6, 0.5 + 0.2, 0.8 * 0.5 + 0.2 * 0.2)),
        (Sampling(1.0), Sampling(0.0), (2.0, 0.5, 0.5)),
    ],
)
def test_each_model_samples_in_its_own_way(
    target: Sampling, draft: Sampling, expected: tuple[float, float, float]
) -> None:
    """The draft has (2/3, 1/3), which are (4/5, 1/5) at temperature 0.5, and the target 1/2 each; token 0 is written."""
    drafted, tokens = torch.tensor([[2.0, 1.0]]).log(), torch.tensor([0])
    found = agreement(drafted, torch.zeros(1, 2), tokens, [1], target, draft)
    np.testing.assert_allclose([found.ratio[0], found.overlap[0], found.overlap_repo[0]], expected, rtol=1e-6)


def test_a_token_that_the_target_cannot_write_counts_as_rejected() -> None:
    """A border case of a nucleus that was recorded in float16: top-k 1 leaves token 0, and token 1 was written."""
    logits = torch.tensor([[0.9, 0.1]]).log()
    found = agreement(logits, logits, torch.tensor([1]), [1], Sampling(1.0, top_k=1), Sampling(1.0))
    assert found.ratio.tolist() == [0.0]


def make(seed: int, width: int = 16, vocab: int = 40) -> Llama:
    model = Llama(LlamaConfig(vocab, width, 2 * width, 1, 2, 2, 64)).initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.embed.mul_(20)
    return model


REQUESTS = [(f"r{i}", [1, *range(5, 6 + i % 4), 7 + i]) for i in range(10)]


def test_greedy_agreement_is_where_the_draft_would_say_the_same() -> None:
    target, draft = make(0), make(1, width=8)
    got = record(target, REQUESTS, max_new_tokens=12, eos_ids={2})
    agree = agree_along(draft, got, [4, 0, 7])
    flags = []
    for number in (4, 0, 7):
        answer = got.answers[number]
        guesses = draft.answer_logits([answer.prompt_ids], [answer.answer_ids]).argmax(-1)
        flags += (guesses == torch.tensor(answer.answer_ids)).tolist()
    assert agree.lengths == [got.lengths[number] for number in (4, 0, 7)]
    np.testing.assert_array_equal(agree.ratio, np.array(flags, dtype=float))
    np.testing.assert_array_equal(agree.overlap, agree.ratio)


def test_of_tied_tokens_a_tree_guesses_as_many_as_its_width() -> None:
    logits = torch.tensor([1.0, 1.0, 1.0, 0.0]).expand(1, 3, 4)
    for width in (1, 2):
        agree = tree_agreement(logits, torch.tensor([0, 1, 2]), [3], Tree.of_widths([width]))
        assert agree.ratio.sum() == width


def test_bad_input_is_refused() -> None:
    got = record(make(0), REQUESTS, max_new_tokens=12, eos_ids={2})
    with pytest.raises(UserError, match="draft_len is 0"):
        replay(make(1), got, 0)
    with pytest.raises(UserError, match="replay knows no verifier 'rrs'"):
        replay(make(1), got, 3, verifier="rrs")  # type: ignore[arg-type]
    for number in (-1, 10):
        with pytest.raises(UserError, match=f"no request {number}"):
            agree_along(make(1), got, [number])
    with pytest.raises(UserError, match="the draft has 41 tokens, but the recorded target has 40"):
        replay(make(1, vocab=41), got, 3)
