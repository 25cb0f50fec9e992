"""A clock for what models do: it waits until a GPU has finished."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def clock_of(device: torch.device | str, on_cpu: Callable[[], float] = time.process_time) -> Callable[[], float]:
    """Seconds of ``on_cpu``, by default the CPU time of this process; on a GPU the time when it has finished its work."""
    device = torch.device(device)
    if device.type != "cuda":
        return on_cpu

    def finished() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return finished
