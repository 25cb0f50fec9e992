"""Finds earlier occurrences of the last tokens of a text. Free of torch, because processes that measure llama.cpp do not load it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NGRAM = 2
"""The number of last tokens that must have occurred before."""


class Ngrams:
    """A text that grows and shrinks at its end, with the position after the latest occurrence of each n-gram; a guess is one look-up.

    >>> Ngrams([7, 8, 9, 1, 7, 8]).guess
    9
    """

    def __init__(self, text: Iterable[int] = ()) -> None:
        self.tokens = list[int]()
        self._after = dict[tuple[int, ...], int]()
        self._earlier = list[int | None]()
        for token in text:
            self.append(token)

    @property
    def guess(self) -> int | None:
        """The token that followed the latest earlier occurrence of the last ``NGRAM`` tokens; None where there is none."""
        earlier = self._earlier[-1] if self._earlier else None
        return None if earlier is None else self.tokens[earlier]

    def append(self, token: int) -> int | None:
        """Add a token; return the ``guess`` for the next one."""
        self.tokens.append(token)
        last = tuple(self.tokens[-NGRAM:])
        self._earlier.append(self._after.get(last))
        if len(last) == NGRAM:
            self._after[last] = len(self.tokens)
        return self.guess

    def copy(self) -> Ngrams:
        """The same text, which grows and shrinks on its own."""
        same = Ngrams()
        same.tokens, same._after, same._earlier = self.tokens.copy(), self._after.copy(), self._earlier.copy()
        return same

    def trim(self, length: int) -> None:
        """Keep the first ``length`` tokens."""
        while len(self.tokens) > length:
            last, earlier = tuple(self.tokens[-NGRAM:]), self._earlier.pop()
            if earlier is not None:
                self._after[last] = earlier
            else:
                self._after.pop(last, None)
            self.tokens.pop()


def guesses_along(prompt: Sequence[int], answer: Sequence[int]) -> list[int | None]:
    """The guess for each token of an answer, based on the text before it."""
    before = Ngrams()
    guesses = [None, *(before.append(token) for token in [*prompt, *answer])]
    return guesses[len(prompt) : -1]
