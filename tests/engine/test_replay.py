"""Replay against live speculative decoding: exactly in expectation over all texts, and block by block at temperature 0."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftlab.core.losses import LOSSES
from draftlab.core.sampling import Sampling
from draftlab.core.verify import PATH_VERIFIERS
from draftlab.engine.answers import Answer, loops
from draftlab.engine.generate import generate
from draftlab.engine.recording import TargetPass, _batches, compact_distribution, join, load_pass, record
from draftlab.engine.replay import Agreement, agree_along, agreement, replay, walk
from draftlab.errors import UserError
from draftlab.files.seals import RECORD
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
    """Expected (accepted, visited, overlap, repo, blocks) of live decoding from ``text`` on, by enumerating every path and outcome."""
    if text and (text[-1] == EOS or len(text) == LONGEST):
        return np.zeros(5)
    path_len = min(draft_len, LONGEST - len(text))
    total = np.zeros(5)
    for path in itertools.product(range(VOCAB), repeat=path_len):
        target = torch.stack([distribution("target", text + path[:i]) for i in range(path_len + 1)])
        draft = torch.stack([distribution("draft", text + path[:i]) for i in range(path_len)])
        drafted = float(torch.stack([draft[i, token] for i, token in enumerate(path)]).prod())
        outcomes = PATH_VERIFIERS[verifier].distribution(target, draft, torch.tensor(path))
        for stands, following in itertools.product(range(path_len + 1), range(VOCAB)):
            probability = drafted * float(outcomes[stands, following])
            if probability == 0:
                continue
            emitted = (*path[:stands], following)[: LONGEST - len(text)]
            if EOS in emitted:
                emitted = emitted[: emitted.index(EOS) + 1]
            visited = min(stands + (stands < path_len), len(emitted))
            shared = target[:visited].minimum(draft[:visited])
            repo = (draft[:visited] * shared).sum()
            counts = np.array([min(stands, len(emitted)), visited, float(shared.sum()), float(repo), 1.0])
            total += probability * (counts + live_expectation(verifier, draft_len, text + emitted))
    return total


@pytest.mark.parametrize("draft_len", [1, 2, 3])
@pytest.mark.parametrize("verifier", sorted(PATH_VERIFIERS.keys() & {"single", "block"}))
def test_replay_is_unbiased_over_the_text(verifier: str, draft_len: int) -> None:
    """Mean of the replayed counts over the target's own texts = mean of the live counts; no sampling anywhere."""
    expected = np.zeros(5)
    for text in texts():
        target = torch.stack([distribution("target", text[:i]) for i in range(len(text))])
        draft = torch.stack([distribution("draft", text[:i]) for i in range(len(text))])
        probability = float(torch.stack([target[i, token] for i, token in enumerate(text)]).prod())
        agree = agreement(draft.log(), target.log(), torch.tensor(text), [len(text)], Sampling())
        found = walk(agree, draft_len, verifier)  # type: ignore[arg-type]
        expected += probability * np.array(
            [found.accepted[0], found.visited[0], found.overlap[0], found.repo[0], found.blocks[0]]
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
    for field in ("accepted", "visited", "overlap", "repo", "blocks"):
        values = np.array([getattr(run, field) for run in runs])
        error = values.std(0) / np.sqrt(len(runs))
        assert (np.abs(values.mean(0) - getattr(expected, field)) < 4 * error + 1e-12).all(), field
    assert all(set(np.unique(run.starts)) <= {0.0, 1.0} for run in runs[:100])


def blocks_by_hand(flags: list[bool], draft_len: int) -> list[int]:
    """Tokens emitted by each block, read off the flags the slow way."""
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


def make(seed: int, width: int = 16, vocab: int = 40) -> Llama:
    model = Llama(LlamaConfig(vocab, width, 2 * width, 1, 2, 2, 64)).initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        model.embed.mul_(20)
    return model


REQUESTS = [(f"r{i}", [1, *range(5, 6 + i % 4), 7 + i]) for i in range(10)]


def test_a_record_of_no_request_is_refused() -> None:
    with pytest.raises(ValueError, match="no request"):
        record(make(0), [], max_new_tokens=12, eos_ids={2})


@pytest.mark.parametrize("sampling", [Sampling(0.0), Sampling(1.0), Sampling(0.7, top_k=10, top_p=0.9)], ids=str)
def test_record_keeps_what_the_target_would_say_again(sampling: Sampling) -> None:
    """The recorded distribution is the teacher-forced distribution of the recorded text at temperature 1, however it was sampled and batched."""
    target = make(0)
    got = record(
        target,
        REQUESTS,
        max_new_tokens=12,
        eos_ids={2, 9},
        sampling=sampling,
        generator=torch.Generator(),
        batch_size=4,
    )
    assert [answer.id for answer in got.answers] == [name for name, _ in REQUESTS]
    prompts, answers = zip(*((answer.prompt_ids, answer.answer_ids) for answer in got.answers), strict=True)
    logits = target.answer_logits(prompts, answers)
    probs = got.target_logits(range(len(REQUESTS))).exp()
    torch.testing.assert_close(probs, logits.softmax(-1), atol=2e-4, rtol=1e-2)
    for answer in got.answers:
        assert answer.finished == (answer.answer_ids[-1] in {2, 9})
        assert answer.finished or len(answer.answer_ids) == 12
        assert not {2, 9} & set(answer.answer_ids[:-1])
    if sampling.temperature == 0:
        assert torch.equal(logits.argmax(-1), torch.tensor([token for answer in answers for token in answer]))


def test_large_vocabularies_keep_the_largest_and_the_emitted_token(monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = make(0), make(1)
    settings = {"max_new_tokens": 12, "eos_ids": {2}, "sampling": Sampling(1.0)}
    whole = record(target, REQUESTS, generator=torch.Generator().manual_seed(5), **settings)
    monkeypatch.setattr("draftlab.engine.recording.WHOLE_VOCAB", 39)
    part = record(target, REQUESTS, generator=torch.Generator().manual_seed(5), keep=8, **settings)
    assert part.answers == whole.answers
    assert part.ids is not None
    assert part.log_probs.shape == (sum(part.lengths), 8 + 1)
    tail = part.log_probs[:, -1].float().exp().numpy()
    np.testing.assert_allclose(tail, 1 - part.log_probs[:, :-1].float().exp().sum(-1).numpy(), atol=1e-3)
    one, other = agree_along(draft, whole), agree_along(draft, part)
    np.testing.assert_allclose(other.ratio, one.ratio, rtol=1e-2)
    assert (np.abs(other.overlap - one.overlap) <= tail + 1e-3).all()
    everything = part.target_logits(range(len(REQUESTS))).exp().sum(-1)
    torch.testing.assert_close(everything, torch.ones_like(everything), atol=1e-3, rtol=0)


def test_reverse_kl_to_a_recorded_distribution_of_a_large_vocabulary_is_nearly_exact() -> None:
    """Float16 rounds the kept mass to 1 or more at sharp positions: what is left for the others must not come out as 0."""
    vocab, positions = 32000, 64
    generator = torch.Generator().manual_seed(0)
    ranks = torch.rand(positions, vocab, generator=generator).argsort(-1) + 1
    sharpness = torch.linspace(1.5, 4, positions)[:, None]
    target = -sharpness * ranks.log() + 0.3 * torch.randn(positions, vocab, generator=generator)
    draft = target + torch.randn(positions, vocab, generator=generator)
    distributions, ids = compact_distribution(target, target.argmax(-1), 64)
    kept = TargetPass([Answer("a", [1], [0] * positions, True)], Sampling(), vocab, distributions, ids, positions)
    assert (distributions[:, :-1].double().exp().sum(-1) >= 1).any()
    exact = target.double().softmax(-1)
    others = exact.scatter(-1, ids.long(), 0.0)
    even = torch.where(others > 0, others.sum(-1, keepdim=True) / (vocab - 64), exact)
    found, best, whole = (
        LOSSES["reverse_kl"](draft, distribution) for distribution in (kept.target_logits([0]), even.log(), target)
    )
    torch.testing.assert_close(found, best, rtol=2e-3, atol=2e-3)  # apart from float16, the best that 64 tokens can do
    assert float((found - whole).abs().median()) < 5e-3
    assert float((found - whole).abs().max()) < 0.3  # at the flattest position, where the others hold a tenth


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


@pytest.fixture
def saved(tmp_path: Path) -> tuple[TargetPass, Path]:
    got = record(make(0), REQUESTS, max_new_tokens=12, eos_ids={2})
    got.save(tmp_path / "pass")
    return got, tmp_path / "pass"


def test_a_saved_pass_is_the_same_pass(saved: tuple[TargetPass, Path]) -> None:
    got, folder = saved
    again = load_pass(folder)
    assert (again.answers, again.sampling, again.forwards) == (got.answers, got.sampling, got.forwards)
    assert torch.equal(again.log_probs, got.log_probs)


def test_passes_in_other_orders_share_their_distributions(saved: tuple[TargetPass, Path]) -> None:
    """Each request keeps its own distributions, and no order of a stream, of which a run has one per seed, copies them."""
    got, folder = saved
    other = dataclasses.replace(got, log_probs=got.log_probs.flip(-1))
    both = join([got.take([3, 0]), other.take([5, 2, 1])])
    expected = [(got, 3), (got, 0), (other, 5), (other, 2), (other, 1)]
    some = both.take([4, 0, 2])
    assert some.log_probs is both.log_probs
    for own, known in ((both, expected), (some, [(other, 1), (got, 3), (other, 5)])):
        assert [answer.id for answer in own.answers] == [found.answers[request].id for found, request in known]
        distributions = torch.cat([found.target_logits([request]) for found, request in known])
        assert torch.equal(own.target_logits(range(len(known))), distributions)
        with pytest.raises(ValueError, match="another order"):
            own.save(folder / "again")
    with pytest.raises(UserError, match="different targets"):
        join([got, dataclasses.replace(got, vocab_size=got.vocab_size + 1)])


def test_a_pass_of_other_answers_is_refused(saved: tuple[TargetPass, Path]) -> None:
    _, folder = saved
    (folder / RECORD).unlink()  # which would notice it first
    lines = (folder / "answers.jsonl").read_text().splitlines(keepends=True)
    (folder / "answers.jsonl").write_text("".join(lines[:-1]))
    with pytest.raises(UserError, match="positions for"):
        load_pass(folder)
    (folder / "distributions.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match="damaged or missing"):
        load_pass(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "KeyError 'sampling'"),
        ({"sampling": {"temperature": "x"}}, "TypeError"),
        ({"sampling": {"heat": 1}}, "TypeError"),
        ({"vocab_size": "x"}, "40 columns does not fit a vocabulary of x tokens"),
        ({"vocab_size": 39}, "40 columns does not fit a vocabulary of 39 tokens"),
    ],
)
def test_a_damaged_description_of_a_pass_is_refused(
    saved: tuple[TargetPass, Path], change: dict[str, object] | None, message: str
) -> None:
    _, folder = saved
    settings = json.loads((folder / "pass.json").read_text())
    (folder / "pass.json").write_text(json.dumps({} if change is None else settings | change))
    with pytest.raises(UserError, match=message):
        load_pass(folder)


def test_bad_input_is_refused(saved: tuple[TargetPass, Path]) -> None:
    got, _ = saved
    with pytest.raises(UserError, match="draft_len is 0"):
        replay(make(1), got, 0)
    with pytest.raises(UserError, match="replay knows no verifier 'rrs'"):
        replay(make(1), got, 3, verifier="rrs")  # type: ignore[arg-type]
    for number in (-1, 10):
        with pytest.raises(UserError, match=f"no request {number}"):
            agree_along(make(1), got, [number])
    with pytest.raises(UserError, match="the draft has 41 tokens, but the recorded target has 40"):
        replay(make(1, vocab=41), got, 3)


def test_batches_keep_to_their_tokens_and_change_no_answer() -> None:
    lengths = [2, 3, 5, 9, 40, 41]
    for size, tokens in ((64, 30), (2, 1000), (64, 1)):
        batches = list(_batches(range(6), lengths, size, tokens))
        assert [number for batch in batches for number in batch] == list(range(6))
        for batch in batches:
            assert len(batch) <= size
            assert len(batch) == 1 or len(batch) * max(lengths[number] for number in batch) <= tokens
    assert list(_batches(range(6), lengths, 64, 30)) == [[0, 1, 2], [3], [4], [5]]
    model = Llama(LlamaConfig(96, 16, 32, 1, 2, 2, 64)).initialise(torch.Generator().manual_seed(0))
    requests = [(str(i), list(range(1, 2 + 3 * i))) for i in range(6)]
    whole, cut = (record(model, requests, max_new_tokens=8, eos_ids={0}, batch_tokens=tokens) for tokens in (65536, 40))
    assert cut.forwards > whole.forwards
    assert cut.answers == whole.answers
    torch.testing.assert_close(cut.log_probs, whole.log_probs, atol=2e-3, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_killed_pass_goes_on_after_its_last_finished_batch(
    temperature: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the same bytes, drawn answers too; at temperature 0 the longest prompts come first."""
    target, asked = make(0), []

    def run(folder: Path, dies_after: int = 99) -> TargetPass:
        def answer(model: Llama, prompts: list[list[int]], **settings: Any) -> list[list[int]]:
            if len(asked) == dies_after:
                raise KeyboardInterrupt
            asked.append(max(map(len, prompts)))
            return generate(model, prompts, **settings)

        monkeypatch.setattr("draftlab.engine.recording.generate", answer)
        settings = {"max_new_tokens": 12, "eos_ids": {2}, "sampling": Sampling(temperature), "batch_size": 2}
        return record(target, REQUESTS, generator=torch.Generator().manual_seed(3), parts=folder, **settings)

    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "killed", dies_after=2)
    got = run(tmp_path / "killed")
    batches = -(-len(REQUESTS) // 2)
    assert len(asked) == batches
    assert asked == sorted(asked, reverse=temperature == 0)
    whole = run(tmp_path / "whole")
    assert len(asked) == 2 * batches
    assert got.answers == whole.answers
    assert got.forwards == whole.forwards
    assert torch.equal(got.log_probs, whole.log_probs)


def test_an_answer_that_repeats_itself_is_told_from_one_that_does_not() -> None:
    assert loops([7] * 8)
    assert not loops([7] * 7)
    assert loops([1, 2, 3, 4, 5, 6, 9] * 3)
    assert not loops([1, 2, 3, 4, 5, 6, 9] * 2)
    assert not loops([])


@pytest.mark.parametrize("kept", [8, 32, 128])
def test_alpha_from_the_kept_tokens_is_off_by_less_than_the_mass_of_the_others(kept: int) -> None:
    """The rest is spread evenly, which hides where draft and target agree: alpha comes out too small, and less so with more kept."""
    generator = torch.Generator().manual_seed(0)
    vocab, positions = 2000, 300
    target = 2.5 * torch.randn(positions, vocab, generator=generator)
    draft = (target + torch.randn(positions, vocab, generator=generator)).softmax(-1)
    log_probs, ids = compact_distribution(target, target.argmax(-1), kept)
    stored = TargetPass([Answer("a", [1], [0] * positions, True)], Sampling(), vocab, log_probs, ids, positions)
    found = stored.target_logits([0]).exp().minimum(draft).sum(-1)
    exact = target.softmax(-1).minimum(draft).sum(-1)
    others = log_probs[:, -1].float().exp()
    assert bool(((exact - found).abs() <= others + 1e-3).all())
    assert 0 < float((exact - found).mean()) < 0.5 * float(others.mean())
