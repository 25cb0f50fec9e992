"""Live decoding with several drafted sequences: its emitted distribution, different drafts, and what the tables say of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from draftlab.conformance import check_samples, check_sequence_sampler
from draftlab.conformance.sequential import Budget
from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.verify import VERIFIERS
from draftlab.core.verify.block import block
from draftlab.core.verify.sequence import verify_sequences
from draftlab.core.verify.specinfer import specinfer
from draftlab.core.verify.token import Decision, TokenVerifier
from draftlab.data.prompts import Prompt
from draftlab.engine.held_out import Request, Work
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.models.llama_decoder import LlamaDecoder
from draftlab.stages import blocks, live
from draftlab.stages._stage import Bench
from tests.engine.test_speculate import make, near, own_greedy
from tests.stages.test_blocks_and_trees import pair_with_prompts

VOCAB, EOS = 6, 5
TARGET = make(3, vocab=VOCAB)
DRAFTS = [near(TARGET, noise) for noise in (0.3, 0.6, 1.0)]
PROMPTS = [[1, 2 + i % 3] for i in range(60)]
SAMPLING = Sampling(1.3, top_p=0.95)


def noisy(model, seed):
    """A draft that errs in a way of its own."""
    generator, draft = torch.Generator().manual_seed(seed), near(model, 0.0)
    with torch.no_grad():
        for weight in draft.parameters():
            weight.add_(0.15 * weight.std() * torch.randn(weight.shape, generator=generator))
    return draft


def emitted(drafts, count, draft_sampling, verifier, **options):
    """Every emitted token with the target's own distribution there, request after request; lengths are fixed beforehand."""
    traces = speculate(
        TARGET, drafts, PROMPTS * 6, draft_len=3, max_new_tokens=6, eos_ids=[EOS], num_drafts=count, verifier=verifier,
        sampling=SAMPLING, draft_sampling=draft_sampling, generator=torch.Generator().manual_seed(count), **options
    ).traces  # fmt: skip
    answers = [trace.answer_ids for trace in traces]
    with torch.inference_mode():
        distributions = to_probs(TARGET.answer_logits(PROMPTS * 6, answers), SAMPLING)
    return zip(distributions, (token for answer in answers for token in answer), strict=True)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize(
    ("verifier", "kind"),
    [(name, "identical") for name in ("specinfer", "k_seq", "importance_truncated", "optimal", "rrs")]
    + [(name, kind) for name in ("specinfer", "importance_truncated") for kind in ("temperatures", "models")],
)
def test_the_live_generator_emits_the_targets_distribution(count, verifier, kind):
    hot = [Sampling(t, top_p=0.95) for t in (1.2, 2.0, 0.7)]
    drafts, sampling = {
        "identical": (DRAFTS[0], hot[1]),
        "temperatures": (DRAFTS[0], hot[:count]),
        "models": (DRAFTS[:count], hot[:count]),
    }[kind]
    found = check_samples(emitted(drafts, count, sampling, VERIFIERS[verifier]), Budget(false_alarm=1e-3))
    assert found.samples > 1000
    assert found.lossless, found


@pytest.mark.parametrize("verifier", ["rrs", "greedy"])
def test_distinct_drafts_are_as_many_as_there_are_tokens(verifier):
    """A nucleus of one to four tokens, five drafts: too few tokens are fewer drafts, not an error."""
    samples = emitted(DRAFTS[0], 5, Sampling(1.0, top_k=4, top_p=0.8), VERIFIERS[verifier])
    found = check_samples(samples, Budget(false_alarm=1e-3))
    assert found.samples > 1000
    assert found.lossless, found


@pytest.mark.parametrize("count", [2, 3])
def test_a_generator_that_verifies_with_another_distribution_is_caught(count):
    """The test above can fail: drafts are verified as if they had come from a uniform distribution."""

    def wrong(target_probs, draft_probs, tokens) -> Decision:
        return specinfer.decide(target_probs, torch.full_like(draft_probs, 1 / VOCAB), tokens)

    mutant = TokenVerifier("wrong", "independent", wrong)
    assert not check_samples(emitted(DRAFTS[0], count, Sampling(1.2), mutant), Budget(false_alarm=1e-3)).lossless


@pytest.mark.parametrize("verifier", ["k_seq", "importance_truncated"])
def test_blocks_at_the_end_keep_the_distribution_and_lengthen_the_blocks(verifier):
    assert check_samples(emitted(DRAFTS[1], 2, Sampling(1.5), VERIFIERS[verifier], tail=block), Budget()).lossless

    def sample(target, draft, tokens, generator):
        walked = verify_sequences(VERIFIERS[verifier], target, draft, tokens, generator, tail=block)
        rows = zip(tokens.tolist(), walked.path.tolist(), walked.length.tolist(), walked.token.tolist(), strict=True)
        return [(*paths[path][:length], token) for paths, path, length, token in rows]

    found = check_sequence_sampler(sample, VERIFIERS[verifier].drafting, 3, 3, 2, Budget(20_000))
    assert found.lossless, found


@pytest.mark.parametrize("order", [[0, 1], [1, 0], [2, 0, 1]])
def test_greedy_drafts_of_different_models_keep_the_longest_agreement_of_each_block(order):
    """Block by block against drafts written from scratch: no cache may lag behind the sequence that stood."""
    target = make(3)  # 40 tokens: its greedy text does not repeat itself
    drafts = [noisy(target, number) for number in order]
    options = {"draft_len": 3, "max_new_tokens": 20, "eos_ids": [], "verifier": specinfer}
    traces = speculate(target, drafts, PROMPTS[:9], num_drafts=len(drafts), **options).traces
    switched = 0
    for prompt, trace in zip(PROMPTS, traces, strict=False):
        text = own_greedy(target, prompt, 20, [])
        assert trace.answer_ids == text
        at = 0
        for emitted in trace.emitted:
            written = [own_greedy(model, [*prompt, *text[:at]], 3, []) for model in drafts]
            agreed = [sum(text[at : at + i] == drafted[:i] for i in range(1, 4) if at + i <= 20) for drafted in written]
            assert emitted == min(max(agreed) + 1, 20 - at)
            switched += agreed[0] < max(agreed)
            at += emitted
    assert switched > 3


def test_a_first_draft_that_is_the_target_is_always_accepted():
    traces = speculate(
        TARGET, [TARGET, DRAFTS[2]], PROMPTS[:20], draft_len=3, max_new_tokens=12, eos_ids=[], num_drafts=2,
        verifier=specinfer, sampling=Sampling(1.0), generator=torch.Generator().manual_seed(0),
    ).traces  # fmt: skip
    assert all(trace.accepted == trace.visited for trace in traces)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A live experiment on a toy pair: its rows."""
    folder = tmp_path_factory.mktemp("live")
    inputs = pair_with_prompts(folder, 5, Prompt("long", "toy", "eval", "word " * 90))
    settings = live.Settings(
        schemes=["plain", "single", "k_seq", "importance_truncated", "k_seq+block"], num_drafts=[2, 3], draft_len=2,
        draft_temperature=[1.0, 1.5], lp_threshold=[2, 5], requests=6, batch=2, max_new_tokens=8, quality=True,
    )  # fmt: skip
    return settings, live.run(settings, inputs, Bench(folder))[0]


def test_every_contender_is_there_once_and_answers_every_request_that_fits(tables):
    settings, rows = tables
    every = live.contenders(settings)
    assert len(every) == 1 + 2 + 2 * 2 * 2 + 2 * 2 * 2 == len(set(every))
    counts = rows.groupby(["scheme", "num_drafts", "draft_temperature", "lp_threshold"])["request_id"].agg(list)
    assert len(counts) == len(every)
    assert all(sorted(found) == [0, 1, 2, 3, 4] for found in counts)


def test_rows_hold_counts_and_times_that_agree(tables):
    _, rows = tables
    assert (rows["emitted"] <= 8).all()
    assert (rows["blocks"] <= rows["emitted"]).all()
    drafted = rows[rows["scheme"] != "plain"]
    assert (drafted["accepted"] <= drafted["visited"]).all()
    parts = ["draft_seconds", "target_seconds", "transform_seconds", "select_seconds"]
    assert (drafted[parts] > 0).all(axis=None)
    assert (plain := rows[rows["scheme"] == "plain"])["transform_seconds"].eq(0).all()
    np.testing.assert_allclose(live.derive(rows)["seconds"], rows[parts].sum(axis=1))
    assert (plain["blocks"] == plain["emitted"]).all()
    assert (plain[["draft_seconds", "select_seconds"]] == 0).all(axis=None)
    assert drafted["emitted"].sum() / drafted["blocks"].sum() > 1.05
    assert rows[["rouge_l", "bleu"]].notna().all(axis=None)


def test_no_contender_is_charged_for_its_prompts(monkeypatch):
    """A clock on which the prompts take 1000 seconds, and each look at it a second."""
    now, prefill = [0.0], LlamaDecoder.prefill

    def look(after=1.0):
        now[0] += after
        return now[0]

    def prefilled(*given):
        look(1000.0)
        return prefill(*given)

    monkeypatch.setattr(LlamaDecoder, "prefill", prefilled)
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(live.time, name, look)
    settings = live.Settings(
        schemes=["plain", "single"], num_drafts=[1], draft_temperature=[1.0],
        draft_len=2, requests=2, batch=2, max_new_tokens=4,
    )  # fmt: skip
    work, batch = Work(TARGET, DRAFTS[0], None, []), [Request(i, prompt, None) for i, prompt in enumerate(PROMPTS[:2])]
    for contender in live.contenders(settings):
        decoded = live.decode(contender, batch, settings, work, [], torch.Generator().manual_seed(0))
        assert 0 < decoded.target_seconds < 1000


@pytest.mark.parametrize("first", [1.2, 0.0])
def test_one_temperature_can_be_the_first_drafts_alone(first):
    settings = live.Settings(
        schemes=["single", "specinfer"], num_drafts=[3], draft_len=2, draft_temperature=[1.6, 2.0], first_temperature=first,
        requests=1, batch=1, max_new_tokens=4,
    )  # fmt: skip
    alone, *several = live.contenders(settings)
    assert alone.draft_temperatures == [first]
    assert [c.draft_temperatures for c in several] == [[first, 1.6, 1.6], [first, 2.0, 2.0]]


def test_scores_of_answers():
    same = live.score("the cat sat on the mat today", "the cat sat on the mat today")
    assert same == pytest.approx({"rouge_l": 1, "bleu": 1})
    # 3 of 4 words in order on both sides; no 3-gram in common, so BLEU is small.
    other = live.score("the cat sat down", "a cat sat down")
    assert other["rouge_l"] == pytest.approx(0.75)
    assert 0.4 < other["bleu"] < 0.8
    assert np.isnan(list(live.score("x", None).values())).all()


OWN = """
from draftlab.core.verify.path import PathVerifier, single_path

path = PathVerifier("path", single_path.decide)
"""


def test_a_verifier_of_a_path_of_ones_own_decodes_alone_and_as_a_tail(tmp_path, monkeypatch):
    """It is ``single`` under another name: the same draws give the same answers."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "path_of_mine.py").write_text(OWN)
    name = "path_of_mine.py:path"
    shape = {"num_drafts": [1, 2], "draft_temperature": [1.0], "draft_len": 3, "requests": 2, "batch": 2}
    settings = live.Settings(schemes=["single", name, f"specinfer+{name}", "specinfer"], max_new_tokens=12, **shape)
    every = live.contenders(settings)
    assert [one.num_drafts for one in every if one.scheme in ("single", name)] == [1, 1]
    assert [one.tail.name if one.tail else None for one in every[:3]] == [None, name, name]
    assert not any(blocks.is_counted(one) for one in every if name in one.scheme)
    planned = [(one.scheme, one.num_drafts) for one in live.contenders(settings, runs=False)]
    assert (name, 2) in planned, "a plan runs no code of the user's own"
    work, batch = Work(TARGET, DRAFTS[0], None, []), [Request(i, prompt, None) for i, prompt in enumerate(PROMPTS[:2])]

    def answers(contender):
        traces = live.decode(contender, batch, settings, work, [], torch.Generator().manual_seed(0)).traces
        return [(trace.answer_ids, trace.accepted) for trace in traces]

    assert answers(every[0]) == answers(every[1])
    assert answers(replace(every[2], num_drafts=1)) == answers(every[0])
    with pytest.raises(UserError, match=r"path verifies one path, which has no rest \(leave \+block out\)"):
        _ = replace(every[1], scheme=f"{name}+block").tail
