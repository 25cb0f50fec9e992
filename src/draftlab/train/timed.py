"""What jobs that time decoding and learning share: the clock, a target as expensive as asked for, and the answers to learn from."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from draftlab.latency.pair import inflated
from draftlab.models import LanguageModel, load_model
from draftlab.train.jobs import Folders
from draftlab.train.online import Lesson
from draftlab.train.traffic import Traffic

if TYPE_CHECKING:
    from draftlab.stages._timed import Timed


def clock_of(device: str) -> Callable[[], float]:
    """CPU seconds of this process, or on a GPU the time once it has finished."""
    if device == "cpu":
        return time.process_time

    def finished() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    return finished


def dear_target(folders: Folders, settings: Timed) -> LanguageModel:
    """The target, made as expensive as the settings ask for."""
    if not (settings.inflated_layers or settings.inflated_ffn):
        return folders.target(settings.device)
    with tempfile.TemporaryDirectory(prefix="draftlab-") as scratch:
        folder = folders.models / "target", Path(scratch) / "inflated"
        return load_model(inflated(*folder, settings.inflated_layers, settings.inflated_ffn), device=settings.device)


def whole_answers(stream: Traffic, first: int, count: int) -> list[Lesson]:
    """Every position of this many requests from ``first`` on, the stream begun again at its end."""
    requests = [(first + i) % len(stream) for i in range(count)]
    return [Lesson(stream.answers, r, np.arange(stream.answers.lengths[r])) for r in requests]
