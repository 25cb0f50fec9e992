"""Make a small trained Llama cost as much as a large one without changing what it computes.

Speculation pays off if a target step is expensive; a model that trains in a minute is too cheap for that. Layers whose output
projections are zero add work and nothing else, so acceptance and text stay those of the trained model. So do channels that stay zero: an
RMS norm over four times the channels with a quarter of the epsilon divides by half as much, and half the weight undoes it, without
rounding. This emulates the latency of a larger target and is labelled as such, in ``config.json`` and in every GGUF file made from it.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.json_files import write_json
from draftlab.files.seals import seal
from draftlab.models.checkpoint import Array, Checkpoint, expected_shapes
from draftlab.models.config import read_config

ZERO = ("self_attn.o_proj.weight", "mlp.down_proj.weight", "embed_tokens.weight")
"""Tensors that write to the residual stream: their added parts are zero."""


def inflate(model: Path, out: Path, *, layers: int, ffn: int | None = None, widths: int = 1, seed: int = 0) -> None:
    """Pad a Llama to cost as much as a larger one, without changing its output, to ``layers`` layers with feed-forward parts ``ffn`` wide.

    The residual stream gets ``widths`` times as many channels (1, 4, 16 ...: the square root must be a power of 2).

    Added layers, columns and channels have random weights and zero output projections: bit-identical logits with llama.cpp, and with
    any engine when ``ffn`` and ``widths`` stay as they are (a wider sum may be blocked differently). ``UserError`` when it would shrink.
    """
    config = read_config(model)
    if config.get("model_type") != "llama":
        raise UserError("only Llama models can be inflated", file=model, remedy="use a Llama target")
    if widths not in (1, 4, 16, 64):
        raise UserError(f"widths is {widths}", remedy="give 1, 4, 16 or 64: others would change the output")
    before = {name: config[name] for name in ("num_hidden_layers", "intermediate_size", "hidden_size")}
    after = {"num_hidden_layers": layers, "intermediate_size": ffn or config["intermediate_size"]}
    after["hidden_size"] = widths * config["hidden_size"]
    if any(after[name] < before[name] for name in before):
        raise UserError(f"cannot inflate {before} to {after}", file=model, remedy="ask for more layers and a wider ffn")
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    same = {"head_dim": head_dim, "rms_norm_eps": config["rms_norm_eps"] / widths}
    original = Checkpoint(model, config)
    inflated = config | after | same | {"draftlab_inflated_from": before}
    rng = np.random.default_rng(seed)
    scale = config.get("initializer_range", 0.02)
    tensors = {}
    for name, shape in expected_shapes(inflated, model).items():
        known = original.read(name) if name in original.shapes else None
        if known is not None and known.ndim == 1:
            known = known / np.float32(math.sqrt(widths))
        tensors[name] = known if known is not None and known.shape == shape else _grown(name, shape, known, rng, scale)
    with atomic_dir(out) as temporary:
        for file in model.glob("*.json"):
            if not file.name.endswith(".index.json"):
                shutil.copy(file, temporary)
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        write_json(temporary / "config.json", inflated)
        seal(temporary)


def _grown(name: str, shape: tuple[int, ...], known: Array | None, rng: np.random.Generator, scale: float) -> Array:
    """A tensor of ``shape`` with ``known`` in its corner; the rest adds nothing to the residual stream."""
    if len(shape) == 1:
        tensor = np.ones(shape, dtype=np.float32)
    elif name.endswith(ZERO):
        tensor = np.zeros(shape, dtype=np.float32)
    else:
        tensor = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    if known is not None:
        tensor[tuple(slice(size) for size in known.shape)] = known
    return tensor
