"""Pins a measurement to cores of the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator


def usable() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def can_pin() -> bool:
    """Whether the system can pin a process to cores (Linux can)."""
    return hasattr(os, "sched_setaffinity")


def pin(cores: Iterable[int]) -> None:
    """Keep this process and its children on ``cores``, where the system can."""
    if can_pin():
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def pinned(count: int) -> Iterator[list[int]]:
    """Keep this process on the first ``count`` cores, so that no thread moves while it is timed; yield the other cores."""
    cores = usable()
    pin(cores[:count])
    try:
        yield cores[count:]
    finally:
        pin(cores)
