"""The two-model loop, controlled acceptance, and what a broken engine or pair leads to."""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import chisquare

from draftlab.core import sampling as sampling_in_torch
from draftlab.core.sampling_numpy import Sampling
from draftlab.core.theory import expected_block_length, speedup
from draftlab.errors import UserError
from draftlab.latency import loop
from draftlab.latency.controlled import continue_text, decode_scheduled, schedule
from draftlab.latency.loop import Block, adaptive, decode, fixed, resume, speculate
from draftlab.latency.pair import open_pair
from draftlab.latency.self_check import write_toy
from draftlab.latency.settings import Engine
from draftlab.models.backend import check_pair, confident_argmax
from draftlab.models.gguf import export
from draftlab.models.gguf_import import ORIGINAL
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.tokenizer import train_tokenizer
from draftlab.stages import STAGES, latency_alpha
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._stage import Bench
from draftlab.stages.latency_alpha import summarise

PROMPT = [1, 5, 9, 4, 7]


class Bigram:
    """A backend whose next token depends on the last one alone, so that the distribution of a text can be written down."""

    vocabulary: dict[str, str] = {}  # noqa: RUF012
    decoder_start: int | None = None

    def __init__(self, table: np.ndarray, context_length: int = 512) -> None:
        self.table, self.vocab_size, self.context_length = table, len(table), context_length
        self.tokens: list[int] = []
        self.ends: set[int] = set()
        self.computed = 0

    def extend(self, tokens: Sequence[int]) -> np.ndarray:
        assert len(self.tokens) + len(tokens) <= self.context_length
        self.tokens.extend(tokens)
        self.computed += len(tokens)
        return np.log(self.table[list(tokens)]).astype(np.float32)

    def prefill(self, tokens: Sequence[int]) -> np.ndarray:
        return self.extend(tokens)[-1]

    def greedy(self, tokens: Sequence[int]) -> np.ndarray:
        return self.extend(tokens).argmax(-1)

    def guess(self, tokens: Sequence[int], min_prob: float = 0.0) -> int | None:
        return confident_argmax(self.prefill(tokens), min_prob)

    def trim(self, length: int) -> None:
        assert length <= len(self.tokens)
        del self.tokens[length:]

    def clock(self) -> Callable[[], float]:
        return time.perf_counter

    def describe(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...


def bigram(vocab: int, seed: int, **options: Any) -> Bigram:
    return Bigram(np.random.default_rng(seed).dirichlet(np.full(vocab, 0.7), vocab).clip(1e-3), **options)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, and a draft that sometimes agrees with it: one of its layers."""
    folder = tmp_path_factory.mktemp("latency")
    write_toy(folder / "target", num_hidden_layers=3, hidden_size=64, vocab_size=96)
    write_toy(folder / "draft", num_hidden_layers=1, hidden_size=64, vocab_size=96)
    from safetensors.numpy import load_file, save_file

    target, draft = (load_file(folder / name / "model.safetensors") for name in ("target", "draft"))
    save_file({name: target[name] for name in draft}, folder / "draft" / "model.safetensors")
    paths = {"target_folder": folder / "target", "draft_folder": folder / "draft"}
    for name in ("target", "draft"):
        paths[name] = folder / f"{name}.gguf"
        export(folder / name, paths[name], vocabulary=False)
    return paths


# --- greedy ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft_len", [1, 2, 3, 5, 8])
def test_llama_cpp_speculative_text_equals_plain_text(files: dict[str, Path], draft_len: int) -> None:
    with LlamaCpp(files["target"]) as target, LlamaCpp(files["draft"]) as draft:
        plain = decode(target, PROMPT, 100)
        fast = speculate(target, draft, PROMPT, 100, fixed(draft_len))
        assert fast.tokens == plain.tokens
        accepted = sum(block.accepted for block in fast.blocks)
        assert 0 < accepted < sum(block.drafted for block in fast.blocks), "both outcomes must have been exercised"
        assert sum(block.accepted + 1 for block in fast.blocks) >= 100 > sum(b.accepted + 1 for b in fast.blocks[:-1])


def test_a_perfect_draft_is_always_accepted(files: dict[str, Path]) -> None:
    with LlamaCpp(files["target"]) as target, LlamaCpp(files["target"]) as draft:
        run = speculate(target, draft, PROMPT, 60, fixed(4))
        assert [block.accepted for block in run.blocks] == [4] * 12
        assert run.tokens == decode(target, PROMPT, 60).tokens


@pytest.mark.parametrize("draft_len", [3, 5])
def test_target_calls_equal_those_of_transformers(files: dict[str, Path], draft_len: int) -> None:
    """``transformers`` assisted generation, an independent implementation: the same text from as many target calls."""
    from transformers import LlamaForCausalLM

    target, draft = (LlamaForCausalLM.from_pretrained(files[f"{name}_folder"]) for name in ("target", "draft"))
    draft.generation_config.num_assistant_tokens = draft_len
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0
    calls, forward = [], target.forward
    target.forward = lambda *args, **kwargs: calls.append(1) or forward(*args, **kwargs)
    prompt = torch.tensor([PROMPT])
    theirs = target.generate(
        prompt, assistant_model=draft, max_new_tokens=60, min_new_tokens=60, do_sample=False, eos_token_id=None,
        attention_mask=torch.ones_like(prompt), pad_token_id=0,
    )  # fmt: skip
    with LlamaCpp(files["target"]) as big, LlamaCpp(files["draft"]) as small:
        ours = speculate(big, small, PROMPT, 60, fixed(draft_len))
    assert ours.tokens == theirs[0, len(PROMPT) :].tolist()
    assert len(ours.blocks) == len(calls)


def test_adaptive_draft_length_changes_blocks_but_not_text(files: dict[str, Path]) -> None:
    choose = adaptive(0.05, {k: 1 + 0.1 * k for k in range(1, 9)})
    with LlamaCpp(files["target"]) as target, LlamaCpp(files["draft"]) as draft:
        run = speculate(target, draft, PROMPT, 100, choose)
        assert run.tokens == decode(target, PROMPT, 100).tokens
        assert len({block.drafted for block in run.blocks}) > 1
    assert choose([Block(8, 8, 8, 8, 0, 0)] * 20) == 8
    assert choose([Block(8, 8, 1, 0, 0, 0)] * 20) == 1


def test_text_stops_after_the_end_token(files: dict[str, Path]) -> None:
    with LlamaCpp(files["target"]) as target, LlamaCpp(files["target"]) as draft:
        text = decode(target, PROMPT, 40).tokens
        eos = {text[10]}
        expected = text[: text.index(text[10]) + 1]
        for draft_len in (1, 3, 7):
            assert speculate(target, draft, PROMPT, 40, fixed(draft_len), eos=eos).tokens == expected
        assert decode(target, PROMPT, 40, eos=eos).tokens == expected


def test_caches_hold_what_the_next_request_can_reuse() -> None:
    target, draft = bigram(8, 0), bigram(8, 0)
    for count in (20, 17, 18, 19):  # blocks of four tokens: three of them end in the middle of a block
        found = speculate(target, draft, [1, 2, 3, 4], count, fixed(3))
        text = [1, 2, 3, 4, *found.tokens]
        assert text[: len(target.tokens)] == target.tokens
        assert len(target.tokens) == len(text) - 1
        assert text[: len(draft.tokens)] == draft.tokens
    computed = target.computed
    resume(target, [*text[:-1], 5, 6])
    assert target.tokens == [*text[:-1], 5, 6]
    assert target.computed == computed + 2, "the conversation so far is kept, not recomputed"
    resume(target, text[:3])
    assert (target.tokens, target.computed) == (text[:3], computed + 2)


def test_near_the_end_of_the_context_blocks_shrink() -> None:
    target, draft = bigram(8, 0, context_length=24), bigram(8, 1, context_length=24)
    run = speculate(target, draft, [1, 2, 3, 4], 20, fixed(6))
    assert run.tokens == decode(target, [1, 2, 3, 4], 20).tokens
    with pytest.raises(UserError, match="do not fit the context of 24"):
        speculate(target, draft, [1, 2, 3, 4], 21, fixed(6))
    with pytest.raises(UserError, match="prompt is empty"):
        decode(target, [], 3)
    with pytest.raises(UserError, match="max_new_tokens is 0"):  # plain decoding would do nothing, speculation a block
        speculate(target, draft, [1, 2], 0, fixed(6))


# --- sampled -----------------------------------------------------------------------------------------------------


def distribution(table: np.ndarray, last: int, length: int, sampling: Sampling) -> dict[tuple[int, ...], float]:
    """Probability of every text of ``length`` tokens after ``last`` that has one."""
    probs = sampling_in_torch.to_probs(torch.from_numpy(table).log(), sampling).numpy()
    texts = itertools.product(range(len(table)), repeat=length)
    found = {text: float(np.prod([probs[a, b] for a, b in itertools.pairwise((last, *text))])) for text in texts}
    return {text: prob for text, prob in found.items() if prob}


@pytest.mark.parametrize(
    ("draft_len", "sampling"),
    [
        (1, Sampling(1.0)),
        (3, Sampling(1.0)),
        (3, Sampling(0.6)),
        (3, Sampling(1.0, top_k=3)),
        (3, Sampling(0.8, top_p=0.8)),
        (3, Sampling(1.0, min_p=0.4)),
    ],
)
def test_sampled_text_has_the_targets_distribution(draft_len: int, sampling: Sampling) -> None:
    target, draft = bigram(4, 0), bigram(4, 1)
    rng = np.random.default_rng(draft_len)
    expected = distribution(target.table, 2, 3, sampling)
    assert (len(expected) < 4**3) == sampling.cuts
    counts = dict.fromkeys(expected, 0)
    runs = 6000
    for _ in range(runs):
        text = speculate(target, draft, [0, 2], 3, fixed(draft_len), sampling=sampling, rng=rng).tokens
        counts[tuple(text)] += 1
    assert chisquare(list(counts.values()), [runs * p for p in expected.values()]).pvalue > 1e-3


def test_plain_sampling_has_the_targets_distribution() -> None:
    target, rng, sampling = bigram(4, 0), np.random.default_rng(0), Sampling(1.0, top_p=0.9)
    expected = distribution(target.table, 2, 2, sampling)
    counts = dict.fromkeys(expected, 0)
    for _ in range(6000):
        counts[tuple(decode(target, [0, 2], 2, sampling=sampling, rng=rng).tokens)] += 1
    assert chisquare(list(counts.values()), [6000 * p for p in expected.values()]).pvalue > 1e-3


@pytest.mark.parametrize("temperature", [1e-308, 5e-324])
def test_a_tiny_temperature_samples_the_greedy_text(temperature: float) -> None:
    target, draft = bigram(4, 0), bigram(4, 1)
    greedy = decode(target, [0, 2], 6).tokens
    assert decode(target, [0, 2], 6, sampling=Sampling(temperature)).tokens == greedy
    assert speculate(target, draft, [0, 2], 6, fixed(2), sampling=Sampling(temperature)).tokens == greedy


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_broken_logits_are_not_sampled_from(broken: float) -> None:
    with pytest.raises(UserError, match="logits hold NaN"):
        loop.to_probs(np.array([[0.0, 1.0], [broken, 1.0]], np.float32), 1.0)
    with pytest.raises(UserError, match="logits hold NaN"):
        loop.to_probs(np.full(3, -np.inf, np.float32), 1.0)


def test_one_verified_token_has_the_targets_distribution() -> None:
    """Every proposal, and every pair of uniforms on a grid: no luck is involved, only the grid's width."""
    rng = np.random.default_rng(3)
    target_probs, draft_probs = rng.dirichlet(np.ones(5)), rng.dirichlet(np.ones(5))
    first, second = (np.arange(150) + 0.5) / 150, (np.arange(20) + 0.5) / 20
    emitted = np.zeros(5)
    for token, u, v in itertools.product(range(5), first, second):
        rng = Uniforms([u, v])
        accepted, after = loop.verify([token], [draft_probs], np.stack([target_probs] * 2), rng)  # type: ignore[arg-type]
        emitted[token if accepted else after] += draft_probs[token] / 3000
    np.testing.assert_allclose(emitted, target_probs, atol=0.01)


class Uniforms:
    """A generator that returns the given numbers."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = numbers

    def random(self) -> float:
        return self.numbers.pop(0)


# --- controlled acceptance ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "draft_len"), [(0.5, 3), (0.8, 5), (0.9, 8), (0.0, 2)])
def test_scheduled_blocks_have_the_expected_length(alpha: float, draft_len: int) -> None:
    kept = schedule(alpha, draft_len, 4000, np.random.default_rng(0))
    assert kept.min() >= 0
    assert kept.max() <= draft_len
    assert np.mean(kept + 1) == pytest.approx(expected_block_length(alpha, draft_len), rel=2e-3)
    for m in range(draft_len):
        assert np.mean(kept == m) == pytest.approx(alpha**m * (1 - alpha), abs=1e-3)


def test_few_scheduled_blocks_are_stratified() -> None:
    means = [np.mean(schedule(0.8, 5, 25, np.random.default_rng(seed)) + 1) for seed in range(50)]
    assert np.std(means) < 0.1, "independent draws would scatter by 0.37"
    steps = np.diff(schedule(0.8, 5, 25, np.random.default_rng(0)))
    assert steps.min() < 0 < steps.max(), "in random order"


def test_an_impossible_acceptance_is_refused() -> None:
    with pytest.raises(UserError, match="alpha is 1"):
        schedule(1.0, 3, 5, np.random.default_rng(0))


def test_scheduled_decoding_does_all_work_and_follows_the_schedule(files: dict[str, Path]) -> None:
    with LlamaCpp(files["target"]) as target, LlamaCpp(files["draft"]) as draft:
        text = continue_text(target, PROMPT, 60)
        assert text[len(PROMPT) :] == decode(target, PROMPT, 60).tokens
        resume(target, PROMPT[:-1])
        resume(draft, PROMPT[:-1])
        run = decode_scheduled(target, draft, text, len(PROMPT), [0, 4, 2, 4, 1], 4)
        assert (run.blocks, run.tokens, run.draft_steps) == (5, 16, 20)
        assert run.disagreements == 0, "the target's own choice must end every block where the schedule does"
        assert target.tokens == text[: len(PROMPT) + 15]
        assert 0 < run.draft_seconds < run.seconds
        assert 0 < run.verify_seconds < run.seconds


def test_a_block_that_the_target_would_end_elsewhere_is_a_disagreement() -> None:
    """Another writer changed some tokens of the target's text."""
    target, draft, lengths = bigram(3, 0), bigram(3, 1), [3, 0, 2, 3, 1, 0, 3, 1, 0, 2]
    text = continue_text(target, [0, 1, 2, 0, 1], 35)
    for place, change in ((7, 1), (14, 1), (18, 2), (26, 2)):
        text[place] = (text[place] + change) % 3
    resume(target, text[:4])
    resume(draft, text[:4])
    run = decode_scheduled(target, draft, text, 5, lengths, 3)
    best, at, disagreements = target.table.argmax(-1).tolist(), 5, 0
    seen: set[tuple[bool, bool]] = set()
    for length in lengths:
        is_kept = [best[text[at + place - 1]] == text[at + place] for place in range(length)]
        chooses_wrong = length < 3 and best[text[at + length - 1]] == (text[at + length] + 1) % 3
        disagreements += chooses_wrong or not all(is_kept)
        seen |= {(chooses_wrong, all(is_kept))}
        at += length + 1
    assert seen >= {(False, True), (False, False), (True, True)}, "agrees, ends earlier, goes on"
    assert run.disagreements == disagreements


SETTINGS = latency_alpha.Settings(
    alpha=[0.5, 0.8], draft_len=[2, 4], inflated_layers=0, inflated_ffn=0, blocks=3, rounds=2
)


def run_alpha(settings: latency_alpha.Settings, target: Path, draft: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    return latency_alpha.run(settings, TargetAndDraft(target=target, draft=draft), Bench(Path()))


def test_alpha_experiment_rows(files: dict[str, Path]) -> None:
    settings = SETTINGS.model_copy(update={"inflated_layers": 6, "inflated_ffn": 512})
    rows, run = run_alpha(settings, files["target_folder"], files["draft"])
    last = rows.groupby(["alpha", "draft_len"])
    assert set(last.groups) == {(0.5, 2), (0.5, 4), (0.8, 2), (0.8, 4)}
    assert (last.size() == 3).all()
    assert (rows["rounds"] == 2).all()
    assert (rows["disagreements"] == 0).all()
    assert (rows["draft_steps"] == 2 * rows["draft_len"]).all()
    seconds = rows.filter(like="seconds")
    assert seconds.shape[1] == 7
    assert (seconds > 0).all(axis=None)
    assert run["target"]["inflated_from"] is not None
    assert (run["target"]["threads"], run["target"]["weights"]) == (1, "f32")
    assert run["target"]["llama_version"]
    assert run["drafts"][0]["file"] == "draft.gguf"


def test_a_large_target_is_not_inflated(files: dict[str, Path]) -> None:
    settings = SETTINGS.model_copy(update={"inflated_layers": 2, "alpha": [0.5], "draft_len": [2]})
    _, run = run_alpha(settings, files["target_folder"], files["draft"])
    rows, plain = run_alpha(SETTINGS, files["target"], files["draft"])
    assert run["target"]["parameters"] == plain["target"]["parameters"]
    assert set(rows["weights"]) == {"f32"}
    with pytest.raises(UserError, match="cannot be inflated"):
        run_alpha(settings, files["target"], files["draft"])


def test_noisy_cells_are_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def noisy(rows: pd.DataFrame) -> pd.DataFrame:
        cells = rows[["alpha", "draft_len"]].drop_duplicates()
        calls.append(len(cells))
        return cells.assign(quiet=(cells["alpha"] != 0.8) | (len(calls) > 2))

    monkeypatch.setattr(latency_alpha, "summarise", noisy)
    rows = latency_alpha.measure(bigram(16, 0), bigram(16, 1), SETTINGS)
    assert calls == [4, 2, 2]
    assert rows.groupby("alpha")["attempt"].unique().map(list).to_dict() == {0.5: [0], 0.8: [2]}
    assert len(rows) == 12
    monkeypatch.setattr(latency_alpha, "summarise", lambda rows: noisy(rows).assign(quiet=True))
    at_once = latency_alpha.measure(bigram(16, 0), bigram(16, 1), SETTINGS)
    work = [column for column in rows if not STAGES["latency_alpha"].is_timed(column, {})]
    assert set(work) >= {"tokens", "disagreements"}
    assert at_once[work].equals(rows[work])


def test_summary_of_known_times() -> None:
    alpha, draft_len, plain, verify, step = 0.8, 3, 0.010, 0.016, 0.0005
    row = {
        "alpha": alpha, "draft_len": draft_len, "plain_before_seconds": 4 * plain, "plain_after_seconds": 4 * plain,
        "plain_steps": 8, "rounds": 5, "tokens": 14, "draft_steps": 15, "draft_seconds": 15 * step,
        "verify_seconds": 5 * verify, "seconds": 5 * (verify + 3 * step), "disagreements": 1,
        "verify_probe_seconds": 2 * verify, "verify_probes": 2, "draft_probe_seconds": 6 * step, "draft_probes": 6,
    }  # fmt: skip
    rows = pd.DataFrame([row | {"block": block} for block in range(4)])
    (found,) = summarise(rows).to_dict("records")
    expected = speedup(alpha, draft_len, step / plain, verify / plain)
    assert found["speedup"] == pytest.approx(expected)
    assert found["calibrated"] == pytest.approx(expected)
    assert found["eq1"] == pytest.approx(speedup(alpha, draft_len, step / plain))
    assert found["verify_ratio"] == pytest.approx(1.6)
    assert latency_alpha.derive(rows)["plain_ms"].tolist() == pytest.approx([10] * 4)
    assert found["quiet"]
    shaken = rows.assign(seconds=rows["seconds"] * [1, 1.3, 0.8, 1])
    assert not summarise(shaken)["quiet"].item()
    rows = pd.DataFrame([row | {"block": block} for block in range(9)])
    for name, times in (("plain_before_seconds", 10), ("seconds", 2)):  # one interruption hardly moves the quartiles
        interrupted = rows.assign(**{name: rows[name] * [times, *[1] * 8]})
        assert not summarise(interrupted)["quiet"].item()


# --- bad input ---------------------------------------------------------------------------------------------------


def test_pairs_that_read_ids_differently_are_refused(files: dict[str, Path], tmp_path: Path) -> None:
    write_toy(tmp_path / "other", vocab_size=64)
    write_toy(tmp_path / "ends", vocab_size=96, eos_token_id=3)
    for name in ("other", "ends"):
        export(tmp_path / name, tmp_path / f"{name}.gguf", vocabulary=False)
    with LlamaCpp(files["target"]) as target:
        with LlamaCpp(tmp_path / "other.gguf") as other, pytest.raises(UserError, match="96 tokens, the draft has 64"):
            speculate(target, other, PROMPT, 4, fixed(2))
        with (
            LlamaCpp(tmp_path / "ends.gguf") as ends,
            pytest.raises(UserError, match="eos is token 2 in the target and 3"),
        ):
            check_pair(target, ends)
    write_toy(tmp_path / "pads", vocab_size=96, bos_token_id=0, pad_token_id=1)
    export(tmp_path / "pads", tmp_path / "pads.gguf", vocabulary=False)
    with LlamaCpp(files["target"]) as target, LlamaCpp(tmp_path / "pads.gguf") as pads:
        check_pair(target, pads)  # as Vicuna and LLaMA-160M, whose bos and pad differ: no verifier reads them
    one, two = bigram(4, 0), bigram(4, 1)
    one.vocabulary, two.vocabulary = {"tokens": "a"}, {"draftlab": "b"}  # nothing to compare
    check_pair(one, two)
    one.ends, two.ends = {1, 3}, {3}  # as Llama 3.1 in a GGUF file, and in a folder
    check_pair(one, two)
    two.vocabulary = {"draftlab": "b", "tokens": "c"}
    with pytest.raises(UserError, match="different tokens"):
        check_pair(one, two)


@pytest.mark.parametrize("backend", ["llama_cpp", "torch"])
def test_a_draft_may_end_its_answers_otherwise_where_the_tokens_are_the_same(backend: Any, tmp_path: Path) -> None:
    """As the base model of an instructed target, which ends with its text; no verifier reads where a draft would end."""
    for name, end in (("target", 2), ("draft", 3)):
        write_toy(tmp_path / name, vocab_size=300, eos_token_id=end)
        train_tokenizer(["a few words"] * 9, 300).save(tmp_path / name)
    opened = open_pair(
        *(tmp_path / name for name in ("target", "draft")), settings=Engine(backend=backend), context_length=64
    )
    with opened as (target, draft):
        assert (target.ends, draft.ends) == ({2}, {3})
        assert speculate(target, draft, [5, 9], 8, fixed(2)).tokens == decode(target, [5, 9], 8).tokens


def test_a_gguf_file_is_timed_as_it_is_or_refused(files: dict[str, Path], tmp_path: Path) -> None:
    export(files["draft_folder"], tmp_path / "draft.gguf", "q8_0", vocabulary=False)
    for weights in ("own", "q8_0"):
        with open_pair(tmp_path / "draft.gguf", settings=Engine(weights=weights), context_length=64) as (model,):
            assert model.describe()["weights"] == "q8_0"
    other = open_pair(tmp_path / "draft.gguf", settings=Engine(weights="f16"), context_length=64)
    with pytest.raises(UserError, match=r"draft\.gguf: the file holds q8_0 weights, not f16"), other:
        pytest.fail("the file would be timed with other weights than asked for")


def test_a_folder_whose_gguf_file_is_gone_says_so(files: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(files["draft_folder"], tmp_path / "draft")
    (folder / ORIGINAL).symlink_to(tmp_path / "moved.gguf")
    own = open_pair(folder, settings=Engine(), context_length=64)
    with pytest.raises(UserError, match=r"is gone: .*moved\.gguf"), own:
        pytest.fail("there is nothing to open")
    with open_pair(folder, settings=Engine(weights="f32"), context_length=64) as (model,):
        assert model.vocab_size == 96


def test_files_made_elsewhere_are_compared_token_by_token(shared: Path, tmp_path: Path) -> None:
    """Without draftlab's own digest in them."""
    folder = shared / "models" / "stories260K"
    whole = (folder / "stories260K-f32.gguf").read_bytes()
    assert whole.count(b"\xe2\x96\x81time") == 1
    (tmp_path / "other.gguf").write_bytes(whole.replace(b"\xe2\x96\x81time", b"\xe2\x96\x81emit"))
    with LlamaCpp(folder / "stories260K-f32.gguf") as target, LlamaCpp(folder / "stories260K-f32.gguf") as same:
        assert list(target.vocabulary) == ["tokens"]
        check_pair(target, same)
        with LlamaCpp(tmp_path / "other.gguf") as other, pytest.raises(UserError, match="different tokens"):
            check_pair(target, other)
