"""What jobs that time decoding and learning share: the clock, and the answers to learn from."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from draftlab.train.online import Lesson
from draftlab.train.traffic import Traffic


def clock_of(device: str) -> Callable[[], float]:
    """CPU seconds of this process, or on a GPU the time once it has finished."""
    if device == "cpu":
        return time.process_time

    def finished() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return finished


def whole_answers(stream: Traffic, first: int, count: int) -> list[Lesson]:
    """Every position of this many requests from ``first`` on, the stream begun again at its end."""
    requests = [(first + i) % len(stream) for i in range(count)]
    return [Lesson(stream.answers, r, np.arange(stream.answers.lengths[r])) for r in requests]
