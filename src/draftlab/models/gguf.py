"""Export of a model folder in the Hugging Face layout to one GGUF file; ``gguf_import`` reads such files.

llama.cpp aborts the process on some files that it cannot run. Anything that could lead to such a file is a ``UserError`` here.
"""

from __future__ import annotations

import contextlib
import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

import gguf
import numpy as np

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.files.digests import sha256
from draftlab.files.gguf_header import ROPE_DIVISORS
from draftlab.files.scratch import scratch
from draftlab.files.weights import HEAD
from draftlab.models.checkpoint import (
    Array,
    Checkpoint,
    Shapes,
    expected_shapes,
    head_counts,
    head_dim,
    t5_depths,
)
from draftlab.models.config import read_config, rope_scaling_of, rope_theta_of
from draftlab.models.gguf_vocabulary import VOCABULARY_KEY, add_vocabulary, vocabulary_digest
from draftlab.models.tokenizer import read_backend
from draftlab.models.trimmed import HEAD_TOKENS, TABLE_DIGEST, cut_vocabulary, table_path, widen

Weights = Literal["f32", "f16", "bf16", "q8_0", "q4_0"]
Kind = gguf.GGMLQuantizationType
Pack = Callable[[str, Kind], Array]
"""A tensor's values as a file stores them, from its name and the type of its numbers."""

QUANTIZATION = {
    "f32": (Kind.F32, gguf.LlamaFileType.ALL_F32),
    "f16": (Kind.F16, gguf.LlamaFileType.MOSTLY_F16),
    "bf16": (Kind.BF16, gguf.LlamaFileType.MOSTLY_BF16),
    "q8_0": (Kind.Q8_0, gguf.LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (Kind.Q4_0, gguf.LlamaFileType.MOSTLY_Q4_0),
}
ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "t5": gguf.MODEL_ARCH.T5,
}

ALIGNMENT = 4096
"""Bytes (a page of memory). With GGUF's default of 32, the length of the header decides whether a row of weights begins at a cache line.
Of two files that differed in nothing else, one decoded 14 % slower, and verified 9 tokens at a cost of 2.2 instead of 2.4 steps."""

INFLATED_KEY = "draftlab.inflated_from"
"""A key of ours for the sizes of a model before it was inflated; llama.cpp ignores it."""


def export(
    model: Path, out: Path, weights: Weights = "f32", *, vocabulary: bool = True, vocabulary_of: Path | None = None
) -> None:
    """Write a model folder (Llama, Mistral, Qwen2, Qwen3 or T5) as one GGUF file for llama.cpp.

    A model that llama.cpp could not run is refused. A trimmed head is widened first; without a vocabulary it stays as it is, and a table of
    embeddings is written next to the file.

    **Arguments:**
    - `model`: the folder of the model
    - `out`: the GGUF file to write
    - `weights`: type of the matrices (f16 if a row cannot be cut into two or more blocks of 32); vectors are stored as f32
    - `vocabulary`: write the tokenizer's vocabulary too; without it, the file decodes only token ids
    - `vocabulary_of`: the GGUF file of a draft's target, whose vocabulary the draft gets
    """
    config = read_config(model)
    if not config.get("head_tokens"):
        _export_folder(config, model, out, weights, vocabulary_of or vocabulary)
        return
    with scratch() as temporary:
        if vocabulary_of or vocabulary:
            widen(model, whole := temporary / "whole")
            _export_folder(read_config(whole), whole, out, weights, vocabulary_of or vocabulary)
            return
        small = temporary / "head"
        config = cut_vocabulary(model, small, weights != "f32", table_path(out))
        config[HEAD_TOKENS] = str(config["vocab_size"])
        config[TABLE_DIGEST] = sha256(table_path(out))
        if (model / "tokenizer.json").is_file():
            config[VOCABULARY_KEY] = vocabulary_digest(read_backend(model / "tokenizer.json"))
        _export_folder(config, small, out, weights, False)


def _export_folder(config: dict[str, Any], folder: Path, out: Path, weights: Weights, vocabulary: bool | Path) -> None:
    checkpoint = Checkpoint(folder, config)
    scale = _t5_output_scale(config)
    head = HEAD if HEAD in checkpoint.shapes else "shared.weight"

    def pack(name: str, kind: Kind) -> Array:
        if scale is not None and name == HEAD:
            return np.asarray(gguf.quantize(checkpoint.read(head) * np.float32(scale), kind))
        return np.asarray(gguf.quantize(_pair_rotary_rows(name, checkpoint.read(name), config), kind))

    if HEAD in checkpoint.shapes:
        config = config | {"tie_word_embeddings": False, "scale_decoder_outputs": scale is not None}
    _write(config, folder, out, weights, pack, vocabulary)


POOL = 1_000_003  # a prime: no two rows of a matrix begin at the same number
BLOCKS = 31_249  # a prime: so many blocks of 32 numbers are in the pool


def export_random(config: dict[str, Any], out: Path, weights: Weights, seed: int) -> None:
    """Write a model of the sizes in ``config`` with random weights, for timing."""
    _write(config, out, out, weights, random_weights(expected_shapes(config, out), seed), False)


def random_weights(shapes: Shapes, seed: int) -> Pack:
    """Weights that only look like a model's: one pool of normal numbers (sd 0.02), which each matrix starts at a different place; norms are 1.

    The pool is quantized once for each type, so that writing a 7B model is as fast as copying.
    """
    pool = np.random.default_rng(seed).standard_normal(POOL, dtype=np.float32) * np.float32(0.02)
    quantized: dict[Kind, Array] = {}

    def pack(name: str, kind: Kind) -> Array:
        shape = shapes[name]
        if len(shape) == 1:
            return np.ones(shape, dtype=np.float32)
        size, _ = gguf.GGML_QUANT_SIZES[kind]
        if kind not in quantized:
            count = POOL if size == 1 else BLOCKS
            quantized[kind] = np.asarray(gguf.quantize(pool[: count * size].reshape(count, size), kind))
        blocks = np.roll(quantized[kind], zlib.crc32(name.encode()), 0)
        return np.resize(blocks, (math.prod(shape) // size, blocks.shape[1]))

    return pack


def _write(
    config: dict[str, Any], folder: Path, out: Path, weights: Weights, pack: Pack, vocabulary: bool | Path
) -> None:
    """Write header, vocabulary and tensors; one tensor at a time is in memory."""
    if weights not in QUANTIZATION:
        raise UserError(f"no weight type {weights!r}", remedy=f"choose one of {', '.join(get_args(Weights))}")
    quantization, _ = QUANTIZATION[weights]
    shapes, architecture = expected_shapes(config, folder), _architecture(config)
    block, stored = gguf.GGML_QUANT_SIZES[quantization]
    least_bytes = sum(map(math.prod, shapes.values())) * stored // block
    if _t5_output_scale(config) is not None:
        shapes[HEAD] = shapes["shared.weight"]
    kinds = {name: _stored_as(name, shape, quantization) for name, shape in shapes.items()}
    if quantization not in kinds.values():  # no row could be cut into blocks
        weights = "f16"
    depth = max(config.get(key) or 0 for key in ("num_hidden_layers", "num_layers", "num_decoder_layers"))
    names = gguf.get_tensor_name_map(ARCHITECTURES[architecture], depth)
    with (
        atomic_path(out, least_bytes) as temporary,
        contextlib.closing(gguf.GGUFWriter(temporary, architecture)) as writer,
    ):
        writer.add_custom_alignment(ALIGNMENT)
        writer.add_file_type(QUANTIZATION[weights][1])
        if weights.startswith("q"):
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        (_add_t5_fields if architecture == "t5" else _add_llama_fields)(writer, config)
        add_vocabulary(writer, folder, config, vocabulary)
        for key in (HEAD_TOKENS, TABLE_DIGEST, VOCABULARY_KEY):
            if key in config:  # of a trimmed head: its size, its table, and the vocabulary that it is part of
                writer.add_string(key, config[key])
        divisors = _rope_divisors(config)
        if divisors is not None:
            writer.add_tensor_info(ROPE_DIVISORS, divisors.shape, divisors.dtype, divisors.nbytes)
        if "draftlab_inflated_from" in config:
            writer.add_string(INFLATED_KEY, json.dumps(config["draftlab_inflated_from"]))
        for name, shape in shapes.items():
            name_in_file = names.get_name(name, try_suffixes=(".weight", ".bias"))
            assert name_in_file is not None, name
            block, stored = gguf.GGML_QUANT_SIZES[kinds[name]]
            size = math.prod(shape) // block * stored
            writer.add_tensor_info(name_in_file, shape, np.dtype(np.float32), size, raw_dtype=kinds[name])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if divisors is not None:
            writer.write_tensor_data(divisors)
        for name, kind in kinds.items():
            writer.write_tensor_data(pack(name, kind))


def _architecture(config: dict[str, Any]) -> str:
    """llama.cpp's name of the architecture; it reads a Mistral as a llama.

    A qwen2 there must have as many channels as its heads have in all. A widened one has more, and is written as a llama, which may have
    biases too.
    """
    kind = str(config["model_type"])
    if kind == "qwen2" and head_counts(config)[0] * head_dim(config) != config["hidden_size"]:
        return "llama"
    return "llama" if kind == "mistral" else kind


def _rope_divisors(config: dict[str, Any]) -> Array | None:
    """By what rotary frequencies are divided; None if positions are not stretched."""
    scaling = rope_scaling_of(config)
    if scaling is None:
        return None
    return np.array(scaling.divisors(rope_theta_of(config), head_dim(config)), dtype=np.float32)


def _stored_as(name: str, shape: tuple[int, ...], quantization: Kind) -> Kind:
    if len(shape) != 2 or "relative_attention_bias" in name:
        return Kind.F32
    block, _ = gguf.GGML_QUANT_SIZES[quantization]
    # llama.cpp's own tool does the same, but for rows of one block: its AMX kernels misread these in calls of 32 tokens or more.
    return Kind.F16 if shape[-1] % block or shape[-1] == block > 1 else quantization


def _t5_output_scale(config: dict[str, Any]) -> float | None:
    """The factor of T5's output layer in the file, which is a copy of the embeddings if it has none of its own; None: the layer is as in the folder.

    transformers scales the hidden state before the output layer, by default if the config calls it tied; llama.cpp does not.
    """
    is_scaled = config.get("scale_decoder_outputs", config.get("tie_word_embeddings", True))
    return config["d_model"] ** -0.5 if config["model_type"] == "t5" and is_scaled else None


def _pair_rotary_rows(name: str, tensor: Array, config: dict[str, Any]) -> Array:
    """Reorder query and key rows: transformers rotates halves of a head, llama.cpp neighbouring pairs of a llama's."""
    part = name.split(".")[-2]
    if _architecture(config) != "llama" or part not in ("q_proj", "k_proj"):
        return tensor
    heads = head_counts(config)[part == "k_proj"]
    rows, *columns = tensor.shape
    return tensor.reshape(heads, 2, rows // heads // 2, *columns).swapaxes(1, 2).reshape(tensor.shape)


def _add_llama_fields(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    (heads, kv_heads), width = head_counts(config), head_dim(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(rope_theta_of(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_t5_fields(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    depths = t5_depths(config)
    writer.add_context_length(config.get("n_positions", 512))
    writer.add_embedding_length(config["d_model"])
    writer.add_feed_forward_length(config["d_ff"])
    writer.add_block_count(depths["encoder"])
    writer.add_decoder_block_count(depths["decoder"])
    writer.add_head_count(config["num_heads"])
    writer.add_key_length(config["d_kv"])
    writer.add_value_length(config["d_kv"])
    writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    writer.add_layer_norm_rms_eps(config["layer_norm_epsilon"])
    writer.add_relative_attn_buckets_count(config["relative_attention_num_buckets"])
    writer.add_decoder_start_token_id(config["decoder_start_token_id"])
    writer.add_vocab_size(config["vocab_size"])
