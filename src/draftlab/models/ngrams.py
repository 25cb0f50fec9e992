"""Where the last tokens of a text occurred before; free of torch, as a process that measures llama.cpp is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NGRAM = 2
"""Tokens that must have occurred before."""


def find_next(text: Sequence[int], ngram: int = NGRAM) -> int | None:
    """The token that followed the latest earlier occurrence of the last ``ngram`` tokens; None where there is none.

    >>> find_next([7, 8, 9, 1, 7, 8])
    9
    """
    tokens = np.asarray(text, dtype=np.int32)
    if len(tokens) <= ngram:
        return None
    same = np.ones(len(tokens) - ngram, bool)
    for back in range(1, ngram + 1):
        same &= tokens[ngram - back : len(tokens) - back] == tokens[-back]
    places = np.flatnonzero(same)
    return int(tokens[places[-1] + ngram]) if len(places) else None
