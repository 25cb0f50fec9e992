"""Pins a measurement to cores of the machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def usable() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def can_pin() -> bool:
    """Whether the system can pin a process to cores (Linux can)."""
    return hasattr(os, "sched_setaffinity")


def pin(cores: Iterable[int]) -> None:
    """Keep this process and its children on ``cores``, where the system can.

    The system pins one thread at a time. A new thread stays on the cores of the one that starts it; those of torch run already.
    """
    if can_pin():
        cores, own = set(cores), Path("/proc/self/task")
        for thread in [0, *(int(thread.name) for thread in own.iterdir())] if own.is_dir() else [0]:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
                os.sched_setaffinity(thread, cores)


@contextlib.contextmanager
def pinned(count: int) -> Iterator[list[int]]:
    """Keep this process on the first ``count`` cores, so that no thread moves while it is timed; yield the other cores."""
    cores = usable()
    pin(cores[:count])
    try:
        yield cores[count:]
    finally:
        pin(cores)
