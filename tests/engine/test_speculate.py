"""The speculative loop: greedy output token for token, sampled output in distribution, its trace against replay, its refusals."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.sampling import GREEDY, Sampling, to_probs
from draftlab.core.tree import Tree, optimal_tree
from draftlab.core.verify import PATH_VERIFIERS, TREE_VERIFIERS, VERIFIERS
from draftlab.core.verify.token import Decision, TokenVerifier
from draftlab.engine import policy
from draftlab.engine.generate import generate
from draftlab.engine.recording import record
from draftlab.engine.replay import replay
from draftlab.engine.replay_drafts import count_blocks
from draftlab.engine.replay_trees import confident_trees, rank_in, ranked_tree
from draftlab.engine.speculate import Decoded, speculate
from draftlab.errors import UserError
from draftlab.models import LanguageModel, load_model
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.llama_decoder import LlamaCache
from draftlab.models.medusa import Medusa

EOS = 4


def make(seed: int, vocab: int = 40, context: int = 64) -> Llama:
    """A random model, far from an initialisation: its greedy text does not repeat itself at once."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        tie_word_embeddings=False,
    )
    generator, model = torch.Generator().manual_seed(seed), Llama(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.4, generator=generator)
    return model


def near(model: Llama, noise: float) -> Llama:
    """A draft that agrees with ``model`` often, but not always."""
    draft = Llama(model.config)
    draft.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(noise * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(9)))
    return draft


TARGET = make(3)
DRAFT = near(TARGET, 0.1)
PROMPTS = [[1, *range(5, 6 + i % 5), 7 + i] for i in range(9)]
REQUESTS = [(str(number), prompt) for number, prompt in enumerate(PROMPTS)]


def decode(
    prompts: Sequence[Sequence[int]] = PROMPTS, target: Any = TARGET, draft: Any = DRAFT, **changes: Any
) -> Decoded:
    settings = {"draft_len": 4, "max_new_tokens": 20, "eos_ids": [EOS], "generator": torch.Generator().manual_seed(0)}
    if isinstance(name := changes.get("verifier"), str):
        changes["verifier"] = VERIFIERS[name]
    return speculate(target, draft, prompts, **(settings | changes))


def answers_of(decoded: Decoded) -> list[list[int]]:
    return [trace.answer_ids for trace in decoded.traces]


def accepted_by(decoded: Decoded) -> int:
    return sum(sum(trace.accepted) for trace in decoded.traces)


def own_greedy(model: LanguageModel, prompt: Sequence[int], count: int, eos_ids: Sequence[int] = (EOS,)) -> list[int]:
    """The model's greedy answer by whole-sequence forwards alone: no cache, no batch."""
    answer: list[int] = []
    while len(answer) < count and (not answer or answer[-1] not in eos_ids):
        answer.append(int(model.answer_logits([prompt], [[*answer, 0]])[-1].argmax()))
    return answer


@pytest.fixture(scope="module")
def expected() -> list[list[int]]:
    answers = [own_greedy(TARGET, prompt, 20) for prompt in PROMPTS]
    assert {len(answer) for answer in answers} != {20}, "some answers must end early for the tests to mean anything"
    return answers


def test_plain_greedy_is_the_models_own(expected: list[list[int]]) -> None:
    for batch in (1, 4, None):
        assert generate(TARGET, PROMPTS, max_new_tokens=20, eos_ids=[EOS], batch=batch) == expected


@pytest.mark.parametrize("draft_len", [1, 2, 5, 30])
@pytest.mark.parametrize("batch", [1, 4, None])
def test_greedy_output_is_the_targets_own(expected: list[list[int]], draft_len: int, batch: int | None) -> None:
    decoded = decode(draft_len=draft_len, batch=batch, generator=None)
    assert answers_of(decoded) == expected
    assert accepted_by(decoded) > len(PROMPTS)


@pytest.mark.parametrize("verifier", sorted(VERIFIERS))
def test_greedy_target_with_sampled_drafts_says_the_same(expected: list[list[int]], verifier: str) -> None:
    """Any verifier, several sequences: at temperature 0 the target leaves no choice."""
    num_drafts = 1 if verifier == "block" else 3
    decoded = decode(num_drafts=num_drafts, verifier=verifier, draft_sampling=Sampling(1.0, top_k=6))
    assert answers_of(decoded) == expected
    assert accepted_by(decoded) > len(PROMPTS)


def test_recording_says_how_many_batches_are_answered(capsys: pytest.CaptureFixture[str]) -> None:
    record(TARGET, REQUESTS, max_new_tokens=4, eos_ids=[EOS], batch_size=4)
    batches = -(-len(PROMPTS) // 4)
    assert f"batches answered: {batches} of {batches}" in capsys.readouterr().err


@pytest.mark.parametrize("draft_len", [1, 3, 5, 16])
def test_replay_equals_live_decoding_block_by_block(expected: list[list[int]], draft_len: int) -> None:
    target_pass = record(TARGET, REQUESTS, max_new_tokens=20, eos_ids=[EOS], batch_size=4)
    assert [answer.answer_ids for answer in target_pass.answers] == expected
    replayed = replay(DRAFT, target_pass, draft_len)
    live = decode(draft_len=draft_len).traces
    for field in ("accepted", "visited", "overlap", "overlap_repo", "emitted"):
        np.testing.assert_array_equal(getattr(replayed, field), [sum(getattr(trace, field)) for trace in live])
    np.testing.assert_array_equal(replayed.blocks, [len(trace.emitted) for trace in live])
    starts = [at in {0, *np.cumsum(trace.emitted)} for trace in live for at in range(len(trace.answer_ids))]
    np.testing.assert_array_equal(replayed.starts, np.array(starts, dtype=float))


@pytest.mark.parametrize("verifier", ["single", "block"])
def test_replay_of_sampled_texts_agrees_with_live_decoding(verifier: str) -> None:
    """Means over 3,000 texts each; the two sets of texts are independent, so the means differ by chance alone."""
    sampling, prompt = Sampling(0.8, top_k=20), PROMPTS[0]
    settings = {"max_new_tokens": 8, "eos_ids": [EOS], "sampling": sampling}
    requests = [(str(number), prompt) for number in range(3000)]
    generator = torch.Generator().manual_seed(1)
    target_pass = record(TARGET, requests, generator=generator, batch_size=500, **settings)
    replayed = replay(DRAFT, target_pass, 3, verifier=verifier)  # type: ignore[arg-type]
    live = decode([prompt] * 3000, draft_len=3, verifier=verifier, generator=generator, **settings).traces
    fields = (
        ("accepted", "visited", "overlap", "overlap_repo", "emitted")
        if verifier == "single"
        else ("accepted", "emitted")
    )
    for field in fields:
        ours, theirs = getattr(replayed, field), np.array([sum(getattr(trace, field)) for trace in live])
        error = np.sqrt((ours.var() + theirs.var()) / 3000)
        assert abs(ours.mean() - theirs.mean()) < 4 * error, field
    assert abs(replayed.blocks.mean() - np.mean([len(trace.emitted) for trace in live])) < 0.1


def test_replay_of_a_sampled_draft_along_greedy_texts_agrees_with_live_decoding() -> None:
    count, settings = 300, {"max_new_tokens": 12, "eos_ids": [EOS]}
    hot = Sampling(0.3)
    target_pass = record(TARGET, REQUESTS, **settings)  # type: ignore[arg-type]
    replayed = replay(DRAFT, target_pass, 3, draft_sampling=hot)
    generator = torch.Generator().manual_seed(1)
    live = decode(PROMPTS * count, draft_len=3, draft_sampling=hot, generator=generator, **settings).traces
    assert replayed.accepted.sum() < 0.5 * replay(DRAFT, target_pass, 3).accepted.sum()  # a hot draft is another draft
    for field in ("accepted", "visited", "overlap", "overlap_repo"):
        runs = np.array([sum(getattr(trace, field)) for trace in live]).reshape(count, len(PROMPTS)).sum(1)
        assert abs(getattr(replayed, field).sum() - runs.mean()) < 4 * runs.std() / np.sqrt(count), field


def exact_distribution(
    model: Llama, prompt: list[int], sampling: Sampling, count: int, eos_ids: Sequence[int] = (EOS,)
) -> dict[tuple[int, ...], float]:
    """Probability of every text of up to ``count`` tokens, from whole-sequence forwards."""
    distribution: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(count):
        grown: dict[tuple[int, ...], float] = {}
        for text, reached in distribution.items():
            if text and text[-1] in eos_ids:
                grown[text] = reached
                continue
            probs = to_probs(model.answer_logits([prompt], [[*text, 0]])[-1].detach(), sampling)
            for token, chance in enumerate(probs.tolist()):
                if chance:
                    grown[(*text, token)] = reached * chance
        distribution = grown
    return distribution


def check_distribution(texts: Sequence[Sequence[int]], distribution: dict[tuple[int, ...], float]) -> None:
    """Chi-square of sampled texts; texts of fewer than 5 expected samples form one class."""
    counts, runs = Counter(map(tuple, texts)), len(texts)
    assert counts.keys() <= distribution.keys()
    common = [text for text, chance in distribution.items() if chance * runs >= 5]
    seen = [counts[text] for text in common] + [runs - sum(counts[text] for text in common)]
    expected = [runs * distribution[text] for text in common]
    expected += [runs * (1 - sum(distribution[text] for text in common))]
    if expected[-1] < 1e-6:
        seen, expected = seen[:-1], expected[:-1]
    assert stats.chisquare(seen, np.array(expected) * sum(seen) / sum(expected)).pvalue > 1e-4


@pytest.mark.parametrize("verifier", sorted(VERIFIERS))
def test_sampled_output_has_the_targets_distribution(verifier: str) -> None:
    """Chi-square over all texts of up to 3 tokens, thousands of runs in one ragged batch, fixed seed."""
    # A linear program per context, or one request after the other.
    runs = 300 if verifier == "importance" else 1000 if verifier in TREE_VERIFIERS else 3000
    target = make(3, vocab=6)
    sampling = Sampling(0.9, top_k=4)
    prompts = [[1, 3], [1, 3, 5, 2]]
    decoded = decode(
        prompts * runs,
        target,
        near(target, 0.2),
        draft_len=2,
        max_new_tokens=3,
        num_drafts={"block": 1, "single": 1}.get(verifier, 2),
        verifier=verifier,
        sampling=sampling,
        draft_sampling=[Sampling(0.9), Sampling(1.5, top_k=5)] if verifier == "specinfer" else Sampling(1.2),
        generator=torch.Generator().manual_seed(4),
    )
    for number, prompt in enumerate(prompts):
        check_distribution(answers_of(decoded)[number::2], exact_distribution(target, prompt, sampling, 3))
    assert runs / 3 < accepted_by(decoded) < 6 * runs


@pytest.mark.parametrize("verifier", ["rrs", "greedy", "ranked"])
def test_distinct_drafts_of_the_whole_vocabulary_never_miss(verifier: str) -> None:
    """As many distinct drafts as tokens hold whatever the target wants: drawn any other way, some would repeat and miss."""
    target = make(3, vocab=6)
    options = {"draft_len": 1, "max_new_tokens": 30, "eos_ids": [], "num_drafts": 6, "sampling": Sampling(1.0)}
    for trace in decode([[1, 3], [1, 3, 5]], target, near(target, 0.2), verifier=verifier, **options).traces:
        assert trace.accepted == trace.visited == [1] * 15


def test_sampled_drafts_of_a_plain_generator_have_the_same_distribution() -> None:
    target = make(3, vocab=6)
    distribution = exact_distribution(target, [1, 3], Sampling(0.9), 2)
    settings = {"max_new_tokens": 2, "eos_ids": [EOS], "sampling": Sampling(0.9)}
    answers = generate(target, [[1, 3]] * 4000, generator=torch.Generator().manual_seed(0), **settings)
    check_distribution(answers, distribution)


def test_one_draft_is_verified_by_the_verifier_given() -> None:
    calls = []

    def decide(target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor) -> Decision:
        calls.append(tokens.shape)
        return Decision(torch.zeros(tokens.shape, dtype=torch.float64), lambda rows: target[rows])

    mine = TokenVerifier("mine", "iid", decide)  # lossless: it looks at no draft
    decoded = decode(draft_len=3, verifier=mine, sampling=Sampling(1.0))
    assert calls
    accepted = [count for trace in decoded.traces for count in trace.accepted]
    assert np.mean(accepted) < 0.5  # by chance alone; DRAFT is accepted much more often


@pytest.mark.parametrize("verifier", ["k_seq", "specinfer", "optimal"])
def test_truncated_distributions_of_a_large_vocabulary_give_the_same_text(
    verifier: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verified on the tokens that top-k leaves, or on the whole vocabulary, with the same draws."""
    asked: list[bool] = []
    real = policy.verify_sequences
    monkeypatch.setattr(policy, "verify_sequences", lambda *a, **k: asked.append(k["truncated"]) or real(*a, **k))

    def texts(large: int) -> list[list[int]]:
        monkeypatch.setattr(policy, "LARGE_VOCAB", large)
        options = {"sampling": Sampling(1.0, top_k=6), "num_drafts": 2, "verifier": verifier}
        return answers_of(decode(target=make(0), draft=make(1), draft_len=3, max_new_tokens=12, **options))

    whole, restricted = texts(8192), texts(0)
    assert set(asked) == {False, True}
    assert whole == restricted


def test_trace_adds_up() -> None:
    decoded = decode(sampling=Sampling(1.0))
    for trace in decoded.traces:
        assert sum(trace.emitted) == len(trace.answer_ids) <= 20
        assert trace.finished == (trace.answer_ids[-1] == EOS)
        assert EOS not in trace.answer_ids[:-1]
        left = 20
        for drafted, visited, accepted, emitted, overlap in zip(
            trace.drafted, trace.visited, trace.accepted, trace.emitted, trace.overlap, strict=True
        ):
            assert drafted <= left
            left -= emitted
            assert accepted <= visited <= min(accepted + 1, drafted)
            assert emitted in (accepted, accepted + 1)
            assert 0 <= overlap <= visited + 1e-9
    assert decoded.blocks == max(len(trace.emitted) for trace in decoded.traces)
    assert min(decoded.draft_seconds, decoded.target_seconds, decoded.select_seconds) > 0


def test_overlap_is_counted_along_the_path_that_was_chosen() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(60, 3, 3, 5, generator=generator)
    draft = torch.randn(60, 3, 2, 5, dtype=torch.float64, generator=generator).softmax(-1)
    tokens = draft.flatten(0, 2).multinomial(1, generator=generator).view(60, 3, 2)
    specinfer, hot = VERIFIERS["specinfer"], Sampling(1.0)
    how = policy.make_policy(specinfer, 3, 2, hot, hot, generator, None, [DRAFT])
    verification = policy.verify_block(policy.Proposal(tokens, draft), logits, how)
    assert set(verification.path) == {0, 1, 2}
    for row, path in enumerate(verification.path):
        shared = to_probs(logits[row, path, :2], hot).minimum(draft[row, path])
        assert verification.overlap[row] == pytest.approx(shared.sum(-1).tolist())
        drafted = tokens[row, path, :, None]
        assert verification.overlap_repo[row] == pytest.approx(shared.gather(-1, drafted)[:, 0].tolist())


def test_the_time_of_turning_logits_into_distributions_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def slow(*given: Any) -> torch.Tensor:
        now[0] += 1.0
        return to_probs(*given)

    monkeypatch.setattr("draftlab.engine.speculate.to_probs", slow)
    monkeypatch.setattr("draftlab.engine.speculate.clock_of", lambda *given: lambda: now[0])
    decoded = decode(sampling=Sampling(1.0))
    assert decoded.transform_seconds == decoded.blocks
    assert decoded.draft_seconds == decoded.target_seconds == decoded.select_seconds == 0


class Counting:
    """A model that counts the tokens its caches read."""

    def __init__(self, model: Llama) -> None:
        self.model, self.read = model, 0

    def __getattr__(self, name: str) -> object:
        return getattr(self.model, name)

    def decoder(self) -> Counting:
        return self

    def prefill(self, prompts: list[list[int]], room: int) -> object:
        cache, following = self.model.decoder().prefill(prompts, room)
        extend = cache.extend

        def counted(tokens: torch.Tensor) -> torch.Tensor:
            self.read += tokens.numel()
            return extend(tokens)

        cache.extend = counted  # type: ignore[method-assign]
        return cache, following


def test_no_token_is_read_twice() -> None:
    """Batch of one: the target reads last + drafted, the draft each drafted token at most once and what it has not seen."""
    target, draft = Counting(TARGET), Counting(DRAFT)
    trace = decode(PROMPTS[:1], target, draft).traces[0]
    assert target.read == sum(trace.drafted) + len(trace.drafted)
    fully = sum(a == d for a, d in zip(trace.accepted[:-1], trace.drafted[:-1], strict=True))
    assert draft.read == sum(trace.drafted) + fully


def test_context_may_be_filled_to_the_last_place() -> None:
    prompt = [3] * 44
    for prompts in ([prompt], [prompt, [1, 5]]):
        decoded = decode(prompts, draft_len=7, eos_ids=[])
        assert answers_of(decoded) == [own_greedy(TARGET, p, 20, ()) for p in prompts]


def test_real_model_with_its_first_layers_as_draft(shared: Path) -> None:
    target = load_model(shared / "models/stories260K/hf")
    assert isinstance(target, Llama)
    draft = Llama(dataclasses.replace(target.config, num_hidden_layers=3))
    draft.load_state_dict({k: v for k, v in target.state_dict().items() if not k.startswith(("layers.3", "layers.4"))})
    prompts = [[1, 403, 407], [1], [1, 410, 420, 430, 440]]
    decoded = decode(prompts, target, draft, max_new_tokens=60, eos_ids=[1, 2])
    assert answers_of(decoded) == [own_greedy(target, p, 60, (1, 2)) for p in prompts]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"draft_len": 0}, "draft_len is 0"),
        ({"num_drafts": 0}, "num_drafts is 0"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"batch": 0}, "batch is 0"),
        ({"max_new_tokens": 61}, "request 1 has 65 tokens, but the context holds 64"),
        ({"verifier": "block", "num_drafts": 2}, "block verifies one sequence, not 2"),
        ({"sampling": Sampling(1.0), "generator": None}, "sampling without a generator"),
        ({"num_drafts": 2, "draft_sampling": [GREEDY] * 3}, "3 draft samplings for 2 drafts"),
        (
            {"num_drafts": 2, "verifier": "traversal", "sampling": Sampling(1.0), "tail": PATH_VERIFIERS["block"]},
            "traversal verifies whole",
        ),
        (
            {"num_drafts": 2, "verifier": "k_seq", "draft_sampling": [GREEDY, Sampling(1.0)]},
            "k_seq needs drafts of one distribution",
        ),
        ({"draft": [DRAFT] * 2, "num_drafts": 2, "verifier": "k_seq"}, "k_seq needs drafts of one distribution"),
        ({"draft": [DRAFT] * 2, "num_drafts": 3}, "2 draft models for 3 drafts"),
        (
            {"num_drafts": 3, "verifier": "specinfer", "sampling": Sampling(1.0), "draft_sampling": GREEDY},
            "3 drafts from one model at temperature 0 are the same sequence 3 times",
        ),
        (
            {"num_drafts": 2, "verifier": "ranked", "sampling": Sampling(1.0), "draft_sampling": GREEDY},
            "2 drafts from one model at temperature 0",
        ),
        (
            {"num_drafts": 2, "verifier": "ranked", "sampling": Sampling(1.0), "tail": PATH_VERIFIERS["block"]},
            "block verifies drawn tokens",
        ),
        (
            {"tree": ConfidentTree(3, 4, 2), "num_drafts": 3, "verifier": "rrs", "sampling": Sampling(1.0)},
            "rrs needs random drafts",
        ),
        (
            {"tree": ConfidentTree(3, 4, 2), "num_drafts": 2, "verifier": "ranked"},
            "but the tree has 3 leaves of depth 4",
        ),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        decode([[1, 2], [1, 2, 3, 4]], **change)


def test_a_model_whose_numbers_overflow_is_refused_at_temperature_0_too() -> None:
    """Of NaN logits ``argmax`` makes the token of the first NaN, which target and draft would agree on."""
    broken = make(3)
    with torch.no_grad():
        broken.head[7] = torch.inf
    with pytest.raises(UserError, match="logits"):
        generate(broken, PROMPTS[:2], max_new_tokens=3, eos_ids=())
    for drafts, verifier in (([DRAFT], "single"), ([DRAFT, near(DRAFT, 0.1)], "specinfer")):
        with pytest.raises(UserError, match="logits"):
            decode(target=broken, draft=drafts, num_drafts=len(drafts), verifier=verifier)
        with pytest.raises(UserError, match="logits"):
            decode(draft=[broken, *drafts[1:]], num_drafts=len(drafts), verifier=verifier)
    heads = Medusa(TARGET, Tree.of_widths([1, 1, 1, 1]))
    with torch.no_grad():
        heads.project[0, 7] = torch.nan
    with pytest.raises(UserError, match="logits"):
        decode(draft=heads)
    recorded = record(TARGET, REQUESTS[:2], max_new_tokens=3, eos_ids=())
    with pytest.raises(UserError, match="logits"):
        replay(broken, recorded, 2)


def test_different_vocabularies_and_contexts_are_refused() -> None:
    with pytest.raises(UserError, match=r"different vocabularies \(40 and 41 tokens\)"):
        decode([[1, 2]], draft=make(1, vocab=41))
    with pytest.raises(UserError, match="the context holds 16"):
        decode([[1, 2]], draft=make(1, context=16))
    with pytest.raises(UserError, match="no prompts"):
        decode([])
    with pytest.raises(UserError, match="request 0 has an empty prompt"):
        generate(TARGET, [[]], max_new_tokens=3, eos_ids=[EOS])
    for token in (40, -1):
        with pytest.raises(UserError, match=f"request 1 has token {token}, but the vocabulary has 40 tokens"):
            generate(TARGET, [[1], [2, token]], max_new_tokens=3, eos_ids=[EOS])


def hub_pair(kind: str, folder: Path) -> tuple[LanguageModel, LanguageModel]:
    """A random model of transformers and a perturbed copy of it, through the adapter."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "tie_word_embeddings": False}
        network = transformers.T5ForConditionalGeneration(
            transformers.T5Config(vocab_size=40, decoder_start_token_id=0, eos_token_id=EOS, **sizes)
        )
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "tie_word_embeddings": False}
        config = transformers.OPTConfig(
            vocab_size=40, ffn_dim=32, word_embed_proj_dim=16, max_position_embeddings=64, **sizes
        )
        network = transformers.AutoModelForCausalLM.from_config(config)
    for name in ("target", "draft"):
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(torch.randn_like(weight) * (0.4 if name == "target" else 0.02))
        network.save_pretrained(folder / name)
    return load_model(folder / "target"), load_model(folder / "draft")


@pytest.mark.parametrize("kind", ["opt", "t5"])
def test_models_of_transformers_go_through_the_same_loop(kind: str, tmp_path: Path) -> None:
    """Greedy, batched and ragged, one draft and three; replay agrees; decoder-only and encoder-decoder."""
    target, draft = hub_pair(kind, tmp_path)
    expected = [own_greedy(target, prompt, 15) for prompt in PROMPTS]
    assert generate(target, PROMPTS, max_new_tokens=15, eos_ids=[EOS]) == expected
    settings = {"target": target, "draft": draft, "draft_len": 3, "max_new_tokens": 15}
    live = decode(**settings)
    several = decode(num_drafts=3, verifier="specinfer", draft_sampling=Sampling(0.8), **settings)
    ranked = decode(num_drafts=4, verifier="ranked", tree=Tree.of_widths((2, 2, 1)), **settings)
    for decoded in (live, several, ranked):
        assert answers_of(decoded) == expected
        assert accepted_by(decoded) > len(PROMPTS)
    replayed = replay(draft, record(target, REQUESTS, max_new_tokens=15, eos_ids=[EOS]), 3)
    np.testing.assert_array_equal(replayed.blocks, [len(trace.emitted) for trace in live.traces])
    np.testing.assert_array_equal(replayed.accepted, [sum(trace.accepted) for trace in live.traces])
    grown = {"num_drafts": 3, "verifier": "ranked", "tree": ConfidentTree(3, 3, 2)}
    with pytest.raises(UserError, match="cannot read a tree that differs"):
        decode(**settings | grown)
    drafted_by_it = decode(**settings | grown | {"target": TARGET})
    assert answers_of(drafted_by_it) == [own_greedy(TARGET, prompt, 15) for prompt in PROMPTS]


@pytest.mark.parametrize("verifier", ["specinfer", "k_seq", "rrs", "greedy", "ranked"])
@pytest.mark.parametrize(
    "tree", [Tree.of_widths((1, 3, 1)), Tree.of_parents([-1, 0, 1, 2, 1, 0]), Tree.of_widths((2, 2))]
)
def test_a_drafted_tree_has_the_targets_distribution(tree: Tree, verifier: str) -> None:
    """The first three tokens of many answers against the target's exact probabilities; each token of the tree is read once."""
    target, draft = make(1, vocab=5), near(make(1, vocab=5), 0.6)
    sampling = Sampling(1.3, top_p=0.9)  # leaves few tokens: distinct children run out
    prompt = [1, 2, 3]
    decoded = decode(
        [prompt] * 3000, target, draft, draft_len=tree.depth, num_drafts=tree.leaves, tree=tree, verifier=verifier,
        max_new_tokens=3, eos_ids=[], sampling=sampling, generator=torch.Generator().manual_seed(2),
    )  # fmt: skip
    check_distribution(answers_of(decoded), exact_distribution(target, prompt, sampling, 3, eos_ids=()))


@pytest.mark.parametrize("verifier", ["rrs", "greedy", "ranked"])
def test_a_sibling_that_repeats_a_shorter_leaf_adds_no_draft(verifier: str) -> None:
    """One token can be drafted, so the second child of the root repeats the first, which is a leaf. Below the second are other nodes."""
    target, draft = make(1, vocab=4), near(make(1, vocab=4), 0.6)
    tree, sampling = Tree.of_parents([-1, 0, 0, 2, 2, 4]), Sampling(1.3, top_k=3)
    decoded = decode(
        [[1, 2, 3]] * 6000, target, draft, draft_len=tree.depth, num_drafts=tree.leaves, tree=tree, verifier=verifier,
        max_new_tokens=3, eos_ids=[], sampling=sampling, draft_sampling=Sampling(1.0, top_k=1),
    )  # fmt: skip
    check_distribution(answers_of(decoded), exact_distribution(target, [1, 2, 3], sampling, 3, eos_ids=()))


RANKED_TREES = [
    Tree.of_widths((3, 1, 1)),
    Tree.of_widths((2, 2)),
    optimal_tree([[0.6, 0.2, 0.1], [0.5, 0.3], [0.4]], 6),
]


def check_as_replayed(
    decoded: Decoded,
    tree: Tree | ConfidentTree,
    sampling: Sampling,
    prompts: Sequence[Sequence[int]] = PROMPTS,
    target: Llama = TARGET,
    draft: Llama = DRAFT,
) -> None:
    """Given the text that the target wrote, a tree of ranked tokens accepts the longest path of the text in it, which replay finds too."""
    for prompt, trace in zip(prompts, decoded.traces, strict=True):
        if isinstance(tree, ConfidentTree):
            shape = {"nodes": [tree.nodes], "depth": tree.depth, "width": tree.width}
            (kept,) = confident_trees(draft, [prompt], [trace.answer_ids], sampling, **shape)
            survives = np.hstack([np.ones((len(kept), 1)), kept])
        else:
            logits = draft.answer_logits([prompt], [trace.answer_ids])
            order = to_probs(logits, sampling).topk(min(8, draft.vocab_size), -1).indices
            survives = ranked_tree(tree, rank_in(order, torch.tensor(trace.answer_ids)).numpy())
        counted = count_blocks(survives, np.array([len(trace.answer_ids)]))
        assert counted.stopped.sum() == len(trace.emitted)
        assert counted.accepted.sum() == sum(trace.accepted)
        if sampling.temperature != 1:  # greedy ones have no overlap of distributions
            q, p = (to_probs(model.answer_logits([prompt], [trace.answer_ids]), sampling) for model in (target, draft))
            shared, begins = q.minimum(p).sum(-1), np.cumsum([0, *trace.emitted])
            visited = [float(shared[at : at + count].sum()) for at, count in zip(begins, trace.visited, strict=False)]
            assert trace.overlap == pytest.approx(visited, abs=1e-5)


@pytest.mark.parametrize(
    "tree", [*RANKED_TREES, ConfidentTree(6, 3, 4), ConfidentTree(12, 4, 2), ConfidentTree(1, 1, 3)]
)
@torch.inference_mode()
def test_a_tree_of_ranked_tokens_keeps_what_replay_says(expected: list[list[int]], tree: Tree | ConfidentTree) -> None:
    leaves = tree.nodes if isinstance(tree, ConfidentTree) else tree.leaves
    shape = {"tree": tree, "draft_len": tree.depth, "num_drafts": leaves, "verifier": "ranked"}
    sampled = decode(sampling=Sampling(1.2), batch=4, **shape)
    check_as_replayed(sampled, tree, Sampling(1.2))
    greedy = decode(generator=None, batch=4, **shape)
    check_as_replayed(greedy, tree, Sampling(1.0))
    assert answers_of(greedy) == expected
    assert accepted_by(greedy) > len(PROMPTS)


@torch.inference_mode()
def test_requests_of_one_batch_have_their_own_trees_by_confidence() -> None:
    """With five tokens, what follows the end of a leaf is often what the target writes."""
    target, draft = make(1, vocab=5), near(make(1, vocab=5), 0.6)
    prompts, tree, sampling = [[1, 2, 3], [2, 2], [0, 3, 1], [3, 1]] * 10, ConfidentTree(4, 3, 3), Sampling(1.3)
    options = {"draft_len": 3, "num_drafts": 4, "verifier": "ranked", "tree": tree, "sampling": sampling}
    decoded = decode(prompts, target, draft, eos_ids=[], **options)
    check_as_replayed(decoded, tree, sampling, prompts, target, draft)


def test_a_tree_by_confidence_has_the_targets_distribution() -> None:
    target, draft = make(1, vocab=5), near(make(1, vocab=5), 0.6)
    decoded = decode(
        [[1, 2, 3]] * 3000, target, draft, draft_len=2, num_drafts=4, tree=ConfidentTree(4, 2, 3), verifier="ranked",
        max_new_tokens=3, eos_ids=[], sampling=Sampling(1.3, top_p=0.9), draft_sampling=Sampling(2.0),
    )  # fmt: skip
    expected = exact_distribution(target, [1, 2, 3], Sampling(1.3, top_p=0.9), 3, eos_ids=())
    check_distribution(answers_of(decoded), expected)


UNEVEN = {"tree": Tree.of_parents([-1, 0, 0, 2]), "num_drafts": 2, "draft_len": 2}


def test_a_shorter_leaf_is_counted_with_its_own_tokens() -> None:
    """The draft is the target, so every token that was drafted is accepted."""
    sampling = Sampling(1.3)
    decoded = decode(draft=TARGET, verifier="specinfer", sampling=sampling, draft_sampling=sampling, **UNEVEN)
    for trace in decoded.traces:
        assert trace.accepted == trace.visited
        assert sum(trace.overlap) == pytest.approx(sum(trace.visited))
    assert {drafted for trace in decoded.traces for drafted in trace.drafted} == {1, 2}


def test_heads_with_an_uneven_tree_are_refused() -> None:
    heads = Medusa(TARGET, UNEVEN["tree"])
    with pytest.raises(UserError, match="the heads' tree is uneven"):
        decode(draft=heads, draft_len=2, num_drafts=2)
    tree = Tree.of_widths([2, 1])
    with pytest.raises(UserError, match="guess a tree of their own"):
        decode(draft=Medusa(TARGET, tree), draft_len=2, num_drafts=2, tree=tree)


def test_the_target_reads_each_token_of_a_tree_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that all say the same are one sequence to read."""
    read = []
    states = LlamaCache.states

    def count(self: LlamaCache, tokens: torch.Tensor, tree: Tree | None = None) -> torch.Tensor:
        if tree is not None:
            read.append(tokens.shape[1])
        return states(self, tokens, tree)

    monkeypatch.setattr(LlamaCache, "states", count)
    target = make(1)
    options = {"num_drafts": 8, "verifier": "k_seq", "eos_ids": [], "draft_sampling": Sampling(1e-6)}
    decode([[1, 2, 3]], target, near(target, 0.1), **options)
    assert read
    assert max(read) == 5
