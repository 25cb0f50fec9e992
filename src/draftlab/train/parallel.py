"""Training in several processes (``torchrun -m draftlab ...``): each takes its share of a batch, and gradients are added up.

With one process, the usual case, nothing happens here, and ``accelerate`` is not imported. Its ``Accelerator`` would wrap the model in DDP,
which hooks only ``forward`` and expects equally many backward passes from each process; here a process may get no request of a batch.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))  # set by the launcher


@functools.cache
def _state() -> Any:
    from accelerate import PartialState

    return PartialState(cpu=not torch.cuda.is_available())


def start() -> None:
    """Join the other processes. Each is assigned a GPU, so no model may be on "cuda" before."""
    if PROCESSES > 1:
        _state()


def number() -> int:
    """The number of this process, from 0."""
    return 0 if PROCESSES == 1 else int(_state().process_index)


def my_share(requests: Sequence[int]) -> Sequence[int]:
    """The requests of a batch for this process; none if there are more processes than requests."""
    return requests[number() :: PROCESSES]


def total(count: int) -> int:
    """The sum of a number over the processes."""
    if PROCESSES == 1:
        return count
    from accelerate.utils import reduce

    return int(reduce(torch.tensor(count, device=_state().device), "sum"))


def add_up(parameters: Iterable[nn.Parameter]) -> None:
    """Replace every gradient by its sum over the processes."""
    if PROCESSES == 1:
        return
    from accelerate.utils import reduce

    for parameter in parameters:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = reduce(gradient, "sum")
