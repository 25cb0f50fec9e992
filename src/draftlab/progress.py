"""The progress of a long loop: a bar at a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

EVERY = 10.0
"""Seconds between two lines of a log."""


def progress(items: Iterable[T], label: str, *, total: int | None = None, initial: int = 0) -> Iterator[T]:
    """Yield ``items``, and print on stderr how many of them are done: ``label: 20 of 80, 31 s``.

    ``total`` is their number, needed if ``items`` is not a collection; ``initial`` items were done before. A loop of one item prints nothing in a log.

    >>> list(progress(range(3), "blocks"))
    [0, 1, 2]
    """
    if total is None:
        assert isinstance(items, Collection), "name the total"
        total = len(items)
    if sys.stderr.isatty():
        from tqdm import tqdm

        yield from tqdm(items, desc=label, total=total, initial=initial, leave=None)  # a bar below another one vanishes
        return
    start = printed = time.monotonic()
    for done, item in enumerate(items, initial + 1):
        yield item
        if time.monotonic() - printed > EVERY or done == total > 1:
            printed = time.monotonic()
            print(f"{label}: {done} of {total}, {printed - start:.0f} s", file=sys.stderr, flush=True)
