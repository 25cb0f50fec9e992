"""Suffix decoding: a draft without weights, which continues a text as earlier texts went on (SuffixDecoding, Oliaro et al., arXiv 2411.04975).

The last tokens of a text are its pattern. Wherever a pattern occurred before, in the text itself or in a ``Memory`` of earlier answers, some token
followed. The draft is the path of the most frequent tokens. With C(n) occurrences that went on along the path to its n-th token, the path is
followed so far with probability

    D(n) = D(n - 1) C(n) / C(n - 1),    D(0) = 1.

A path ends after as many tokens as its pattern has, or before D falls below a threshold. Long patterns are rare, short ones are vague: the path with
the largest sum of D is drafted. Free of torch, because processes that measure llama.cpp do not load it.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

LONGEST = 24
"""The longest pattern (``suffix_decoding_max_tree_depth`` of vLLM, which there limits pattern and path together)."""
LEAST = 0.1
"""The least probability of a path, if no other is given (``suffix_decoding_min_token_prob`` of vLLM)."""
END = -1
"""Stands before and after each text of a memory; it is no token."""


class Match(NamedTuple):
    """Where a pattern of this length occurs: the positions ``after`` its occurrences."""

    length: int
    after: Int64[np.ndarray, " occurrences"]


class Path(NamedTuple):
    """Tokens that may follow; for each, how often the tokens that were seen in its place occurred there, the most frequent first."""

    tokens: list[int]
    counts: list[list[int]]

    @property
    def probabilities(self) -> list[float]:
        """D(1), D(2), ...: the estimated probability that the text goes on along the path up to each token.

        >>> Path([7, 8], [[3, 1], [2, 1]]).probabilities
        [0.75, 0.5]
        """
        found, so_far = list[float](), 1.0
        for counts in self.counts:
            so_far *= counts[0] / sum(counts)
            found.append(so_far)
        return found


class Memory:
    """Earlier texts, and where in them the last tokens of another text occur.

    All suffixes of the texts are sorted by their first ``LONGEST`` tokens, so those that begin with a pattern are neighbours. The neighbours of
    "c + pattern" follow from those of the pattern by two bisections (backward search; Ferragina and Manzini, FOCS 2000). The memory holds four
    integers for each token, and grows no tree.

    >>> [(match.length, match.after.tolist()) for match in Memory([[1, 2, 3], [4, 2, 5]]).matches([1, 2])]
    [(2, [3]), (1, [3, 7])]
    """

    def __init__(self, texts: Iterable[Sequence[int]] = ()) -> None:
        texts = list(texts)
        self.tokens = np.array([*(token for text in texts for token in (END, *text)), END], dtype=np.int64)
        self._starts = np.cumsum([0, *(len(text) + 1 for text in texts)])
        size = len(self.tokens)
        rank, sorted_by = np.unique(self.tokens, return_inverse=True)[1], 1
        while sorted_by < LONGEST:  # prefix doubling: the order by 2 n tokens follows from that by n tokens
            later = np.zeros(size, dtype=np.int64)
            later[:-sorted_by] = rank[sorted_by:] + 1
            rank, sorted_by = np.unique(rank * (size + 1) + later, return_inverse=True)[1], 2 * sorted_by
        self._suffixes = np.argsort(rank, kind="stable")
        before = self.tokens[self._suffixes - 1]
        self._by_before = np.argsort(before, kind="stable")
        tokens, counts = np.unique(before, return_counts=True)
        ends = counts.cumsum()
        bounds = zip((ends - counts).tolist(), ends.tolist(), strict=True)
        self._bounds = dict(zip(tokens.tolist(), bounds, strict=True))

    def matches(self, text: Sequence[int], without: int | None = None) -> list[Match]:
        """Every set of occurrences of the last tokens of ``text``, each with its longest pattern, the longest first.

        **Arguments:**
        - `without`: the number of a text of the memory that does not count, because it is the one that is continued
        """
        ranges = list[tuple[int, int, int]]()
        first, end = 0, len(self.tokens)
        for length, token in enumerate(reversed(text[-LONGEST:]), start=1):
            bounds = self._bounds.get(token, (0, 0))
            first, end = (bisect_left(self._by_before, bound, *bounds) for bound in (first, end))
            if first == end:
                break
            if ranges and end - first == ranges[-1][2] - ranges[-1][1]:
                ranges.pop()  # the longer pattern occurs as often
            ranges.append((length, first, end))
        found = [Match(length, self._suffixes[first:end] + length) for length, first, end in reversed(ranges)]
        return found if without is None else self._skip(found, without)

    def _skip(self, found: Iterable[Match], number: int) -> list[Match]:
        begin, end = self._starts[number : number + 2]
        kept = (Match(length, after[(after <= begin) | (after > end)]) for length, after in found)
        return [match for match in kept if len(match.after)]


class Suffixes:
    """A text that grows and shrinks at its end, and how it may go on, by itself and by a ``memory`` of other texts.

    >>> Suffixes([7, 8, 9, 7, 8, 9, 7, 8]).path(2)
    Path(tokens=[9, 7], counts=[[1], [1]])
    >>> Suffixes([5, 8], Memory([[8, 3, 4], [6, 8, 3], [8, 2]])).path(1)
    Path(tokens=[3], counts=[[2, 1]])
    """

    def __init__(self, text: Iterable[int] = (), memory: Memory | None = None, without: int | None = None) -> None:
        self.memory, self._without = memory or Memory(), without
        self.tokens = array("q")
        self._after = dict[int, list[int]]()
        for token in text:
            self.append(token)

    def append(self, token: int) -> None:
        """Add a token."""
        self.tokens.append(token)
        self._after.setdefault(token, []).append(len(self.tokens))

    def trim(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        while len(self.tokens) > length:
            self._after[self.tokens.pop()].pop()

    def path(self, longest: int, least: float = 0.0) -> Path:
        """At most ``longest`` tokens that may follow, together at least as probable as ``least`` and ``LEAST``; none where the last token is new.

        A larger ``least`` or ``longest`` may choose another pattern, not only a path of another length.
        """
        return self.paths([(longest, least)])[0]

    def paths(self, limits: Sequence[tuple[int, float]]) -> list[Path]:
        """``path`` for each pair of a ``longest`` and a ``least``, with one search.

        >>> text = Suffixes([3, 1], Memory([[3, 1, 8], [3, 1, 5, 6], [1, 9], [1, 9], [1, 9]]))
        >>> [path.tokens for path in text.paths([(2, 0.0), (2, 0.6), (1, 0.0)])]
        [[5, 6], [9], [9]]
        """
        best, most = [Path([], [])] * len(limits), [0.0] * len(limits)
        if not self.tokens:
            return best
        upto, least = max(longest for longest, _ in limits), max(min(least for _, least in limits), LEAST)
        own, known = np.frombuffer(self.tokens, dtype=np.int64), self.memory
        for tokens, matches in (own, self._matches()), (known.tokens, known.matches(self.tokens, self._without)):
            for match in matches:
                if all(min(match.length, limit[0]) <= found for limit, found in zip(limits, most, strict=True)):
                    break  # not even a certain path would be better, and the other patterns are shorter
                path = _follow(tokens, *match, upto, least)
                probabilities = path.probabilities
                sums = [0.0, *itertools.accumulate(probabilities)]
                for place, (longest, own_least) in enumerate(limits):
                    count = min(sum(probability >= own_least for probability in probabilities), longest)
                    if sums[count] > most[place]:
                        best[place], most[place] = Path(path.tokens[:count], path.counts[:count]), sums[count]
        return best

    def _matches(self) -> list[Match]:
        """As ``Memory.matches``, in the text itself."""
        lengths = dict[int, int]()
        for after in self._after[self.tokens[-1]][:-1]:
            length = 1
            while length < min(after, LONGEST) and self.tokens[after - 1 - length] == self.tokens[-1 - length]:
                length += 1
            lengths[after] = length
        places, known = np.array(list(lengths)), np.array(list(lengths.values()))
        return [Match(length, places[known >= length]) for length in sorted(set(lengths.values()), reverse=True)]


def _follow(
    tokens: Int64[np.ndarray, " tokens"],
    length: int,
    after: Int64[np.ndarray, " occurrences"],
    longest: int,
    least: float,
) -> Path:
    """The path of the most frequent tokens after the occurrences of a pattern; of equally frequent tokens, the one that occurred last.

    An occurrence at the end of its text says nothing of what follows, and does not count there.
    """
    path, probability = Path([], []), 1.0
    while len(path.tokens) < min(longest, length):
        after = after[after < len(tokens)]
        following = tokens[after]
        after, following = after[following != END], following[following != END]
        if not len(after):
            break
        times = Counter(following.tolist())
        counts = sorted(times.values(), reverse=True)
        token = max(times, key=times.__getitem__)
        if counts[:1] == counts[1:2]:
            places = zip(after.tolist(), following.tolist(), strict=True)
            token = max((place, token) for place, token in places if times[token] == counts[0])[1]
        probability *= counts[0] / sum(counts)
        if probability < least:
            break
        path.tokens.append(token)
        path.counts.append(counts)
        after = after[following == token] + 1
    return path
