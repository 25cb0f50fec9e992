"""Drafts that read the states of their target, which is frozen: only their own weights learn."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int
from safetensors.torch import save_file
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.models import Decoder, LanguageModel
from draftlab.models.config import HEADS
from draftlab.models.llama import Llama


@runtime_checkable
class ReadableTarget(LanguageModel, Protocol):
    """A target of which a draft can read the residual stream between its layers."""

    @property
    def embed(self) -> Float[Tensor, "vocab width"]:
        """The embeddings of the tokens."""
        ...

    @property
    def vocab_weight(self) -> Float[Tensor, "vocab width"]:
        """The projection of states on the vocabulary."""
        ...

    @property
    def num_layers(self) -> int: ...

    def states_before(
        self, tokens: Int[Tensor, "batch len"], layers: Sequence[int]
    ) -> Float[Tensor, "batch len states"]:
        """The residual stream before each of these ``layers``, which ascend, side by side; the number of layers: that after the last one."""
        ...


Target = TypeVar("Target", bound=LanguageModel)


class OnTarget(nn.Module, Generic[Target]):
    """A draft on a frozen target, which is shared and no part of this module: its parameters are the draft's alone."""

    def __init__(self, target: Target) -> None:
        super().__init__()
        self.shared = (target,)  # a tuple hides the target from torch

    @property
    def target(self) -> Target:
        return self.shared[0]

    @property
    def vocab_size(self) -> int:
        return self.target.vocab_size

    @property
    def context_length(self) -> int:
        return self.target.context_length

    @property
    def device(self) -> torch.device:
        return self.target.device

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """A copy of the draft on the same target."""
        memo[id(self.shared)] = self.shared
        other = self.__new__(type(self))
        memo[id(self)] = other
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other

    def decoder(self) -> Decoder:
        return self.target.decoder()

    def save(self, folder: Path | str) -> None:
        """Write the draft's own weights, and the tokens of its head if it is trimmed."""
        with atomic_dir(folder) as temporary:
            save_file(self.state_dict(), temporary / HEADS)


def as_readable(model: LanguageModel) -> ReadableTarget:
    """The model, if it is a decoder between whose layers a draft can read."""
    if not isinstance(model, ReadableTarget) or not model.num_layers:
        what = "a head of EAGLE-3, DFlash or DSpark reads the states between the layers of a decoder, and this target shows none"
        raise UserError(what, remedy="use a decoder-only target")
    return model


def as_llama(model: LanguageModel) -> Llama:
    """The model, if it is the project's Llama."""
    if not isinstance(model, Llama):
        what = "Medusa heads, reads_target and parallel work only with models of the Llama family"
        raise UserError(what, remedy="name such models with --config target= draft=")
    return model
