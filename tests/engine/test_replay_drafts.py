"""Replay of several drafts against live decoding: exactly in expectation over all texts, and within the noise of a sampled run."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.tree import Tree
from draftlab.core.verify import PATH_VERIFIERS, VERIFIERS
from draftlab.core.verify.block import block
from draftlab.core.verify.joint import joint_distribution
from draftlab.core.verify.optimum import optimum_iid
from draftlab.core.verify.sequence import sequences_distribution
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.tree import TreeVerifier
from draftlab.engine import replay_drafts
from draftlab.engine.generate import generate
from draftlab.engine.replay import agreement, walk
from draftlab.engine.replay_drafts import Survival, Texts, blocks, ceiling, survival
from draftlab.engine.speculate import BlockTrace, speculate
from draftlab.errors import UserError
from tests.engine.test_replay import EOS, LONGEST, VOCAB, distribution, texts
from tests.engine.test_speculate import make, near

VERIFIERS_BY_PATH = {name: v for name, v in VERIFIERS.items() if isinstance(v, TreeVerifier) and v.selected}
TOKEN_VERIFIERS = {name: v for name, v in VERIFIERS.items() if isinstance(v, TokenVerifier)}
DRAFT_LEN = 2


@functools.cache
def drafts_of(text: tuple[int, ...], temperatures: tuple[float, ...]) -> torch.Tensor:
    return torch.stack([to_probs(distribution("draft", text).log(), Sampling(t)) for t in temperatures])


def live_expectation(
    verifier: TokenVerifier | TreeVerifier,
    temperatures: tuple[float, ...],
    text: tuple[int, ...],
    known: dict[tuple[int, ...], np.ndarray],
) -> np.ndarray:
    """Expected (accepted, blocks) of live decoding from ``text`` on, over every set of drafted sequences and every outcome."""
    if text and (text[-1] == EOS or len(text) == LONGEST):
        return np.zeros(2)
    if text in known:
        return known[text]
    drafts, path_len = len(temperatures), min(DRAFT_LEN, LONGEST - len(text))
    first = joint_distribution(drafts_of(text, temperatures), verifier.drafting)
    total = np.zeros(2)
    for begin, chance in zip(first.tokens.tolist(), first.probs.tolist(), strict=True):
        for rest in itertools.product(itertools.product(range(VOCAB), repeat=path_len - 1), repeat=drafts):
            paths = [(x, *more) for x, more in zip(begin, rest, strict=True)]
            table = torch.stack(
                [
                    torch.stack([drafts_of(text + p[:i], temperatures)[k] for i in range(path_len)])
                    for k, p in enumerate(paths)
                ]
            )
            drafted = chance
            for k, path in enumerate(paths):
                for i in range(1, path_len):
                    alone = joint_distribution(table[k, i, None], verifier.drafting)
                    drafted *= float(alone.probs[alone.tokens[:, 0] == path[i]].sum())
            target = torch.stack(
                [torch.stack([distribution("target", text + p[:i]) for i in range(path_len + 1)]) for p in paths]
            )
            if isinstance(verifier, TreeVerifier):
                outcomes = verifier.distribution(target, table, torch.tensor(paths))
            else:
                outcomes = sequences_distribution(verifier, target, table, torch.tensor(paths))
            for tokens, probability in outcomes.items():
                emitted = tokens[: LONGEST - len(text)]
                if EOS in emitted:
                    emitted = emitted[: emitted.index(EOS) + 1]
                counts = np.array([min(len(tokens) - 1, len(emitted)), 1.0])
                later = live_expectation(verifier, temperatures, text + emitted, known)
                total += drafted * probability * (counts + later)
    known[text] = total
    return total


@pytest.mark.parametrize(
    ("name", "temperatures"),
    [(name, (1.0, 1.0)) for name in [*TOKEN_VERIFIERS, *VERIFIERS_BY_PATH] if name != "importance"]
    + [(name, (1.0, 2.0)) for name in ("single", "specinfer", "importance_truncated", "importance")],
)
def test_replay_is_unbiased_over_the_text(name: str, temperatures: tuple[float, ...]) -> None:
    """The mean of the replayed counts over all texts of the target is the mean of the live counts, without any sampling."""
    verifier, expected = (TOKEN_VERIFIERS | VERIFIERS_BY_PATH)[name], np.zeros(2)
    same = len(set(temperatures)) == 1
    groups = (2,) if same else (1, 1)
    for text in texts():
        target = torch.stack([distribution("target", text[:i]) for i in range(len(text))])
        draft = torch.stack([distribution("draft", text[:i]) for i in range(len(text))])
        probability = float(torch.stack([target[i, token] for i, token in enumerate(text)]).prod())
        along = Texts(target, draft.log(), torch.tensor(text), [len(text)])
        (found,) = survival([verifier], along, [Sampling(t) for t in dict.fromkeys(temperatures)], groups)
        counted = blocks(found, along.lengths, groups, DRAFT_LEN)
        assert counted.emitted.sum() == pytest.approx(len(text))
        expected += probability * np.array([counted.accepted.sum(), counted.stopped.sum()])
    np.testing.assert_allclose(expected, live_expectation(verifier, temperatures, (), {}), rtol=1e-11)


def two_texts() -> tuple[torch.Tensor, Texts]:
    """Random logits of a target and a draft, and texts of 13 and 7 tokens."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 20, 7, generator=generator)
    token = torch.randint(7, (20,), generator=generator)
    return logits, Texts(to_probs(logits[0], Sampling()), logits[1], token, [13, 7])


@pytest.mark.parametrize("tail", [None, *PATH_VERIFIERS])
def test_one_draft_is_the_replay_of_one_draft(tail: str | None) -> None:
    logits, along = two_texts()
    (found,) = survival([TOKEN_VERIFIERS["specinfer"]], along, [Sampling(1.5)], (1,))
    ours = blocks(found, along.lengths, (1,), 3, PATH_VERIFIERS[tail] if tail else None)
    agree = agreement(logits[1], logits[0], along.token, along.lengths, Sampling(), Sampling(1.5))
    its = walk(agree, 3, tail or "single")  # type: ignore[arg-type]
    np.testing.assert_allclose(ours.stopped.sum(1), its.blocks)
    np.testing.assert_allclose(ours.accepted.sum(1), its.accepted)
    np.testing.assert_allclose(ours.emitted.sum(1), its.emitted)


def test_a_path_keeps_no_fewer_tokens_if_the_number_of_its_drafts_does_not_count() -> None:
    """The smallest of mean products is at least the mean of the smallest, at every start of a block."""
    _, along = two_texts()
    lengths = np.array(along.lengths)
    (found,) = survival([VERIFIERS_BY_PATH["greedy_block"]], along, [Sampling(1.5)], (3,))
    either = [dataclasses.replace(found, by_count=by_count) for by_count in (False, True)]
    without, given = (replay_drafts._prefix_acceptance(one, lengths, (3,), 3) for one in either)
    np.testing.assert_array_equal(without[:, :2], given[:, :2])
    assert (without > given - 1e-12).all()
    assert (without - given).max() > 0.01


@pytest.mark.parametrize("name", ["specinfer", "rrs", "greedy_block"])
def test_a_token_that_neither_model_can_write_ends_its_block(name: str) -> None:
    """Token 2 is written first, which rounding has removed from both distributions; then token 0, as both drafts say."""
    logits, token = torch.tensor([[3.0, 1.0, 0.0]]).expand(2, -1), torch.tensor([2, 0])
    along = Texts(to_probs(logits, Sampling(top_k=1)), logits, token, [2])
    verifier = (TOKEN_VERIFIERS | VERIFIERS_BY_PATH)[name]
    (found,) = survival([verifier], along, [Sampling(top_k=1)], (2,))
    assert found.ratio.tolist() == [[0.0, 1.0]]
    assert blocks(found, [2], (2,), 2).stopped.tolist() == [[1.0, 1.0, 0.0]]


def test_positions_may_be_computed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(2, 20, 7, generator=torch.Generator().manual_seed(3))
    along = Texts(to_probs(logits[0], Sampling(top_p=0.8)), logits[1], torch.arange(20) % 7, [20])
    together, alone = list[Survival](), list[Survival]()
    for found in (together, alone):
        found += survival([TOKEN_VERIFIERS["optimal"]], along, [Sampling(top_p=0.8)], (3,))
        monkeypatch.setattr(replay_drafts, "AT_ONCE", 1)
    np.testing.assert_allclose(alone[0].tables, together[0].tables, atol=1e-14)


@pytest.mark.parametrize("name", ["k_seq", "rrs", "greedy_block"])
def test_a_verifier_of_one_distribution_refuses_two(name: str) -> None:
    along = Texts(torch.full((1, 4), 0.25).double(), torch.zeros(1, 4), torch.tensor([1]), [1])
    verifiers = [TOKEN_VERIFIERS["specinfer"], (TOKEN_VERIFIERS | VERIFIERS_BY_PATH)[name]]
    with pytest.raises(UserError, match=rf"{name} needs drafts of one distribution .*leave the scheme out"):
        survival(verifiers, along, [Sampling(1.0), Sampling(2.0)], (1, 1))


MODEL = make(3, vocab=12)
DRAFT = near(MODEL, 0.5)
PROMPTS = [[1, 2 + i % 9] for i in range(300)]
SAMPLING = Sampling(1.2, top_p=0.95)


def decode_live(
    verifier: TokenVerifier | TreeVerifier, drafts: list[Sampling], seed: int, **options: Any
) -> list[BlockTrace]:
    return speculate(
        MODEL, DRAFT, PROMPTS, draft_len=3, num_drafts=len(drafts), verifier=verifier, sampling=SAMPLING, draft_sampling=drafts,
        max_new_tokens=24, eos_ids=[0], generator=torch.Generator().manual_seed(seed), **options,
    ).traces  # fmt: skip


def write_along(seed: int) -> Texts:
    """A text of the target for each prompt."""
    generator = torch.Generator().manual_seed(seed)
    written = generate(MODEL, PROMPTS, sampling=SAMPLING, max_new_tokens=24, eos_ids=[0], generator=generator)
    with torch.inference_mode():
        target, drafted = (model.answer_logits(PROMPTS, written) for model in (MODEL, DRAFT))
    token = torch.tensor([token for text in written for token in text])
    return Texts(to_probs(target, SAMPLING), drafted, token, [len(text) for text in written])


def check_against_live(
    verifier: TokenVerifier | TreeVerifier,
    drafts: list[Sampling],
    groups: tuple[int, ...],
    seed: int,
    *,
    first: tuple[int, ...] | None = None,
    tail: Any = None,
    tree: Tree | None = None,
    widths: tuple[int, ...] | None = None,
) -> None:
    """Blocks per request of live decoding and of replay, 300 requests each: the difference lies within four standard errors."""
    traces = decode_live(verifier, drafts, seed, tail=tail, tree=tree)
    live = np.array([[len(trace.emitted), sum(trace.accepted)] for trace in traces], float)
    along = write_along(100 + seed)
    (survived,) = survival([verifier], along, list(dict.fromkeys(drafts)), groups)
    counted = blocks(survived, along.lengths, first or groups, 3, tail, widths)
    ours = np.stack([counted.stopped.sum(1), counted.accepted.sum(1)], 1)
    error = np.sqrt((live.var(0) + ours.var(0)) / len(PROMPTS))
    assert (np.abs(live.mean(0) - ours.mean(0)) < 4 * error).all(), (live.mean(0), ours.mean(0), error)


def test_greedy_drafts_are_ranked_as_the_live_loop_ranks_them() -> None:
    """Replay once knew only the most probable token of a greedy draft. A verifier beside it still sees one token."""
    greedy, draft = Sampling(0.0), near(MODEL, 1.5)
    live = speculate(
        MODEL, draft, PROMPTS[:9], draft_len=3, num_drafts=3, verifier=TOKEN_VERIFIERS["ranked"], sampling=greedy,
        max_new_tokens=24, eos_ids=[0],
    ).traces  # fmt: skip
    texts = [trace.answer_ids for trace in live]
    with torch.inference_mode():
        target, drafted = (model.answer_logits(PROMPTS[:9], texts) for model in (MODEL, draft))
    token = torch.tensor([token for text in texts for token in text])
    along = Texts(to_probs(target, greedy), drafted, token, [len(text) for text in texts])
    found = survival([TOKEN_VERIFIERS[name] for name in ("rrs", "ranked")], along, [greedy], (3,))
    alone, ranked = (blocks(one, along.lengths, (3,), 3).stopped.sum(1).tolist() for one in found)
    assert ranked == [len(trace.emitted) for trace in live]
    assert sum(alone) > sum(ranked)


@pytest.mark.parametrize(
    ("name", "hot", "tail"),
    # One for each way of drafting, and one that selects a path: every verifier is compared without sampling above.
    [(name, [1.5, 1.5, 1.5], None) for name in ("specinfer", "optimal", "rrs", "greedy", "ranked", "greedy_block")]
    + [(name, [1.0, 2.0, 2.0], None) for name in ("specinfer", "importance_truncated")]
    + [("k_seq", [1.5, 1.5, 1.5], block), ("specinfer", [1.0, 2.0, 2.0], block)],
)
def test_a_sampled_run_of_the_live_loop_agrees(name: str, hot: list[float], tail: object) -> None:
    groups = (3,) if len(set(hot)) == 1 else (1, 2)
    verifier = (TOKEN_VERIFIERS | VERIFIERS_BY_PATH)[name]
    check_against_live(verifier, [Sampling(t, top_p=0.95) for t in hot], groups, 1, tail=tail)


def test_the_error_of_a_difference_falls_at_least_five_times() -> None:
    """Tokens per target call of the optimal scheme less those of SpecInfer, at the same requests: each decoded live, or along one text."""
    schemes, drafts = [TOKEN_VERIFIERS[name] for name in ("optimal", "specinfer")], [Sampling(1.5, top_p=0.95)] * 3
    live, along = [], write_along(seed=100)
    for seed, verifier in enumerate(schemes):
        traces = decode_live(verifier, drafts, seed)
        live.append(np.array([[sum(trace.emitted), len(trace.emitted)] for trace in traces], float))
    counted = [blocks(found, along.lengths, (3,), 3) for found in survival(schemes, along, drafts[:1], (3,))]
    ours = [np.stack([one.emitted.sum(1), one.stopped.sum(1)], 1) for one in counted]

    def error(one: np.ndarray, other: np.ndarray) -> float:
        residuals = [
            (sums[:, 0] - sums[:, 0].sum() / sums[:, 1].sum() * sums[:, 1]) / sums[:, 1].mean() for sums in (one, other)
        ]
        return float((residuals[0] - residuals[1]).std() / len(one) ** 0.5)

    assert error(*live) > 5 * error(*ours) > 0


@pytest.mark.parametrize(
    ("name", "widths"), [("optimal", (1, 3, 1)), ("rrs", (2, 2, 1)), ("k_seq", (2, 1, 2)), ("ranked", (2, 2, 1))]
)
def test_branches_agree_with_a_sampled_run_of_the_live_loop(name: str, widths: tuple[int, ...]) -> None:
    tree = Tree.of_widths(widths)
    drafts, groups = [Sampling(1.5, top_p=0.95)] * tree.leaves, (2 if name in ("rrs", "ranked") else tree.leaves,)
    check_against_live(TOKEN_VERIFIERS[name], drafts, groups, 2, first=(1,), tree=tree, widths=widths)


def test_sequences_are_the_tree_that_branches_at_its_root() -> None:
    _, along = two_texts()
    (found,) = survival([TOKEN_VERIFIERS["optimal"]], along, [Sampling(1.5)], (3,))
    one, other = blocks(found, along.lengths, (3,), 3), blocks(found, along.lengths, (1,), 3, widths=(3, 1, 1))
    np.testing.assert_array_equal(one.stopped, other.stopped)


@pytest.mark.parametrize(
    ("target", "draft", "drafts", "draft_len"),
    [([0.9, 0.1], [0.3, 0.7], 2, 1), ([0.3, 0.7], [0.05, 0.95], 2, 2), ([0.1, 0.6, 0.3], [0.001, 0.799, 0.2], 4, 3)],
)
def test_no_verifier_exceeds_the_ceiling_where_texts_end(
    target: list[float], draft: list[float], drafts: int, draft_len: int
) -> None:
    """Token 0 ends a text, and the draft expects that too rarely."""
    rng, lengths, tokens = np.random.default_rng(0), [], []
    for _ in range(1500):
        text = rng.choice(len(target), 20, p=target).tolist()
        lengths.append(min(text.index(0) + 1 if 0 in text else 20, 20))
        tokens += text[: lengths[-1]]
    q, p = (torch.tensor(probs, dtype=torch.float64).expand(len(tokens), -1) for probs in (target, draft))
    texts = Texts(q, p.log(), torch.tensor(tokens), lengths)
    (survived,) = survival([TOKEN_VERIFIERS["optimal"]], texts, [Sampling(1.0)], (drafts,))
    best = optimum_iid(q[:1], p[:1], drafts).expand(len(tokens)).numpy()
    one, most = blocks(survived, lengths, (drafts,), draft_len), ceiling(survived, best, lengths, drafts, draft_len)
    found, bound = (counts.emitted.sum() / counts.stopped.sum() for counts in (one, most))
    assert found - 1e-9 < bound < 1.05 * found
    with pytest.raises(UserError, match="either widths or a tail"):
        blocks(survived, lengths, (drafts,), 2, tail=block, widths=(1, drafts))


def test_the_ceiling_of_one_token_is_the_optimum() -> None:
    """Eight drafts, and a best set between two of the levels."""
    q, p = (torch.tensor(probs, dtype=torch.float64).expand(40_000, -1) for probs in ([0.5, 0.5], [0.975, 0.025]))
    token = q.multinomial(1, generator=torch.Generator().manual_seed(0))[:, 0]
    lengths = [20_000, 20_000]
    (survived,) = survival([TOKEN_VERIFIERS["optimal"]], Texts(q, p.log(), token, lengths), [Sampling(1.0)], (8,))
    best = optimum_iid(q[:1], p[:1], 8).expand(40_000).numpy()
    found = ceiling(survived, best, lengths, 8, 1)
    assert found.emitted.sum() / found.stopped.sum() == pytest.approx(1 + best[0], abs=0.005)


def test_the_ceiling_of_the_second_token_is_the_optimum_where_a_level_is_its_set() -> None:
    """Both models are sure of the first token. The target then has (1/2, 1/2), the draft (0.8, 0.2): with two drafts the best set is token 0,
    and the optimum ``1 + 0.5 - 0.8^2``. Half of the texts of each half of the requests have either token."""
    texts = 4
    ratio = np.array([[1.0, second, 1.0] for second in (1.6, 1.6, 0.4, 0.4)]).reshape(1, -1)
    part = Survival([(0,), (1,), (2,)], np.tile(np.eye(3), (3 * texts, 1, 1)), ratio)  # every block is a text
    found = ceiling(part, np.ones(3 * texts), [3] * texts, 2, 2)
    assert found.stopped.sum() == texts
    assert found.emitted.sum() / texts == pytest.approx(1 + 1 + 0.86, rel=1e-12)


@pytest.mark.parametrize(("drafts", "size"), [(2, 20_000), (4, 20_000), (2, 4)])
def test_the_ceiling_is_the_optimum_over_whole_prefixes(drafts: int, size: int) -> None:
    """All blocks start at one text, so one tangent is the right one: the estimate is the enumerated optimum of both depths. On few texts the
    tangent is another one, so the mean of many such estimates lies above it."""
    target = torch.stack([distribution("target", ()), *(distribution("target", (x,)) for x in range(VOCAB))])
    draft = torch.stack([distribution("draft", ()), *(distribution("draft", (x,)) for x in range(VOCAB))])
    prefixes = [(table[0, :, None] * table[1:]).flatten()[None] for table in (target, draft)]
    first = float(optimum_iid(target[:1], draft[:1], drafts))
    exact = 1 + first + float(optimum_iid(prefixes[0], prefixes[1], drafts))
    texts, generator = max(size, 8_000), torch.Generator().manual_seed(drafts)
    x = target[0].multinomial(texts, True, generator=generator)
    y = target[1 + x].multinomial(1, generator=generator)[:, 0]
    ratio = torch.stack([draft[0, x] / target[0, x], (draft[1 + x] / target[1 + x]).gather(-1, y[:, None])[:, 0]], -1)
    ratio = torch.cat([ratio, torch.ones(texts, 1)], -1).flatten().numpy()[None]
    stays = np.tile(np.eye(drafts + 1), (3 * texts, 1, 1))  # every block keeps both tokens, and begins with a text
    states, emitted = [(k,) for k in range(drafts + 1)], 0.0
    for at in range(0, 3 * texts, 3 * size):
        own = slice(at, at + 3 * size)
        part = Survival(states, stays[own], ratio[:, own])
        found = ceiling(part, np.full(3 * size, first), [3] * size, drafts, 2)
        assert found.stopped.sum() == pytest.approx(size)
        emitted += found.emitted.sum() / texts
    low, high = (-0.008, 0.012) if size == texts else (-0.004, 0.3)
    assert exact + low < emitted < exact + high
    assert exact < 3 - 0.01


def test_replay_refuses_a_tail_that_it_does_not_know() -> None:
    """It once replayed each of them token by token."""
    _, along = two_texts()
    (found,) = survival([TOKEN_VERIFIERS["specinfer"]], along, [Sampling(1.5)], (1,))
    unknown = dataclasses.replace(PATH_VERIFIERS["block"], name="unknown")
    with pytest.raises(UserError, match="replay knows no verifier 'unknown'"):
        blocks(found, along.lengths, (1,), 3, unknown)
