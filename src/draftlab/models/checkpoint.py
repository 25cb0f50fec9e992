"""The tensors of a model folder, read without torch: their names and shapes follow from ``config.json``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open

from draftlab.errors import UserError
from draftlab.files.weights import HEAD, IN_16_BITS, weight_files
from draftlab.models.config import CONVERT_HEAD, HEAD_ALONE, LLAMAS, another_head, is_head, unsupported_settings

Array = Float[np.ndarray, "..."]
Shapes = dict[str, tuple[int, ...]]

DERIVED = ("rotary_emb.inv_freq", HEAD, "coder.embed_tokens.weight")
"""Ends of the names of copies and constants that some checkpoints store beside the weights."""
FLOATS = ("F64", "F32", "F16", "BF16")
"""The types of numbers, as safetensors name them, that are weights without further scales."""


class Checkpoint:
    """The weights of a model folder, read one tensor at a time."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        """Check that the folder has every tensor that ``config`` implies, in its shape, and no other.

        A T5 may have an output layer of its own although ``config`` says that it is the embedding: transformers 5 writes that for every T5, and
        reads the layer. It is in ``shapes`` then.
        """
        if method := (config.get("quantization_config") or {}).get("quant_method"):
            raise UserError(f"quantized weights ({method})", file=folder, remedy=IN_16_BITS)
        self.shapes = expected_shapes(config, folder)
        self.files: dict[str, Path] = {}
        stored: Shapes = {}
        for path in weight_files(folder):
            try:
                with safe_open(path, "np") as shard:
                    for name in shard.keys():  # noqa: SIM118 (not a dict)
                        self.files[name], stored[name] = path, tuple(shard.get_slice(name).get_shape())
            except SafetensorError as error:
                raise UserError(f"not whole: {error}", file=path, remedy="copy or train the model again") from None
        remedy = "use the config.json of these weights"
        for name, shape in self.shapes.items():
            if stored.get(name) != shape:
                state = f"has shape {stored[name]}" if name in stored else "is missing"
                raise UserError(f"{name} {state}, but config.json implies {shape}", file=folder, remedy=remedy)
        for name in stored.keys() - self.shapes.keys():
            if not name.endswith(DERIVED):
                raise UserError(f"config.json implies no tensor {name}", file=folder, remedy=remedy)
        if HEAD in stored.keys() - self.shapes.keys():
            self._check_head(config, stored[HEAD], folder)

    def _check_head(self, config: dict[str, Any], shape: tuple[int, ...], folder: Path) -> None:
        """Add an output layer that ``config`` does not name to the tensors of a T5, unless it is the embedding; a Llama's is a ``UserError``."""
        embedding = next(iter(self.shapes))
        if shape == self.shapes[embedding] and np.array_equal(self.read(HEAD), self.read(embedding)):
            return
        if config["model_type"] != "t5":
            raise another_head(folder)
        if shape != self.shapes[embedding]:
            what = f"{HEAD} has shape {shape}, but config.json implies {self.shapes[embedding]}"
            raise UserError(what, file=folder, remedy="use the config.json of these weights")
        self.shapes[HEAD] = shape

    def read(self, name: str) -> Array:
        """One tensor as float32; a value that is not finite or a quantized one is a ``UserError``."""
        file = self.files[name]
        with safe_open(file, "np") as shard:
            kind = shard.get_slice(name).get_dtype()
            if kind not in FLOATS:
                raise UserError(f"{name} is quantized ({kind})", file=file, remedy=IN_16_BITS)
            # numpy has no bfloat16: torch reads these
            tensor = None if kind == "BF16" else np.asarray(shard.get_tensor(name), dtype=np.float32)
        if tensor is None:
            with safe_open(file, "pt") as shard:
                tensor = np.asarray(shard.get_tensor(name).float().numpy())
        if not np.isfinite(tensor).all():
            raise UserError(f"{name} holds values that are not finite", file=file, remedy="train the model again")
        return tensor


def expected_shapes(config: dict[str, Any], folder: Path) -> Shapes:
    """Name and shape of every tensor of a T5, or of a decoder of a family in ``LLAMAS``, with this config.

    **Raises:** ``UserError``, which names ``folder``, for an architecture that llama.cpp or the GGUF export cannot represent.
    """
    kind = config.get("model_type")
    if is_head(config):
        raise UserError(HEAD_ALONE, file=folder, remedy=f"llama.cpp's own tool converts it: {CONVERT_HEAD}")
    if kind == "t5":
        return _t5_shapes(config, folder)
    if kind in LLAMAS:
        return _llama_shapes(config, folder)
    remedy = "use a Llama, Mistral, Qwen2, Qwen3 or T5"
    raise UserError(f"architecture {kind!r} cannot be exported", file=folder, remedy=remedy)


def _llama_shapes(config: dict[str, Any], folder: Path) -> Shapes:
    if refused := unsupported_settings(config):
        what = f"this {refused[0]} has no counterpart in the export"
        raise UserError(what, file=folder, remedy="use a plain Llama model")
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    width, kv_width = (head_dim(config) * heads for heads in head_counts(config))
    shapes: Shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (width, hidden),
            prefix + "self_attn.k_proj.weight": (kv_width, hidden),
            prefix + "self_attn.v_proj.weight": (kv_width, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, width),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (ffn, hidden),
            prefix + "mlp.up_proj.weight": (ffn, hidden),
            prefix + "mlp.down_proj.weight": (hidden, ffn),
        }
        if config["model_type"] == "qwen2":
            rows = {"q": width, "k": kv_width, "v": kv_width}
            shapes |= {f"{prefix}self_attn.{name}_proj.bias": (size,) for name, size in rows.items()}
        if config["model_type"] == "qwen3":
            shapes |= {f"{prefix}self_attn.{name}_norm.weight": (head_dim(config),) for name in "qk"}
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes[HEAD] = (config["vocab_size"], hidden)
    return shapes


def head_counts(config: dict[str, Any]) -> tuple[int, int]:
    """How many heads a Llama's queries have, and how many its keys and values."""
    heads = config["num_attention_heads"]
    return heads, config.get("num_key_value_heads") or heads


def head_dim(config: dict[str, Any]) -> int:
    """Channels of one head of a Llama."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def t5_depths(config: dict[str, Any]) -> dict[str, int]:
    """Number of blocks of a T5's encoder and decoder."""
    return {"encoder": config["num_layers"], "decoder": config.get("num_decoder_layers") or config["num_layers"]}


def _t5_shapes(config: dict[str, Any], folder: Path) -> Shapes:
    depths = t5_depths(config)
    if depths["decoder"] > depths["encoder"]:
        what = "llama.cpp cannot load a T5 whose decoder is deeper"
        raise UserError(what, file=folder, remedy="use another T5 model")
    feed_forward, distance = config.get("feed_forward_proj", "relu"), config.get("relative_attention_max_distance", 128)
    if feed_forward not in ("relu", "gated-gelu", "gated-gelu_new") or distance != 128:
        what = f"llama.cpp cannot compute a T5 with feed_forward_proj {feed_forward} and relative_attention_max_distance {distance}"
        raise UserError(what, file=folder, remedy="use a T5 with relu or gated-gelu, and a distance of 128")
    hidden, ffn, heads = config["d_model"], config["d_ff"], config["num_heads"]
    width, gated = heads * config["d_kv"], feed_forward != "relu"
    matrices = {"q": (width, hidden), "k": (width, hidden), "v": (width, hidden), "o": (hidden, width)}
    shapes: Shapes = {"shared.weight": (config["vocab_size"], hidden)}
    for side, depth in depths.items():
        attentions = ["SelfAttention"] if side == "encoder" else ["SelfAttention", "EncDecAttention"]
        for block in range(depth):
            for index, attention in enumerate(attentions):
                prefix = f"{side}.block.{block}.layer.{index}."
                shapes |= {f"{prefix}{attention}.{name}.weight": shape for name, shape in matrices.items()}
                shapes[prefix + "layer_norm.weight"] = (hidden,)
                if block == 0 and attention == "SelfAttention":
                    buckets = config["relative_attention_num_buckets"]
                    shapes[prefix + "SelfAttention.relative_attention_bias.weight"] = (buckets, heads)
            prefix = f"{side}.block.{block}.layer.{len(attentions)}."
            for name in ("wi_0", "wi_1") if gated else ("wi",):
                shapes[f"{prefix}DenseReluDense.{name}.weight"] = (ffn, hidden)
            shapes[prefix + "DenseReluDense.wo.weight"] = (hidden, ffn)
            shapes[prefix + "layer_norm.weight"] = (hidden,)
        shapes[f"{side}.final_layer_norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", True):
        shapes[HEAD] = (config["vocab_size"], hidden)
    return shapes
