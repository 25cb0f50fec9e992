"""Makes a small trained Llama as expensive as a large one, without changing what it computes.

Speculation pays off if a target step is expensive; a model that trains in a minute is too cheap. A layer whose output projections are zero adds
work and nothing else. So does a channel that stays zero: an RMS norm over four times the channels with a quarter of the epsilon divides by
half as much, and half the weight undoes it without rounding. Acceptance and text stay those of the trained model. ``config.json`` and every
GGUF file made from it tell that the size is emulated.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir, check_replaceable
from draftlab.files.json_files import write_json
from draftlab.files.seals import seal
from draftlab.models.checkpoint import Array, Checkpoint, expected_shapes, head_dim
from draftlab.models.config import MOST_LAYERS, TOOL_TEMPLATE, copy_files, read_config

ZERO = ("self_attn.o_proj.weight", "mlp.down_proj.weight", "embed_tokens.weight")
"""Tensors that write to the residual stream: their added parts are zero."""


def inflate(model: Path, out: Path, *, layers: int, ffn: int | None = None, widths: int = 1) -> None:
    """Pad a Llama to cost as much as a larger one, without changing its output.

    Added layers, columns and channels have random weights and zero output projections. Logits are bit-identical with llama.cpp if the
    model's widths are multiples of 32, and with any engine if --ffn and --widths are left out (a wider sum may be blocked differently). A
    smaller model is refused.

    **Arguments:**
    - `model`: the folder of the Llama
    - `out`: the folder to write
    - `layers`: number of layers of the padded model
    - `ffn`: width of its feed-forward parts; without one, it stays as it is
    - `widths`: how many times as many channels its residual stream has: 1, 4, 16 or 64
    """
    if layers > MOST_LAYERS:
        raise UserError(
            f"layers is {layers}", remedy=f"give at most {MOST_LAYERS}: no more are read from a config.json"
        )
    check_replaceable(out, ours := lambda names: not names or "config.json" in names)
    config = read_config(model)
    if config.get("model_type") != "llama":
        raise UserError("only Llama models can be inflated", file=model, remedy="use a Llama target")
    if widths not in (1, 4, 16, 64):
        raise UserError(f"widths is {widths}", remedy="give 1, 4, 16 or 64: others would change the output")
    before = {name: config[name] for name in ("num_hidden_layers", "intermediate_size", "hidden_size")}
    sizes = (layers, ffn or config["intermediate_size"], widths * config["hidden_size"])
    after = dict(zip(before, sizes, strict=True))
    if any(after[name] < before[name] for name in before):
        raise UserError(f"cannot inflate {before} to {after}", file=model, remedy="ask for more layers and a wider ffn")
    same = {"head_dim": head_dim(config), "rms_norm_eps": config["rms_norm_eps"] / widths}
    original = Checkpoint(model, config)
    inflated = config | after | same | {"draftlab_inflated_from": before}
    rng = np.random.default_rng(0)
    scale = config.get("initializer_range", 0.02)
    tensors = {}
    for name, shape in expected_shapes(inflated, model).items():
        trained = original.read(name) if name in original.shapes else None
        if trained is not None and trained.ndim == 1:
            trained = trained / np.float32(math.sqrt(widths))
        tensors[name] = _grow(trained, name, shape, rng, scale)
    with atomic_dir(out, ours=ours) as temporary:
        others = [file.name for file in model.iterdir() if file.suffix in (".json", ".jinja")]
        others = [name for name in others if not name.endswith(".index.json")]
        copy_files(model, temporary, [*others, TOOL_TEMPLATE])
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        write_json(temporary / "config.json", inflated)
        seal(temporary)


def _grow(trained: Array | None, name: str, shape: tuple[int, ...], rng: np.random.Generator, scale: float) -> Array:
    """A tensor of ``shape`` with ``trained`` in its corner; the rest adds nothing to the residual stream."""
    if trained is not None and trained.shape == shape:
        return trained
    if len(shape) == 1:
        tensor = np.ones(shape, dtype=np.float32)
    elif name.endswith(ZERO):
        tensor = np.zeros(shape, dtype=np.float32)
    else:
        tensor = rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
    if trained is not None:
        tensor[tuple(map(slice, trained.shape))] = trained
    return tensor
