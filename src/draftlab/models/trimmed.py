"""Drafts with a trimmed head on other engines: the two files that llama.cpp needs, and a folder with the whole vocabulary for any engine.

For llama.cpp the head is the vocabulary. Its inputs are rows of a table of embeddings next to the GGUF file, and the token that it chooses is an
index of the head. Free of torch, because processes that measure llama.cpp do not load it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int64
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir, atomic_path, check_replaceable
from draftlab.files.digests import sha256
from draftlab.files.json_files import write_json
from draftlab.files.seals import seal
from draftlab.files.weights import HEAD, weight_files
from draftlab.models.checkpoint import head_dim
from draftlab.models.config import TOOL_TEMPLATE, copy_files, read_config

BESIDE = (
    *("README.md", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"),
    *("chat_template.jinja", TOOL_TEMPLATE),
)
"""Files of a draft that stay as they are when its head is widened."""

HEAD_TOKENS = "draftlab.head_tokens"
"""In a model folder: the tensor of the tokens of a trimmed head. In a GGUF file: the key of their number."""
TABLE_DIGEST = "draftlab.head_table_sha256"
"""In a GGUF file: the key of the SHA-256 of its table."""

EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"
NORMS_OF_HEADS = ("q_norm.weight", "k_norm.weight")
BLOCK = 32
"""The block size of quantized rows."""


@dataclass(frozen=True)
class Head:
    """The tokens of a trimmed head, and the embeddings of the whole vocabulary."""

    kept: Int64[np.ndarray, " head"]
    embeddings: Float[np.ndarray, "vocab width"]

    def spread(self, logits: Float32[np.ndarray, "rows head"]) -> Float32[np.ndarray, "rows vocab"]:
        """Logits over the whole vocabulary: -inf outside the head."""
        whole = np.full((len(logits), len(self.embeddings)), -np.inf, dtype=np.float32)
        whole[:, self.kept] = logits
        return whole


def table_path(file: Path) -> Path:
    """The path of the table of a GGUF file."""
    return file.with_name(f"{file.name}.head.safetensors")


def read_head(file: Path, outputs: int, digest: str | None) -> Head:
    """Read the table of a GGUF file with a trimmed head of ``outputs`` tokens; None: the file is too old to name its table's ``digest``."""
    path = table_path(file)
    try:
        table = load_file(path)
        head = Head(table["kept"], table["embeddings"])
    except (SafetensorError, OSError, KeyError) as error:
        what = f"the table of its trimmed head is missing or damaged: {error}"
        raise UserError(what, file=path, remedy="copy it too, or export the draft again") from None
    if len(head.kept) != outputs or (digest and digest != sha256(path)):
        raise UserError(f"it belongs to another head than {file.name}", file=path, remedy="export the draft again")
    return head


def cut_vocabulary(folder: Path, out: Path, half: bool, table: Path) -> dict[str, Any]:
    """Write the model of ``folder`` with its trimmed head as the vocabulary to ``out``, and its ``table``; return the model's config."""
    config, tensors = _read(folder)
    kept, embeddings = tensors.pop(HEAD_TOKENS), tensors[EMBED]
    with atomic_path(table) as temporary:
        save_file({"kept": kept, "embeddings": embeddings.astype(np.float16) if half else embeddings}, temporary)
    no_ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    small = config | {"vocab_size": len(kept), "head_tokens": 0} | no_ids
    out.mkdir()
    write_json(out / "config.json", small)
    save_file(tensors | {EMBED: embeddings[kept]}, out / "model.safetensors", metadata={"format": "pt"})
    return small


def widen(model: Path, out: Path) -> None:
    """Expand a draft's trimmed head to the whole vocabulary, for engines that need that; its outputs stay the same.

    **Arguments:**
    - `model`: the folder of the draft
    - `out`: the folder to write
    """
    # Some channels are added to the W of the model: whole blocks of quantized rows, and a multiple of the number of heads, as transformers
    # demands. One of them has the same value c for every token, and no layer reads or writes it. After the last norm it is 100 c / rms > 0 (rms
    # of the other channels, which may be large), and a token outside the head has the logit -30,000 times that; float16 can hold that factor. A
    # norm over W' channels equals the norm over W if its weights are multiplied by sqrt(W / W') and its epsilon is reduced by c^2 / W;
    # c^2 = W epsilon / 2 leaves half of epsilon.
    check_replaceable(out, ours := lambda names: not names or "config.json" in names)
    config, tensors = _read(model)
    kept, width = tensors.pop(HEAD_TOKENS), config["hidden_size"]
    added, epsilon = math.lcm(BLOCK, config["num_attention_heads"]), config["rms_norm_eps"]
    wide = width + added
    shrink = width / wide / 2  # of epsilon
    # A norm of heads has the smaller epsilon too, so it gets queries and keys that are as much smaller.
    normed = {name.replace("_norm", "_proj") for name in tensors if name.endswith(NORMS_OF_HEADS)}
    scale = math.sqrt(width / wide)
    widened: dict[str, np.ndarray] = {}
    for name, value in tensors.items():
        if name.endswith((".bias", *NORMS_OF_HEADS)):  # of query, key and value, which stay as they are
            widened[name] = value
        elif value.ndim == 1:
            widened[name] = np.pad(value * scale if value.shape == (width,) else value, (0, wide - width))
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            widened[name] = np.pad(value, ((0, added), (0, 0)))
        else:
            widened[name] = np.pad(value * math.sqrt(shrink) if name in normed else value, ((0, 0), (0, added)))
    widened[EMBED][:, width] = math.sqrt(width * epsilon / 2)
    widened[NORM][width] = 100.0
    head = np.zeros((config["vocab_size"], wide), dtype=np.float32)
    head[:, width] = -30_000.0
    head[kept] = widened[HEAD]
    changed = {
        "hidden_size": wide,
        "head_dim": head_dim(config),
        "rms_norm_eps": epsilon * shrink,
        "head_tokens": 0,
    }
    with atomic_dir(out, ours=ours) as temporary:
        write_json(temporary / "config.json", config | changed)
        save_file(widened | {HEAD: head}, temporary / "model.safetensors", metadata={"format": "pt"})
        copy_files(model, temporary, BESIDE)
        seal(temporary)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    config = dict(read_config(folder))
    if not config.get("head_tokens"):
        raise UserError("its head is the whole vocabulary", file=folder, remedy="use it as it is")
    try:
        tensors: Mapping[str, np.ndarray] = {k: v for file in weight_files(folder) for k, v in load_file(file).items()}
    except (SafetensorError, OSError, TypeError) as error:
        what = f"its weights cannot be read: {error}"
        raise UserError(what, file=folder, remedy="save the draft again, in float32 or float16") from None
    if missing := {HEAD_TOKENS, EMBED, HEAD} - tensors.keys():
        raise UserError(f"no weight {min(missing)!r}", file=folder, remedy="save the draft again")
    return config, {name: value if name == HEAD_TOKENS else value.astype(np.float32) for name, value in tensors.items()}
