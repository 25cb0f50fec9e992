"""A model folder in the Hugging Face layout -> one GGUF file (``gguf_files`` does the reverse), refusing what llama.cpp does not refuse.

llama.cpp aborts the process on some files that it cannot run; anything that could lead to such a file is a ``UserError`` here.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import gguf
import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer, pre_tokenizers

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.files.scratch import scratch
from draftlab.files.weights import weight_files
from draftlab.models.config import read_config
from draftlab.models.trimmed import KEPT, beside, cut_vocabulary

Weights = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
Array = Float[np.ndarray, "..."]

QUANTIZATION = {
    "f32": (gguf.GGMLQuantizationType.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (gguf.GGMLQuantizationType.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (gguf.GGMLQuantizationType.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}

KINDS = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "t5": gguf.MODEL_ARCH.T5}

# Copies and constants that some checkpoints store beside the weights.
DERIVED = ("rotary_emb.inv_freq", "lm_head.weight", "coder.embed_tokens.weight")

POOL = 1_000_003  # a prime: no two rows of a matrix begin at the same number
BLOCKS = 31_249  # a prime: so many blocks of 32 numbers are in the pool

ALIGNMENT = 4096
"""Bytes (a page of memory). At GGUF's default of 32 the length of the header decides whether a row of weights begins where a line of the
processor's cache does: of two files that differed in nothing else one decoded 14 % slower, and verified 9 tokens at 2.2 instead of 2.4
steps' cost."""

# Two custom keys for the origin of a file; llama.cpp ignores them.
VOCABULARY_KEY = "draftlab.vocabulary_sha256"
INFLATED_KEY = "draftlab.inflated_from"


def export(model: Path, out: Path, weights: Weights = "f32", *, vocabulary: bool = True) -> None:
    """Write a model folder (Llama or T5) as one GGUF file for llama.cpp; with --no-vocabulary, the file decodes only token ids.

    Matrices are stored as ``weights`` (as f16 if a row cannot be cut into blocks of 32), and vectors as f32.
    ``vocabulary=False`` leaves the tokenizer out: such a file decodes token ids, which is all that a latency measurement
    needs, but not text. Anything that llama.cpp could not run is a ``UserError``. A trimmed head becomes the file's vocabulary, and a table
    of embeddings is written next to the file (``models.trimmed``).
    """
    config = read_config(model)
    if config.get("head_tokens"):
        _export_trimmed(model, out, weights, vocabulary)
        return
    _export(config, model, out, weights, Checkpoint.open, vocabulary)


def _export_trimmed(folder: Path, out: Path, weights: Weights, vocabulary: bool) -> None:
    if vocabulary:
        remedy = "export ids alone (--no-vocabulary), or a folder with the whole vocabulary first: draftlab widen"
        raise UserError("the vocabulary of a trimmed head has no text", file=folder, remedy=remedy)
    with scratch() as room:
        small = room / "head"
        config = cut_vocabulary(folder, small, weights != "f32", beside(out))
        tokenizer, known = folder / "tokenizer.json", {KEPT: str(config["vocab_size"])}
        if tokenizer.is_file():
            known[VOCABULARY_KEY] = vocabulary_digest(_read_tokenizer(tokenizer))
        _export(config | known, small, out, weights, Checkpoint.open, False)


def export_random(config: dict[str, Any], out: Path | str, weights: Weights = "f16", seed: int = 0) -> None:
    """Write a model of the sizes in ``config`` with random weights, for timing; one tensor is in memory at a time."""
    _export(config, Path(out), out, weights, lambda _, shapes: RandomTensors.draw(shapes, seed), False)


def _export(
    config: dict[str, Any],
    folder: Path,
    out: Path | str,
    weights: Weights,
    opened: Callable[[Path, dict[str, tuple[int, ...]]], Checkpoint | RandomTensors],
    vocabulary: bool,
) -> None:
    if weights not in get_args(Weights):
        raise UserError(f"no weight type {weights!r}", remedy=f"choose one of {', '.join(get_args(Weights))}")
    shapes = expected_shapes(config, folder)
    quantization, file_type = QUANTIZATION[weights]
    tensors = opened(folder, shapes)
    with atomic_path(out, _least_bytes(shapes, quantization)) as temporary:
        writer = gguf.GGUFWriter(temporary, config["model_type"])
        writer.add_custom_alignment(ALIGNMENT)
        writer.add_file_type(file_type)
        if weights.startswith("q"):
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        (_t5_header if config["model_type"] == "t5" else _llama_header)(writer, config)
        _write_vocabulary(writer, folder, config, vocabulary)
        for key in (KEPT, VOCABULARY_KEY):
            if key in config:  # for a trimmed head: the vocabulary that it is part of
                writer.add_string(key, config[key])
        if "draftlab_inflated_from" in config:
            writer.add_string(INFLATED_KEY, json.dumps(config["draftlab_inflated_from"]))
        _write_tensors(writer, config, tensors, quantization)
        writer.close()


def _least_bytes(shapes: dict[str, tuple[int, ...]], quantization: gguf.GGMLQuantizationType) -> int:
    values, size = gguf.GGML_QUANT_SIZES[quantization]
    return sum(math.prod(shape) for shape in shapes.values()) * size // values


# ---- what a folder must hold


def expected_shapes(config: dict[str, Any], folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that ``config`` implies; an architecture that cannot be exported is a ``UserError``."""
    kind = config.get("model_type")
    if kind not in KINDS:
        remedy = f"use a model of {', '.join(KINDS)}"
        raise UserError(f"architecture {kind!r} cannot be exported", file=folder, remedy=remedy)
    try:
        return _t5_shapes(config, folder) if kind == "t5" else _llama_shapes(config, folder)
    except KeyError as key:
        raise UserError(f"config.json has no {key}", file=folder, remedy="use the model's own config.json") from None


def _llama_shapes(config: dict[str, Any], folder: Path) -> dict[str, tuple[int, ...]]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    unsupported = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "attention_bias": config.get("attention_bias", False),
        "mlp_bias": config.get("mlp_bias", False),
        "use_sliding_window": config.get("use_sliding_window", False),
        "rope type": rope.get("rope_type", rope.get("type", "default")) != "default",
    }
    for what, refused in unsupported.items():
        if refused:
            raise UserError(
                f"this {what} has no counterpart in the export", file=folder, remedy="use a plain Llama model"
            )
    hidden, ffn, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    kv_heads, width = config.get("num_key_value_heads") or heads, _head_dim(config)
    if heads % kv_heads or width % 2:
        raise UserError(
            f"{heads} heads, {kv_heads} key-value heads, {width} wide: not a rotary grouped-query attention",
            file=folder,
            remedy="repair config.json",
        )
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (hidden,),
            prefix + "self_attn.q_proj.weight": (heads * width, hidden),
            prefix + "self_attn.k_proj.weight": (kv_heads * width, hidden),
            prefix + "self_attn.v_proj.weight": (kv_heads * width, hidden),
            prefix + "self_attn.o_proj.weight": (hidden, heads * width),
            prefix + "post_attention_layernorm.weight": (hidden,),
            prefix + "mlp.gate_proj.weight": (ffn, hidden),
            prefix + "mlp.up_proj.weight": (ffn, hidden),
            prefix + "mlp.down_proj.weight": (hidden, ffn),
        }
        if config["model_type"] == "qwen2":
            rows = {"q": heads, "k": kv_heads, "v": kv_heads}
            shapes |= {f"{prefix}self_attn.{name}_proj.bias": (count * width,) for name, count in rows.items()}
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _t5_shapes(config: dict[str, Any], folder: Path) -> dict[str, tuple[int, ...]]:
    if _t5_layers(config, "decoder") > _t5_layers(config, "encoder"):
        raise UserError(
            "llama.cpp cannot load a T5 whose decoder is deeper", file=folder, remedy="use another T5 model"
        )
    hidden, ffn, heads, width = config["d_model"], config["d_ff"], config["num_heads"], config["d_kv"]
    gated = config.get("feed_forward_proj", "relu").startswith("gated")
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (config["vocab_size"], hidden)}
    for side in ("encoder", "decoder"):
        attentions = ["SelfAttention"] if side == "encoder" else ["SelfAttention", "EncDecAttention"]
        for block in range(_t5_layers(config, side)):
            for index, attention in enumerate(attentions):
                prefix = f"{side}.block.{block}.layer.{index}."
                for matrix, shape in zip(
                    "qkvo", [(heads * width, hidden)] * 3 + [(hidden, heads * width)], strict=True
                ):
                    shapes[f"{prefix}{attention}.{matrix}.weight"] = shape
                shapes[prefix + "layer_norm.weight"] = (hidden,)
                if block == 0 and attention == "SelfAttention":
                    buckets = config["relative_attention_num_buckets"]
                    shapes[prefix + "SelfAttention.relative_attention_bias.weight"] = (buckets, heads)
            prefix = f"{side}.block.{block}.layer.{len(attentions)}."
            for matrix in ("wi_0", "wi_1") if gated else ("wi",):
                shapes[f"{prefix}DenseReluDense.{matrix}.weight"] = (ffn, hidden)
            shapes[prefix + "DenseReluDense.wo.weight"] = (hidden, ffn)
            shapes[prefix + "layer_norm.weight"] = (hidden,)
        shapes[f"{side}.final_layer_norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", True):
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _t5_layers(config: dict[str, Any], side: str) -> int:
    layers = config["num_layers"]
    return int(layers if side == "encoder" else config.get("num_decoder_layers") or layers)


def _head_dim(config: dict[str, Any]) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


@dataclass(frozen=True)
class Checkpoint:
    """The safetensors files of a folder, read one tensor at a time."""

    files: dict[str, Path]
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def open(cls, folder: Path, shapes: dict[str, tuple[int, ...]]) -> Checkpoint:
        """Check that every tensor of ``shapes`` is there and has its shape, without reading the values."""
        files, found = {}, {}
        for path in weight_files(folder):
            try:
                with safe_open(path, "np") as shard:
                    for key in shard.keys():  # noqa: SIM118 (not a dict)
                        files[key], found[key] = path, tuple(shard.get_slice(key).get_shape())
            except SafetensorError as error:
                raise UserError(f"not whole: {error}", file=path, remedy="copy or train the model again") from None
        for key, shape in shapes.items():
            if found.get(key) != shape:
                has = f"has shape {found[key]}" if key in found else "is missing"
                raise UserError(
                    f"{key} {has}, but config.json implies {shape}",
                    file=folder,
                    remedy="use the config.json of these weights",
                )
        for key in found.keys() - shapes.keys():
            if not key.endswith(DERIVED):
                raise UserError(
                    f"config.json implies no tensor {key}", file=folder, remedy="use the config.json of these weights"
                )
        return cls(files, shapes)

    def read(self, key: str) -> Array:
        """One tensor as float32."""
        with safe_open(self.files[key], "np") as shard:
            if shard.get_slice(key).get_dtype() != "BF16":
                return np.asarray(shard.get_tensor(key), dtype=np.float32)
        with safe_open(self.files[key], "pt") as shard:  # numpy has no bfloat16: torch reads these
            return np.asarray(shard.get_tensor(key).float().numpy())

    def items(self) -> Iterator[tuple[str, Array]]:
        """Every expected tensor, in order; a value that is not finite is a ``UserError``."""
        for key in self.shapes:
            tensor = self.read(key)
            if not np.isfinite(tensor).all():
                raise UserError(
                    f"{key} holds values that are not finite", file=self.files[key], remedy="train the model again"
                )
            yield key, tensor


@dataclass(frozen=True)
class RandomTensors:
    """Weights that only look like a model's: one pool of normal numbers, repeated, starting at a different place for each tensor."""

    pool: Array
    shapes: dict[str, tuple[int, ...]]

    @classmethod
    def draw(cls, shapes: dict[str, tuple[int, ...]], seed: int) -> RandomTensors:
        pool = np.random.default_rng(seed).standard_normal(POOL, dtype=np.float32)
        return cls(pool * np.float32(0.02), shapes)

    def read(self, key: str) -> Array:
        """One tensor: ones for the vectors, which are norms."""
        shape = self.shapes[key]
        if len(shape) == 1:
            return np.ones(shape, dtype=np.float32)
        return np.resize(np.roll(self.pool, zlib.crc32(key.encode())), shape)

    def blocks(self, kind: gguf.GGMLQuantizationType) -> Array:
        """The pool as it is stored, a row for each block of the type."""
        block, _ = gguf.GGML_QUANT_SIZES[kind]
        count = POOL if block == 1 else BLOCKS
        return np.asarray(gguf.quantize(self.pool[: count * block].reshape(count, block), kind))

    def tiled(self, key: str, blocks: Array, size: int) -> Array:
        """One tensor as it is stored, tiled from ``blocks`` that were quantized once, so that writing a 7B model is as fast as copying."""
        shape = self.shapes[key]
        if len(shape) == 1:
            return self.read(key)
        moved = np.roll(blocks, zlib.crc32(key.encode()), 0)
        return np.resize(moved, (math.prod(shape) // size, blocks.shape[1]))

    def items(self) -> Iterator[tuple[str, Array]]:
        """Every tensor, in order."""
        for key in self.shapes:
            yield key, self.read(key)


# ---- the file


def _llama_header(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads, width = config["num_attention_heads"], _head_dim(config)
    rope = config.get("rope_parameters") or {}
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _t5_header(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(config.get("n_positions", 512))
    writer.add_embedding_length(config["d_model"])
    writer.add_feed_forward_length(config["d_ff"])
    writer.add_block_count(_t5_layers(config, "encoder"))
    writer.add_decoder_block_count(_t5_layers(config, "decoder"))
    writer.add_head_count(config["num_heads"])
    writer.add_key_length(config["d_kv"])
    writer.add_value_length(config["d_kv"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_relative_attn_buckets_count(config["relative_attention_num_buckets"])
    writer.add_decoder_start_token_id(config["decoder_start_token_id"])
    writer.add_vocab_size(config["vocab_size"])


def _write_tensors(
    writer: gguf.GGUFWriter,
    config: dict[str, Any],
    tensors: Checkpoint | RandomTensors,
    quantization: gguf.GGMLQuantizationType,
) -> None:
    """Describe every tensor, then stream the values: memory stays at one tensor whatever the model's size."""
    depth = max(config.get(key) or 0 for key in ("num_hidden_layers", "num_layers", "num_decoder_layers"))
    names = gguf.get_tensor_name_map(KINDS[config["model_type"]], depth)
    kinds = {name: _stored_as(name, shape, quantization) for name, shape in tensors.shapes.items()}
    for name, kind in kinds.items():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        _describe(writer, target, tensors.shapes[name], kind)
    scale = _output_scale(config)
    if scale is not None:
        _describe(writer, "output.weight", tensors.shapes["shared.weight"], kinds["shared.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    if isinstance(tensors, RandomTensors):
        blocks = {kind: tensors.blocks(kind) for kind in set(kinds.values())}
        for name, kind in kinds.items():
            writer.write_tensor_data(tensors.tiled(name, blocks[kind], gguf.GGML_QUANT_SIZES[kind][0]))
    else:
        for name, tensor in tensors.items():
            writer.write_tensor_data(gguf.quantize(_rotary(name, tensor, config), kinds[name]))
    if scale is not None:
        writer.write_tensor_data(
            gguf.quantize(tensors.read("shared.weight") * np.float32(scale), kinds["shared.weight"])
        )


def _stored_as(name: str, shape: tuple[int, ...], quantization: gguf.GGMLQuantizationType) -> gguf.GGMLQuantizationType:
    if len(shape) != 2 or "relative_attention_bias" in name:
        return gguf.GGMLQuantizationType.F32
    block, _ = gguf.GGML_QUANT_SIZES[quantization]
    return gguf.GGMLQuantizationType.F16 if shape[-1] % block else quantization  # as llama.cpp's own tool does


def _describe(writer: gguf.GGUFWriter, name: str, shape: tuple[int, ...], kind: gguf.GGMLQuantizationType) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = int(np.prod(shape)) // block * size
    if block > 1 or kind == gguf.GGMLQuantizationType.BF16:  # NumPy has no such numbers: written as bytes
        packed = gguf.quant_shape_to_byte_shape(shape, kind)
        writer.add_tensor_info(name, packed, np.dtype(np.uint8), count, raw_dtype=kind)
    else:
        half = kind == gguf.GGMLQuantizationType.F16
        writer.add_tensor_info(name, shape, np.dtype(np.float16 if half else np.float32), count)


def _output_scale(config: dict[str, Any]) -> float | None:
    """The factor for a copy of T5's embeddings as output layer: transformers scales the hidden state before a tied output
    layer, llama.cpp does not. None where llama.cpp needs no copy."""
    if config["model_type"] != "t5" or not config.get("tie_word_embeddings", True):
        return None
    return float(config["d_model"] ** -0.5) if config.get("scale_decoder_outputs", True) else None


def _rotary(name: str, tensor: Array, config: dict[str, Any]) -> Array:
    """Reorder query and key rows: transformers rotates halves of a head, llama.cpp neighbouring pairs of a llama's."""
    if config["model_type"] == "qwen2":
        return tensor
    heads = {
        "q_proj": config.get("num_attention_heads"),
        "k_proj": config.get("num_key_value_heads") or config.get("num_attention_heads"),
    }.get(name.split(".")[-2])
    if heads is None:
        return tensor
    rows, columns = tensor.shape
    return np.ascontiguousarray(
        tensor.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
    )


# ---- the tokenizer


def _write_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any], with_text: bool) -> None:
    path = folder / "tokenizer.json"
    tokenizer = _read_tokenizer(path) if with_text or path.exists() else None
    for name in ("bos", "eos", "pad"):
        token = config.get(f"{name}_token_id")
        token = token[0] if isinstance(token, list) else token
        if token is not None:
            if not 0 <= token < config["vocab_size"]:
                raise UserError(
                    f"{name}_token_id is {token}, but the vocabulary has {config['vocab_size']} tokens",
                    file=folder,
                    remedy="repair config.json",
                )
            writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token)
    if tokenizer is not None:
        writer.add_string(VOCABULARY_KEY, vocabulary_digest(tokenizer))
    if not with_text or tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        return
    _require_byte_level(json.loads(tokenizer.to_str()), path)
    size = max(tokenizer.get_vocab_size(), 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0))
    if size > config["vocab_size"]:
        raise UserError(
            f"{size} tokens, but the model has {config['vocab_size']}",
            file=path,
            remedy="use the tokenizer of this model",
        )
    added = tokenizer.get_added_tokens_decoder()
    pieces = [tokenizer.id_to_token(index) for index in range(config["vocab_size"])]
    kinds = [gguf.TokenType.NORMAL if piece is not None else gguf.TokenType.UNUSED for piece in pieces]
    for index, token in added.items():
        kinds[index] = gguf.TokenType.CONTROL if token.special else gguf.TokenType.USER_DEFINED
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([piece if piece is not None else f"[PAD{index}]" for index, piece in enumerate(pieces)])
    writer.add_token_types(kinds)
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_add_bos_token(tokenizer.encode("").ids[:1] == [config.get("bos_token_id")])
    writer.add_add_space_prefix(False)


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """SHA-256 of the tokens in the order of their ids: two models with the same digest read ids in the same way."""
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def _read_tokenizer(path: Path) -> Tokenizer:
    if not path.exists():
        raise UserError("no such file", file=path, remedy="add the tokenizer, or export without a vocabulary")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise UserError(f"not a tokenizer: {error}", file=path, remedy="repair the file") from None


def _require_byte_level(tokenizer: dict[str, Any], path: Path) -> None:
    """Refuse a tokenizer that llama.cpp's ``gpt-2`` tokenizer would read differently or abort on."""
    stages = tokenizer["pre_tokenizer"] or {}
    stages = stages.get("pretokenizers", [stages])
    splits = [stage for stage in stages if stage.get("type") == "ByteLevel"]
    plain = len(stages) == len(splits) == 1 and splits[0]["use_regex"] and not splits[0]["add_prefix_space"]
    if tokenizer["model"].get("type") != "BPE" or not plain or tokenizer["normalizer"] is not None:
        raise UserError(
            "not a plain byte-level BPE tokenizer", file=path, remedy="export without a vocabulary (--no-vocabulary)"
        )
    absent = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - tokenizer["model"]["vocab"].keys())
    if absent:
        raise UserError(
            f"{len(absent)} of the 256 byte tokens are missing: llama.cpp would abort",
            file=path,
            remedy="train the tokenizer with the byte-level alphabet, or export without a vocabulary (--no-vocabulary)",
        )
