"""Recorded passes: what is stored, how exactly, saved, joined, cut into batches, and resumed."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftlab.core.losses import LOSSES
from draftlab.core.sampling import Sampling, to_probs
from draftlab.engine.answers import Answer, loops
from draftlab.engine.generate import generate
from draftlab.engine.recording import TargetPass, _batches, compact_distribution, join, load_pass, on_head, record
from draftlab.engine.replay import agree_along
from draftlab.errors import UserError
from draftlab.files.atomic import SEAL
from draftlab.models.llama import Llama, LlamaConfig
from tests.engine.test_replay import REQUESTS, make


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


@pytest.mark.parametrize("sampling", [Sampling(0.3), Sampling(1.5), Sampling(1.5, top_k=12)], ids=str)
def test_the_kept_tokens_have_their_own_probabilities_at_the_temperature_of_the_answers(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """How probable the others are at temperature 1 does not say how probable they are at another: an even spread weighs more above it."""
    target, draft = make(0), make(1)
    with torch.no_grad():
        target.embed.mul_(0.4)  # flat: the others weigh much
    settings = {"max_new_tokens": 12, "eos_ids": {2}, "sampling": sampling}
    whole = record(target, REQUESTS, generator=torch.Generator().manual_seed(5), **settings)
    monkeypatch.setattr("draftlab.engine.recording.WHOLE_VOCAB", 39)
    part = record(target, REQUESTS, generator=torch.Generator().manual_seed(5), keep=8, **settings)
    part.save(tmp_path / "pass")
    kept, some = join([load_pass(tmp_path / "pass")] * 2), [13, 2, 0]
    assert kept.answers[:10] == whole.answers
    assert kept.ids is not None
    assert kept.ids.shape[1] == max(8, sampling.top_k or 0), "of top-k, all are kept"
    one, other = agree_along(draft, whole, [3, 2, 0]), agree_along(draft, kept, some)
    np.testing.assert_allclose(other.ratio, one.ratio, rtol=2e-2)
    rows = np.concatenate([np.arange(kept.lengths[r]) + kept.first_positions[r] for r in some])
    stored = kept.ids[rows].long()
    probs = to_probs(whole.target_logits([3, 2, 0]), sampling)
    found = to_probs(kept.target_logits(some, to_sample=True), sampling)
    torch.testing.assert_close(found.gather(1, stored), probs.gather(1, stored), atol=2e-3, rtol=2e-2)
    at_one = kept.target_logits(some).exp().sum(-1)
    torch.testing.assert_close(at_one, torch.ones_like(at_one), atol=1e-3, rtol=0)


@pytest.mark.parametrize("stored", ["the whole vocabulary", "eight tokens"])
def test_a_trimmed_head_sees_its_tokens_and_all_others_as_one(monkeypatch: pytest.MonkeyPatch, stored: str) -> None:
    if stored == "eight tokens":
        monkeypatch.setattr("draftlab.engine.recording.WHOLE_VOCAB", 39)
    kept = record(make(0), REQUESTS, max_new_tokens=12, eos_ids={2}, keep=8)
    assert (kept.ids is None) == (stored == "the whole vocabulary")
    head = torch.tensor([7, 0, 31, 4, 2])
    whole = kept.target_logits([1, 0]).softmax(-1)
    assert kept.ids is None or (kept.ids[..., None] == head).any(), "no token of the head is stored"
    columns = kept.target_logits([1, 0], head=head).exp()
    torch.testing.assert_close(columns[:, :-1], whole[:, head], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(columns[:, -1], 1 - whole[:, head].sum(-1), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(columns, on_head(whole.log(), head).exp(), atol=1e-6, rtol=1e-5)


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
    fewer = {"log_probs": got.log_probs[:, 1:]}
    for change in ({"vocab_size": got.vocab_size + 1}, {"sampling": Sampling(1.0)}, fewer):
        with pytest.raises(UserError, match="different targets"):
            join([got, dataclasses.replace(got, **change)])


def test_a_pass_of_other_answers_is_refused(saved: tuple[TargetPass, Path]) -> None:
    _, folder = saved
    (folder / SEAL).unlink()  # which would notice it first
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


def test_a_stored_token_that_is_not_in_the_vocabulary_is_refused(saved: tuple[TargetPass, Path]) -> None:
    got, folder = saved
    for token in (got.vocab_size - 1, got.vocab_size):
        ids = torch.full((len(got.log_probs), 1), token, dtype=torch.int32)
        dataclasses.replace(got, log_probs=got.log_probs[:, :2].contiguous(), ids=ids).save(folder / str(token))
    load_pass(folder / str(got.vocab_size - 1))
    with pytest.raises(UserError, match="does not fit a vocabulary of 40 tokens"):
        load_pass(folder / "40")


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
