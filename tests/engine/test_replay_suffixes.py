"""Suffix decoding along recorded answers: the blocks of a plain loop over each text, without the answer itself in its memory."""

import numpy as np
import pytest
import torch

from draftlab.core.sampling import Sampling
from draftlab.engine import replay_suffixes
from draftlab.engine.recording import record
from draftlab.engine.replay_lengths import cut, draft_everywhere
from draftlab.engine.replay_suffixes import continue_everywhere, first_or_else, search_seconds
from draftlab.models.suffixes import Memory, Suffixes
from tests.models.test_lookup import passages
from tests.pair import small_llama


@pytest.fixture(scope="module")
def recorded():
    prompts = [(str(i), p) for i, p in enumerate(passages())]
    return record(small_llama(32, 0, scale=4.0), prompts, max_new_tokens=14, eos_ids={2})


def served(answer, memory: Memory, longest: int, least: float) -> list[tuple[int, int]]:
    """The drafted and accepted tokens of each block of a plain loop."""
    blocks, place, text = [], 0, answer.answer_ids
    while place < len(text):
        tokens = Suffixes([*answer.prompt_ids, *text[:place]], memory).path(longest, least).tokens
        accepted = 0
        while accepted < len(tokens) and text[place + accepted : place + accepted + 1] == [tokens[accepted]]:
            accepted += 1
        blocks.append((len(tokens), accepted))
        place += accepted + 1
    return blocks


def test_the_blocks_are_those_of_a_loop(recorded):
    answers = recorded.answers
    for least in (0.0, 0.6):
        drafted = continue_everywhere(recorded, answers, 4, least)
        blocks = cut(drafted, drafted.without_model())
        found = [served(a, Memory(b.answer_ids for b in answers if b is not a), 4, least) for a in answers]
        assert blocks.blocks.tolist() == [len(own) for own in found]
        assert blocks.drafted.tolist() == [sum(drafted for drafted, _ in own) for own in found]
        assert blocks.accepted.tolist() == [sum(accepted for _, accepted in own) for own in found]
        assert not blocks.steps.any(), "no model makes a step"
        assert 0 < blocks.accepted.sum() < blocks.drafted.sum()


def test_the_search_alone_is_timed(recorded, monkeypatch: pytest.MonkeyPatch):
    """The clock moves in searches only, by a second more in each; every eighth position of each answer is searched from."""
    clock, lengths = [0.0], []

    def search(text: Suffixes, longest: int):
        clock[0] += 1 + len(lengths)
        lengths.append(longest)

    monkeypatch.setattr(replay_suffixes.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(Suffixes, "path", search)
    seconds = search_seconds(recorded, recorded.answers, 5)
    count = sum(-(-len(answer.answer_ids) // 8) for answer in recorded.answers)
    assert lengths == [5] * count
    assert seconds == (count + 1) / 2


def test_an_answer_does_not_remember_itself(recorded):
    own = recorded.take([0])
    alone = continue_everywhere(own, own.answers, 4)
    assert (alone.found == continue_everywhere(own, [], 4).found).all()
    with_others = continue_everywhere(own, recorded.answers, 4)
    assert with_others.found.sum() > alone.found.sum()
    twice = continue_everywhere(own, [*own.answers, *record_again(own)], 8)
    assert twice.accepted.max() > with_others.accepted.max(), "the same answer to another request counts"


def record_again(passed):
    """The same answers, recorded again."""
    return [type(answer)(**vars(answer)) for answer in passed.answers]


def test_what_is_shown_of_a_token_is_of_the_tokens_seen_in_its_place(recorded):
    drafted = continue_everywhere(recorded, recorded.answers, 4)
    path = Suffixes(recorded.answers[0].prompt_ids, Memory(a.answer_ids for a in recorded.answers[1:])).path(4)
    assert path.tokens, "the prompt's last token occurs in another answer"
    for step, counts in enumerate(path.counts):
        shares = np.array(counts) / sum(counts)
        assert drafted.confidence[0, step] == pytest.approx(shares[0])
        assert drafted.margin[0, step] == pytest.approx(shares[0] - (shares[1] if len(shares) > 1 else 0))
        assert drafted.entropy[0, step] == pytest.approx(-(shares * np.log(shares)).sum())
    beyond = ~drafted.found
    assert np.allclose(drafted.confidence[beyond], 1 / recorded.vocab_size)
    assert (drafted.margin[beyond] == 0).all()
    assert (drafted.found.sum(1) >= drafted.accepted).all()


def test_joined_to_a_draft_each_position_has_the_block_of_one_of_them(recorded):
    suffixes = continue_everywhere(recorded, recorded.answers, 3)
    model = draft_everywhere(
        small_llama(32, 0, scale=4.0), recorded, 3
    )  # the target itself, all of whose tokens are accepted
    takes = suffixes.found[:, 0]
    assert 0 < takes.sum() < len(takes)
    both = first_or_else(suffixes, model, takes)
    for name in ("accepted", "confidence", "entropy", "margin", "found"):
        own, first, other = (getattr(one, name) for one in (both, suffixes, model))
        assert (own[takes] == first[takes]).all()
        assert (own[~takes] == other[~takes]).all()
    assert both.lengths == recorded.lengths


@pytest.mark.parametrize("asks", [False, True])
def test_a_block_of_suffix_decoding_before_a_draft_ends_with_what_was_found(recorded, asks):
    """As a server drafts it: the model is neither asked for the rest of such a block nor for how sure it is of the next token."""
    suffixes = continue_everywhere(recorded, recorded.answers, 4)
    model = draft_everywhere(small_llama(16, 1, scale=4.0), recorded, 4)
    takes = suffixes.found[:, 0]
    joined = first_or_else(suffixes, model, takes)
    blocks = cut(joined, joined.fixed(3), asks=asks)
    at, expected = 0, []
    for answer in recorded.answers:
        memory = Memory(other.answer_ids for other in recorded.answers if other is not answer)
        place, counts = 0, np.zeros(3, dtype=int)
        while place < len(answer.answer_ids):
            path = Suffixes([*answer.prompt_ids, *answer.answer_ids[:place]], memory).path(4).tokens
            found = bool(path)
            assert found == takes[at + place]
            accepted = min(int(joined.accepted[at + place]), 3)
            counts += [1, min(len(path), 3) if found else 3, 0 if found else 3 + asks]
            place += accepted + 1
        expected.append(counts)
        at += len(answer.answer_ids)
    assert np.stack([blocks.blocks, blocks.drafted, blocks.steps], 1).tolist() == np.stack(expected).tolist()
    shorter = joined.upto(2)
    assert cut(shorter, shorter.fixed(2)).drafted.sum() < 2 * cut(shorter, shorter.fixed(2)).blocks.sum()
    following = cut(joined, lambda position, before: 3)
    assert following.drafted.tolist() == blocks.drafted.tolist()


def test_sampled_answers_have_blocks_too(recorded):
    prompts = [(answer.id, answer.prompt_ids) for answer in recorded.answers]
    sampled = record(
        small_llama(32, 0, scale=4.0),
        prompts,
        max_new_tokens=8,
        eos_ids={2},
        sampling=Sampling(temperature=1.0),
        generator=torch.Generator().manual_seed(0),
    )
    drafted = continue_everywhere(sampled, sampled.answers, 3)
    assert cut(drafted, drafted.without_model()).emitted.tolist() == sampled.lengths
