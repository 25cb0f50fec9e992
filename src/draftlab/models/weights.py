"""Reads and writes the weights of a model folder in safetensors, with torch."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftlab.core.theory import ModelSize
from draftlab.errors import UserError
from draftlab.files.weights import IN_16_BITS, parameter_count, weight_files
from draftlab.models.checkpoint import head_counts, head_dim
from draftlab.models.config import read_config


def read_weights(folder: Path, device: str) -> dict[str, Tensor]:
    """All tensors of a model folder by name. ``UserError`` names a damaged file, and one with quantized weights."""
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            stored = load_file(file, device=device)
        except (SafetensorError, OSError) as error:
            raise UserError(f"damaged weights: {error}", file=file, remedy="fetch or make the model again") from None
        for name, tensor in stored.items():
            if tensor.itemsize == 1 and tensor.dtype != torch.bool:
                raise UserError(f"{name} is quantized ({tensor.dtype})", file=file, remedy=IN_16_BITS)
        tensors |= stored
    return tensors


@contextlib.contextmanager
def fitting(folder: Path) -> Iterator[None]:
    """Turn the errors of a model that takes its weights from ``folder`` into a ``UserError`` that names what is missing or does not fit."""
    try:
        yield
    except KeyError as error:
        raise UserError(f"no weight {error}", file=folder, remedy="fetch or make the model again") from None
    except RuntimeError as error:  # of load_state_dict; its last line names a tensor
        what = f"weights that do not fit config.json: {str(error).splitlines()[-1].strip()}"
        raise UserError(what, file=folder, remedy="fetch or make the model again") from None


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors into an existing folder."""
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})


def model_size(model: Path) -> ModelSize:
    """Gigabytes of the weights and of one token in the cache, of a decoder-only model in float32."""
    config = read_config(model)
    try:
        layers, entry = config["num_hidden_layers"], 2 * head_counts(config)[1] * head_dim(config)
    except KeyError as error:
        raise UserError(f"no {error} in its config", file=model, remedy="use a decoder-only model") from None
    return ModelSize(4e-9 * parameter_count(model), 4e-9 * layers * entry)
