"""Suffix decoding: its search is compared with a plain one, its paths with counts by hand."""

import random

import numpy as np
import pytest

from draftlab.models.suffixes import END, LEAST, LONGEST, Memory, Suffixes, _follow


def places(text: list[int], pattern: list[int]) -> tuple[int, ...]:
    """The positions after all occurrences of the pattern."""
    size = len(pattern)
    return tuple(at + size for at in range(len(text) - size + 1) if text[at : at + size] == pattern)


@pytest.mark.parametrize("tokens", [2, 3, 9])
def test_a_memory_finds_what_a_plain_search_finds(tokens):
    draw = random.Random(tokens)
    longest = 0
    for _ in range(60):
        texts = [[draw.randrange(tokens) for _ in range(draw.randrange(40))] for _ in range(draw.randrange(6))]
        pattern = [draw.randrange(tokens) for _ in range(draw.randrange(1, 40))]
        if texts and draw.random() < 0.5:
            pattern += texts[0]
        memory = Memory(texts)
        text = [*(token for one in texts for token in (END, *one)), END]
        assert memory.tokens.tolist() == text
        expected = {}  # the longest pattern for each set of occurrences
        for size in range(1, min(len(pattern), LONGEST) + 1):
            if found := places(text, pattern[-size:]):
                expected[found] = size
        found = memory.matches(pattern)
        assert {tuple(sorted(after.tolist())): size for size, after in found} == expected
        assert [match.length for match in found] == sorted(expected.values(), reverse=True)
        longest = max([longest, *expected.values()])
    assert longest == LONGEST, "patterns are cut at the longest one"


def test_a_text_that_is_left_out_is_not_found():
    texts = [[1, 2, 3], [1, 2, 4], [5, 1, 2]]
    memory = Memory(texts)
    for number in range(3):
        rest = Memory([text for other, text in enumerate(texts) if other != number])
        for pattern in ([1, 2], [2], [5, 1, 2], [3]):
            left = memory.matches(pattern, without=number)
            seen = sorted(tuple(sorted(memory.tokens[after].tolist())) for _, after in left)
            expected = sorted(tuple(sorted(rest.tokens[after].tolist())) for _, after in rest.matches(pattern))
            assert sorted(set(seen)) == expected
    assert not memory.matches([3], without=0)


def test_an_empty_memory_finds_nothing():
    assert not Memory().matches([1])
    assert not Memory([[]]).matches([1])
    assert Suffixes([1, 2, 3], Memory()).path(4).tokens == []
    assert Suffixes().path(4).tokens == []


def test_a_path_follows_the_most_frequent_tokens_with_their_probabilities():
    # After "1 2" come 3 (three times), 4 (once); after "1 2 3" come 5 (twice), 6 (once); after that each text ends.
    memory = Memory([[1, 2, 3, 5], [1, 2, 3, 5], [1, 2, 3, 6], [1, 2, 4]])
    path = Suffixes([9, 1, 2], memory).path(5)
    assert path.tokens == [3, 5]
    assert path.counts == [[3, 1], [2, 1]]
    assert path.probabilities == pytest.approx([3 / 4, 3 / 4 * 2 / 3])
    assert Suffixes([9, 1, 2], memory).path(1).tokens == [3]


def test_a_path_has_at_most_as_many_tokens_as_its_pattern():
    memory = Memory([[1, 2, 3, 4, 5, 6, 7, 8]])
    assert Suffixes([2], memory).path(8).tokens == [3]
    assert Suffixes([1, 2], memory).path(8).tokens == [3, 4]
    assert Suffixes([9, 1, 2, 3], memory).path(8).tokens == [4, 5, 6]


def test_of_equally_frequent_tokens_the_latest_is_proposed():
    assert Suffixes([1], Memory([[1, 5], [1, 3], [1, 4]])).path(1).tokens == [4]
    assert Suffixes([1], Memory([[1, 5], [1, 3], [1, 4], [1, 5]])).path(1).tokens == [5]
    assert Suffixes([1, 7, 1, 6, 1]).path(1).tokens == [6]
    assert Suffixes([1], Memory([[1, 5], [1, 3], [1, 5], [1, 3], [1, 4]])).path(1).tokens == [3], "4 is not as frequent"


def test_a_path_ends_where_it_becomes_improbable():
    often = [[1, 2, 3, 4, token] for token in range(10, 10 + round(1 / LEAST))]
    assert Suffixes([3, 4], Memory(often)).path(2).tokens == [often[-1][-1]], "as probable as the least"
    assert Suffixes([3, 4], Memory([*often, [3, 4, 50]])).path(2).tokens == []


def test_the_pattern_with_the_most_expected_tokens_is_used():
    """The whole pattern "8 1 2" occurred once and promises three tokens; "2" alone occurred often, and is followed by 6."""
    often = [[2, 6]] * 5
    assert Suffixes([8, 1, 2], Memory([[8, 1, 2, 3, 4, 5], *often])).path(3).tokens == [3, 4, 5]
    assert Suffixes([8, 1, 2], Memory([[8, 1, 2, 3, 4, 5], *often])).path(1).tokens == [3], (
        "of equal ones, the longest pattern"
    )
    # In the text itself 7 and 4 follow "2", each in one of two places; in the memory 6 follows it in all.
    assert Suffixes([2, 7, 5, 2, 4, 2], Memory(often)).path(1).tokens == [6]
    assert Suffixes([5, 2, 7, 5, 2], Memory(often)).path(2).tokens == [7, 5], (
        "two tokens are expected of the text, one of the memory"
    )


@pytest.mark.parametrize("least", [LEAST, 0.4, 0.8])
def test_no_pattern_that_is_left_out_would_be_better(least):
    """Patterns that even a certain path would not make the best are not followed; a path ends before it is less probable than ``least``."""
    draw = random.Random(0)
    for _ in range(100):
        memory = Memory([[draw.randrange(3) for _ in range(20)] for _ in range(5)])
        text = Suffixes([draw.randrange(3) for _ in range(12)], memory)
        own = [_follow(np.array(text.tokens), *match, 4, least) for match in text._matches()]
        paths = [*own, *(_follow(memory.tokens, *match, 4, least) for match in memory.matches(text.tokens))]
        best = text.path(4, least)
        assert best == max(paths, key=lambda path: sum(path.probabilities))
        assert all(probability >= least for probability in best.probabilities)
        limits = [(4, 0.8), (4, least), (1, 0.0), (4, 0.0), (2, least)]
        assert text.paths(limits) == [text.path(*limit) for limit in limits]
        assert text.path(4, least) == best


def test_a_text_that_shrank_goes_on_like_a_new_one():
    draw = random.Random(0)
    memory = Memory([[draw.randrange(4) for _ in range(30)] for _ in range(3)])
    text, tokens = Suffixes([1, 2], memory), [1, 2]
    for _ in range(200):
        if draw.random() < 0.4:
            tokens = tokens[: draw.randrange(1, len(tokens) + 1)]
            text.trim(len(tokens))
        else:
            tokens.append(draw.randrange(4))
            text.append(tokens[-1])
        assert text.tokens.tolist() == tokens
        assert text.path(4) == Suffixes(tokens, memory).path(4)
