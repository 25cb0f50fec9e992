"""Prompt lookup: its guesses, that it decodes, replays and verifies like a model, and that it leaves the rest to a draft."""

import dataclasses

import numpy as np
import pytest
import torch

from draftlab.conformance import Budget, check_distribution, check_samples
from draftlab.conformance.tables import tables
from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.verify import VERIFIERS
from draftlab.engine.recording import record
from draftlab.engine.replay import agree_along, replay
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.models.hf import new_t5
from draftlab.models.lookup import Lookup
from draftlab.models.ngrams import Ngrams, guesses_along
from draftlab.train.designs import trim_head
from tests.pair import small_llama


@pytest.fixture(scope="module")
def target():
    return small_llama(32, 0, scale=4.0)


def test_it_finds_the_latest_earlier_occurrence_of_the_last_tokens():
    assert Ngrams([1, 2, 5, 1, 2, 6, 1, 2]).guess == 6
    assert Ngrams([1, 2, 5, 3, 2]).guess is None
    assert Ngrams([4, 4, 4]).guess == 4
    assert Ngrams([1, 2]).guess is None
    assert Ngrams().guess is None


def test_a_text_that_grows_and_shrinks_guesses_by_the_definition():
    rng = np.random.default_rng(0)
    grown = Ngrams()
    for _ in range(3000):
        if rng.random() < 0.3:
            grown.trim(int(rng.integers(max(0, len(grown.tokens) - 6), len(grown.tokens) + 1)))
        else:
            grown.append(int(rng.integers(0, 4)))
        text = list(grown.tokens)
        earlier = [text[i + 2] for i in range(len(text) - 2) if text[i : i + 2] == text[-2:]]
        assert grown.guess == (earlier[-1] if earlier else None)
    assert guesses_along(text[:3], text[3:]) == [Ngrams(text[:end]).guess for end in range(3, len(text))]


def test_a_guess_is_certain_and_other_positions_are_uniform(target):
    logits = Lookup(target).answer_logits([[1, 2, 5, 1]], [[2, 5, 9, 7]])
    assert to_probs(logits[1], Sampling(1.0))[5] == 1  # after 1 2 5 1 2
    torch.testing.assert_close(to_probs(logits[3], Sampling(1.0)), torch.full((320,), 1 / 320, dtype=torch.float64))


def test_a_joined_draft_predicts_where_lookup_has_no_guess():
    draft = small_llama(16, 1)
    prompts, answers = [[1, 2, 5, 1]], [[2, 5, 9, 7]]
    joined = Lookup(draft, joined=True).answer_logits(prompts, answers)
    expected = draft.answer_logits(prompts, answers)
    assert to_probs(joined[1], Sampling(1.0))[5] == 1
    torch.testing.assert_close(joined[3], expected[3])
    assert Lookup(draft, joined=True).answer_logits(prompts, answers, torch.tensor([1]))[0, 5] == 0


def passages(count=24):
    """Prompts that repeat themselves."""
    rng = np.random.default_rng(1)
    return [[*(part := rng.integers(3, 40, 5).tolist()), *part, *part[:3]] for _ in range(count)]


@pytest.mark.parametrize("joined", [False, True])
def test_replay_counts_what_greedy_decoding_counts(target, joined):
    prompts, lookup = passages(), Lookup(target if not joined else small_llama(16, 1), joined=joined)
    recorded = record(target, [(str(i), p) for i, p in enumerate(prompts)], max_new_tokens=20, eos_ids={2})
    walked = replay(lookup, recorded, 3)
    decoded = speculate(target, lookup, prompts, draft_len=3, max_new_tokens=20, eos_ids={2})
    assert [trace.answer_ids for trace in decoded.traces] == [answer.answer_ids for answer in recorded.answers]
    assert walked.accepted.tolist() == [sum(trace.accepted) for trace in decoded.traces]
    assert walked.blocks.tolist() == [len(trace.emitted) for trace in decoded.traces]
    assert walked.accepted.sum() > 20


def test_at_temperature_1_it_is_accepted_with_the_targets_probability(target):
    """Of a proposal that is one token, sum_x min(target, draft) is the target's probability of it."""
    prompts, generator = passages(), torch.Generator().manual_seed(0)
    recorded = record(
        target, [(str(i), p) for i, p in enumerate(prompts)], max_new_tokens=12, eos_ids={2},
        sampling=Sampling(1.0), generator=generator,
    )  # fmt: skip
    agree = agree_along(Lookup(target), recorded)
    target_probs = to_probs(recorded.target_logits(range(len(prompts))), Sampling(1.0))
    texts = [(answer.prompt_ids, answer.answer_ids) for answer in recorded.answers]
    guesses = [guess for prompt, answer in texts for guess in guesses_along(prompt, answer)]
    rows = [row for row, guess in enumerate(guesses) if guess is not None]
    assert len(rows) > 20
    np.testing.assert_allclose(agree.overlap[rows], [target_probs[row, guesses[row]] for row in rows], atol=1e-6)


def test_decoding_with_lookup_is_lossless(target):
    """Sampled at temperature 1, every emitted token follows the target's distribution, with lookup, lookup first, and a trimmed head."""
    drafts = {
        "lookup": Lookup(target),
        "lookup first": Lookup(small_llama(16, 1), joined=True),
        "trimmed": trim_head(small_llama(16, 1), list(range(2, 60))),
    }
    for name, draft in drafts.items():
        samples = []

        def observe(request, logits, samples=samples):
            samples.append((request, to_probs(logits, Sampling(1.0))))

        decoded = speculate(
            target, draft, passages(60), draft_len=3, max_new_tokens=20, eos_ids={2}, sampling=Sampling(1.0),
            generator=torch.Generator().manual_seed(0), observe=observe,
        )  # fmt: skip
        by_request = [[row for number, probs in samples if number == request for row in probs] for request in range(60)]
        pairs = zip(by_request, [trace.answer_ids for trace in decoded.traces], strict=True)
        stream = [sample for rows, answer in pairs for sample in zip(rows, answer, strict=True)]
        found = check_samples(stream, Budget(max_samples=len(stream)))
        assert found.lossless, name
        assert found.samples > 800
        assert sum(sum(trace.accepted) for trace in decoded.traces) > 10, name


@pytest.mark.parametrize("name", ["single", "specinfer"])
@pytest.mark.parametrize("shape", ["one token", "trimmed"])
def test_verifiers_are_exactly_lossless_for_such_drafts(name, shape):
    """Over the kit's tables, with the draft on one token alone, or without its last one."""
    verifier, cases = VERIFIERS[name], []
    for table in tables("independent", 1):
        draft = torch.zeros_like(table.draft_probs)
        if shape == "one token":
            draft[..., 0] = 1
        else:
            draft[..., :-1] = table.draft_probs[..., :-1] + table.draft_probs[..., -1:] / (draft.shape[-1] - 1)
        cases.append(dataclasses.replace(table, draft_probs=draft))
    found = check_distribution(verifier.distribution, "independent", 1, cases)
    assert found.lossless
    assert found.cases > 10


def test_it_does_not_decode_with_an_encoder_decoder():
    t5 = new_t5(40, 16, 32, 1, 2, torch.Generator().manual_seed(0))
    with pytest.raises(UserError, match="encoder-decoder"):
        speculate(t5, Lookup(t5, joined=True), [[3, 4, 5]], draft_len=2, max_new_tokens=4, eos_ids={2})
