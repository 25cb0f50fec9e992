"""Drafts that read the states of their target, which is frozen: only their own weights learn."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Self

import torch
from safetensors.torch import save_file
from torch import nn

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.models import LanguageModel
from draftlab.models.config import HEADS
from draftlab.models.llama import Llama
from draftlab.models.llama_decoder import LlamaDecoder


class OnTarget(nn.Module):
    """A draft on a frozen target, which is shared and no part of this module: its parameters are the draft's alone."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.shared = (as_llama(model),)  # a tuple hides the target from torch

    @property
    def target(self) -> Llama:
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

    def on(self, target: LanguageModel) -> Self:
        """The same draft on another target, whose states must mean the same."""
        other = copy.copy(self)
        other.shared = (as_llama(target),)
        return other

    def __deepcopy__(self, memo: dict[int, object]) -> Self:
        """A copy of the draft on the same target."""
        memo[id(self.shared)] = self.shared
        other = self.__new__(type(self))
        memo[id(self)] = other
        vars(other).update(copy.deepcopy(vars(self), memo))
        return other

    def decoder(self) -> LlamaDecoder:
        return self.target.decoder()

    def save(self, folder: Path | str) -> None:
        """Write the draft's own weights, and the tokens of its head if it is trimmed."""
        with atomic_dir(folder) as temporary:
            save_file(self.state_dict(), temporary / HEADS)


def as_llama(model: LanguageModel) -> Llama:
    """The model, if it is the project's Llama."""
    if not isinstance(model, Llama):
        what = "Medusa heads, reads_target and parallel work only with models of the Llama family"
        raise UserError(what, remedy="name such models with --config target= draft=")
    return model
