"""Model weights on disk: safetensors in one file or several, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftlab.errors import UserError
from draftlab.records import read_json


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder; ``UserError`` when there are none, or only pickled weights."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        files = sorted({folder / name for name in read_json(index).get("weight_map", {}).values()})
    else:
        files = [single] if single.is_file() else []
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UserError("a part of the weights is missing", file=missing[0], remedy="fetch the whole model folder")
    if not files:
        pickled = [*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")]
        what = f"only pickled weights ({pickled[0].name}), which can run code" if pickled else "no model.safetensors"
        raise UserError(what, file=folder, remedy="use a model folder with safetensors")
    return files


def read_weights(folder: Path, device: torch.device) -> dict[str, Tensor]:
    """All tensors of a model folder by name; ``UserError`` names a damaged file."""
    tensors: dict[str, Tensor] = {}
    for file in weight_files(folder):
        try:
            tensors |= load_file(file, device=str(device))
        except (SafetensorError, OSError) as error:
            raise UserError(f"damaged weights: {error}", file=file, remedy="fetch or make the model again") from None
    return tensors


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write config.json and model.safetensors into an existing folder."""
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(whole, folder / "model.safetensors", metadata={"format": "pt"})
