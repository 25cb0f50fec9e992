"""The optimisation loop of pre-training and offline distillation.

Each step depends only on its number, so a killed run resumes from its last checkpoint and ends with the same weights.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.progress import progress

CHECKPOINT_SECONDS = 30.0
QUICK_SAVE = 1.5  # seconds; if a save takes n times longer, saves are n times rarer


class Trainable(Protocol):
    """A model with named parameters: our own Llama, the adapter around transformers, any torch module."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


@dataclass(frozen=True)
class Schedule:
    """Learning rate over ``steps``: linear warm-up, then a cosine down to ``floor`` of the peak.

    The rate is in closed form: torch's schedulers go from step to step and round differently, which would change the weights.
    """

    peak: float
    steps: int
    warmup: int = 0
    floor: float = 0.0

    def at(self, step: int) -> float:
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.peak * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2)


def adamw(
    model: Trainable,
    learning_rate: float = 1.0,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    weight_decay: float = 0.0,
) -> torch.optim.AdamW:
    """AdamW over all trainable parameters; ``fit`` multiplies the ``learning_rate`` by its schedule."""
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    return torch.optim.AdamW(trainable, learning_rate, betas, weight_decay=weight_decay, fused=True)


Reduce = Callable[[Iterable[nn.Parameter]], None]
"""Adds up the gradients of several processes."""


def update(
    optimizer: torch.optim.Optimizer,
    losses: Iterable[Tensor],
    clip: float,
    reduce: Reduce | None = None,
    at: str = "",
) -> float:
    """One optimizer step on the sum of ``losses`` (weighted micro-batches); returns the sum.

    Gradients are clipped to norm ``clip`` (0: not clipped). ``UserError`` if a loss or a gradient is not finite; its text begins with ``at``.
    """
    optimizer.zero_grad(set_to_none=True)
    total = 0.0
    for loss in losses:
        value = float(loss.detach())
        if not math.isfinite(value):
            remedy = "lower learning_rate, or check the loss and the answers it was trained on"
            raise UserError(f"{at}the loss is {value}", remedy=remedy)
        loss.backward()  # type: ignore[no-untyped-call]
        total += value
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if reduce is not None:
        reduce(parameters)
    norm = float(nn.utils.clip_grad_norm_(parameters, clip or math.inf))
    if not math.isfinite(norm):
        remedy = "lower learning_rate, or check the loss and the answers"
        raise UserError(f"{at}the norm of the gradient is {norm}", remedy=remedy)
    optimizer.step()
    return total


def fit(
    model: Trainable,
    losses: Callable[[int], Iterable[Tensor]],
    schedule: Schedule,
    *,
    optimizer: torch.optim.Optimizer,
    clip: float = 1.0,
    label: str = "training",
    checkpoint: Path | None = None,
    checkpoint_every: int = 1,
    identity: str = "",
    notes: dict[str, int] | None = None,
    reduce: Reduce | None = None,
) -> list[float]:
    """Run ``schedule.steps`` updates on ``losses(step)``; returns the loss of each step that ran in this process.

    The state is saved in the ``checkpoint`` file twice a minute (less often if it is large), after a multiple of ``checkpoint_every`` steps.
    A file of another ``identity`` (settings, code) or architecture is ignored. ``notes`` are counts that ``losses`` keeps; a resumed run
    continues with the counts of its checkpoint.
    """
    notes = {} if notes is None else notes
    start = load_checkpoint(checkpoint, identity, model, optimizer, notes) if checkpoint else 0
    rate = LambdaLR(optimizer, lambda done: schedule.at(start + done))
    history = []
    saved, pause = time.monotonic(), CHECKPOINT_SECONDS
    for step in progress(range(start, schedule.steps), label, total=schedule.steps, initial=start):
        history.append(update(optimizer, losses(step), clip, reduce, f"{label}, step {step}: "))
        rate.step()
        begun = time.monotonic()
        if checkpoint and (step + 1) % checkpoint_every == 0 and begun - saved > pause:
            save_checkpoint(checkpoint, identity, model, optimizer, step + 1, notes)
            saved = time.monotonic()
            pause = CHECKPOINT_SECONDS * max(1.0, (saved - begun) / QUICK_SAVE)
    if checkpoint:
        checkpoint.unlink(missing_ok=True)
    return history


def save_checkpoint(
    path: Path,
    identity: str,
    model: Trainable,
    optimizer: torch.optim.Optimizer | None,
    step: int,
    notes: dict[str, Any],
) -> None:
    """Write the weights that learn, and the optimizer's moments, after ``step`` updates as one safetensors file; without an optimizer, the weights."""
    tensors = {f"model.{name}": value.contiguous() for name, value in _learning(model).items()}
    for index, state in (optimizer.state_dict()["state"] if optimizer else {}).items():
        tensors |= {f"optimizer.{index}.{name}": value.contiguous() for name, value in state.items()}
    metadata = {"identity": identity, "step": json.dumps(step), "notes": json.dumps(notes), "digest": digest(tensors)}
    with atomic_path(path, sum(tensor.nbytes for tensor in tensors.values())) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def _learning(model: Trainable) -> dict[str, nn.Parameter]:
    """The weights that learn. Others are as they were, and may be shared with the target."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A digest of the values. A safetensors file has none, so a flipped bit in a checkpoint would go unnoticed."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(tensors[name].detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


@functools.lru_cache(maxsize=8)
def digest_of_recorded(*tensors: Tensor) -> str:
    """The digest of recorded distributions. They never change, and every variant and every class of a stream shares them: each is read once."""
    return digest({str(number): tensor for number, tensor in enumerate(tensors)})


def load_checkpoint(
    path: Path, identity: str, model: Trainable, optimizer: torch.optim.Optimizer | None, notes: dict[str, Any]
) -> int:
    """Restore a checkpoint of this ``identity`` and return its step; 0 if there is no such checkpoint, or it is damaged."""
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("identity") != identity:
                return 0
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (FileNotFoundError, SafetensorError):
        return 0
    if metadata.get("digest") != digest(tensors) or any(
        tensors.get(f"model.{name}", value.new_empty(0)).shape != value.shape
        for name, value in _learning(model).items()
    ):
        return 0
    with torch.no_grad():
        for name, value in _learning(model).items():
            value.copy_(tensors[f"model.{name}"])
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimizer."):
            _, index, key = name.split(".", 2)
            state.setdefault(int(index), {})[key] = value
    if optimizer:
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    notes.update(json.loads(metadata["notes"]))
    return int(json.loads(metadata["step"]))
