"""Export of a model folder in the Hugging Face layout to one GGUF file; ``gguf_import`` reads such files.

llama.cpp aborts the process on some files that it cannot run. Anything that could lead to such a file is a ``UserError`` here.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import gguf
import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.files.digests import sha256
from draftlab.files.gguf_header import read_header
from draftlab.files.scratch import scratch
from draftlab.models.checkpoint import (
    HEAD,
    Array,
    Checkpoint,
    Shapes,
    expected_shapes,
    head_counts,
    head_dim,
    t5_depths,
)
from draftlab.models.config import read_config, read_eos_ids, rope_of
from draftlab.models.tokenizer import chat_templates, read_backend
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
ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "t5": gguf.MODEL_ARCH.T5}

ALIGNMENT = 4096
"""Bytes (a page of memory). With GGUF's default of 32, the length of the header decides whether a row of weights begins at a cache line.
Of two files that differed in nothing else, one decoded 14 % slower, and verified 9 tokens at a cost of 2.2 instead of 2.4 steps."""

# Two custom keys for the origin of a file; llama.cpp ignores them.
VOCABULARY_KEY = "draftlab.vocabulary_sha256"
INFLATED_KEY = "draftlab.inflated_from"


def export(
    model: Path, out: Path, weights: Weights = "f32", *, vocabulary: bool = True, vocabulary_of: Path | None = None
) -> None:
    """Write a model folder (Llama, Qwen2 or T5) as one GGUF file for llama.cpp.

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


# ---- the file


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
    with atomic_path(out, least_bytes) as temporary:
        writer = gguf.GGUFWriter(temporary, architecture)
        writer.add_custom_alignment(ALIGNMENT)
        writer.add_file_type(QUANTIZATION[weights][1])
        if weights.startswith("q"):
            writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        (_add_t5_fields if architecture == "t5" else _add_llama_fields)(writer, config)
        if isinstance(vocabulary, Path):
            _copy_vocabulary(writer, vocabulary, config["vocab_size"])
        else:
            _add_vocabulary(writer, folder, config, vocabulary)
        for key in (HEAD_TOKENS, TABLE_DIGEST, VOCABULARY_KEY):
            if key in config:  # of a trimmed head: its size, its table, and the vocabulary that it is part of
                writer.add_string(key, config[key])
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
        for name, kind in kinds.items():
            writer.write_tensor_data(pack(name, kind))
        writer.close()


def _architecture(config: dict[str, Any]) -> str:
    """llama.cpp's name of the architecture.

    A qwen2 there must have as many channels as its heads have in all. A widened one has more, and is written as a llama, which may have
    biases too.
    """
    kind = str(config["model_type"])
    if kind == "qwen2" and head_counts(config)[0] * head_dim(config) != config["hidden_size"]:
        return "llama"
    return kind


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
    rope = rope_of(config)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width)
    writer.add_value_length(width)
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0))
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


# ---- the tokenizer

SPACE = "▁"
"""A space in SentencePiece's pieces."""
ENDS = ("eos", "eot", "eom")
"""The keys of tokens that end an answer: all end it in llama.cpp."""
BYTE = re.compile("<0x[0-9A-F]{2}>")
"""A piece that is one byte."""
TYPES: dict[type, gguf.GGUFValueType] = {
    bool: gguf.GGUFValueType.BOOL,
    int: gguf.GGUFValueType.UINT32,
    str: gguf.GGUFValueType.STRING,
    list: gguf.GGUFValueType.ARRAY,
}
"""GGUF's type for each type of a tokenizer's field."""


def _copy_vocabulary(writer: gguf.GGUFWriter, file: Path, size: int) -> None:
    metadata = read_header(file).metadata
    count = len(metadata["tokenizer.ggml.tokens"])
    if count != size:
        raise UserError(f"{count} tokens, but the model has {size}", file=file, remedy="give the target of this draft")
    for key, value in metadata.items():
        if key.startswith("tokenizer.ggml."):
            writer.add_key_value(key, value, TYPES[type(value)])


def _add_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any], with_text: bool) -> None:
    path, size = folder / "tokenizer.json", config["vocab_size"]
    tokenizer = read_backend(path) if with_text or path.exists() else None
    ends = _end_tokens(config, folder)
    if with_text and len(ends) > len(ENDS):
        what = f"{len(ends)} tokens end an answer, but a GGUF file can name {len(ENDS)}"
        raise UserError(what, file=folder, remedy="name fewer as eos_token_id, or export without a vocabulary")
    begun = tokenizer.encode("x") if tokenizer and with_text else None
    first = begun.ids[0] if begun and begun.special_tokens_mask[:1] == [1] else None
    bos = first if config.get("bos_token_id") in (None, -1) else config["bos_token_id"]
    tokens = [("bos", "bos", bos), ("pad", "padding", config.get("pad_token_id"))]
    tokens += [("eos", key, token) for key, token in zip(ENDS, ends, strict=False)]
    _add_special_tokens(writer, tokens, size, folder)
    if tokenizer is not None:
        writer.add_string(VOCABULARY_KEY, vocabulary_digest(tokenizer))
    if not with_text or tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        return
    content = json.loads(tokenizer.to_str())
    prefixed = _space_prefix(content)
    if prefixed is None:
        _require_byte_level(content, path)
    count = max(tokenizer.get_vocab_size(), 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0))
    if count > size:
        raise UserError(
            f"{count} tokens, but the model has {size}", file=path, remedy="use the tokenizer of this model"
        )
    pieces = [tokenizer.id_to_token(index) for index in range(size)]
    kinds = _token_types(tokenizer, pieces, path)
    merges = [tuple(m.split(" ", 1) if isinstance(m, str) else m) for m in content["model"]["merges"]]
    if prefixed is None:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_merges([" ".join(merge) for merge in merges])
    else:
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        unknown = tokenizer.token_to_id(content["model"]["unk_token"] or "")
        if unknown is not None:
            writer.add_unk_token_id(unknown)
            kinds[unknown] = gguf.TokenType.UNKNOWN
        for index, piece in enumerate(pieces):
            kinds[index] = gguf.TokenType.BYTE if piece and BYTE.fullmatch(piece) else kinds[index]
        normal = [p if k == gguf.TokenType.NORMAL else None for p, k in zip(pieces, kinds, strict=True)]
        writer.add_token_scores(_scores(normal, merges, path))
    writer.add_token_list([piece if piece is not None else f"[PAD{index}]" for index, piece in enumerate(pieces)])
    writer.add_token_types(kinds)
    writer.add_add_bos_token(first is not None and first == bos)
    writer.add_add_space_prefix(bool(prefixed))
    _add_templates(writer, folder)


def _add_special_tokens(
    writer: gguf.GGUFWriter, tokens: Iterable[tuple[str, str, int | None]], size: int, folder: Path
) -> None:
    """Write the special ``tokens``: the name of each in ``config.json``, its key in the file, and its id."""
    for name, key, token in tokens:
        if token is None or token == -1:  # none, in old files
            continue
        if not 0 <= token < size:
            what = f"{name}_token_id is {token}, but the vocabulary has {size} tokens"
            raise UserError(what, file=folder, remedy="repair config.json")
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", token)


def _token_types(tokenizer: Tokenizer, pieces: Sequence[str | None], path: Path) -> list[gguf.TokenType]:
    """The type of each piece, as far as the added tokens tell; a ``UserError`` names one that llama.cpp would read otherwise."""
    kinds = [gguf.TokenType.NORMAL if piece is not None else gguf.TokenType.UNUSED for piece in pieces]
    for index, token in tokenizer.get_added_tokens_decoder().items():
        if not token.special and (token.lstrip or token.rstrip or token.single_word):
            remedy = "export without a vocabulary (--no-vocabulary)"
            what = (
                f"the token {token.content!r} takes the space beside it, or is only read as a word; not so in llama.cpp"
            )
            raise UserError(what, file=path, remedy=remedy)
        kinds[index] = gguf.TokenType.CONTROL if token.special else gguf.TokenType.USER_DEFINED
    return kinds


def _add_templates(writer: gguf.GGUFWriter, folder: Path) -> None:
    known = chat_templates(folder)
    default, tools = known.get("chat_template"), known.get("tool_template")
    if default and tools:
        named = {"default": default, "tool_use": tools}
        writer.add_chat_template([{"name": name, "template": template} for name, template in named.items()])
    elif default:
        writer.add_chat_template(default)


def _end_tokens(config: dict[str, Any], folder: Path) -> list[int]:
    """The tokens that end an answer, as ``read_eos_ids`` has them; that of ``config`` comes first."""
    own = config.get("eos_token_id")
    known = [token for token in (own if isinstance(own, list) else [own]) if token not in (None, -1)]
    if not known or not (folder / "generation_config.json").is_file():
        return known
    ends = read_eos_ids(folder)
    return sorted(ends, key=lambda token: token not in known[:1])


def vocabulary_digest(tokenizer: Tokenizer) -> str:
    """SHA-256 of the tokens in the order of their ids: two models with the same digest read ids in the same way."""
    vocabulary = sorted(tokenizer.get_vocab(with_added_tokens=True).items(), key=lambda item: item[1])
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def _space_prefix(tokenizer: dict[str, Any]) -> bool | None:
    """Whether a text gets a space before it; None for any tokenizer but SentencePiece's BPE, as Llama and Vicuna have it."""
    if tokenizer["model"].get("type") != "BPE" or not tokenizer["model"].get("byte_fallback"):
        return None
    normalizer, split = tokenizer["normalizer"], tokenizer["pre_tokenizer"]
    steps = (normalizer or {}).get("normalizers", [normalizer] if normalizer else [])
    if split is None and steps and steps[-1] == {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
        prefix = {"type": "Prepend", "prepend": SPACE}
        return steps[:-1] == [prefix] if steps[:-1] in ([], [prefix]) else None
    if not steps and split and split["type"] == "Metaspace" and split["replacement"] == SPACE and not split["split"]:
        return bool(split["prepend_scheme"] != "never")
    return None


def _scores(pieces: list[str | None], merges: list[tuple[str, str]], path: Path) -> list[float]:
    """SentencePiece's scores: of all neighbours whose union is a piece, llama.cpp merges those first that were merged first (``pieces``: None
    for tokens that no text contains)."""
    known = {piece for piece in pieces if piece is not None}
    ranks: dict[str, int] = {}
    for left, right in merges:
        ranks.setdefault(left + right, len(ranks))
    splits = ((p[:at], p[at:]) for p in known for at in range(1, len(p)))
    if absent := {pair for pair in splits if known.issuperset(pair)} - set(merges):
        what = f"no merge makes {''.join(min(absent))!r} of two pieces, but llama.cpp would"
        raise UserError(what, file=path, remedy="export without a vocabulary (--no-vocabulary)")
    return [-float(ranks.get(piece or "", 0)) for piece in pieces]


def _require_byte_level(tokenizer: dict[str, Any], path: Path) -> None:
    """Refuse another tokenizer that llama.cpp's ``gpt-2`` tokenizer would read differently or abort on."""
    stages = tokenizer["pre_tokenizer"] or {}
    stages = stages.get("pretokenizers", [stages])
    splits = [stage for stage in stages if stage.get("type") == "ByteLevel"]
    plain = len(stages) == len(splits) == 1 and splits[0]["use_regex"] and not splits[0]["add_prefix_space"]
    model = tokenizer["model"]
    others = [name for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix") if model.get(name)]
    if model.get("type") != "BPE" or not plain or tokenizer["normalizer"] is not None or others:
        remedy = "give the GGUF file of its target (--vocabulary-of), or export without a vocabulary (--no-vocabulary)"
        raise UserError("neither a plain byte-level BPE tokenizer nor SentencePiece's BPE", file=path, remedy=remedy)
    absent = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - model["vocab"].keys())
    if absent:
        remedy = "train the tokenizer with the byte-level alphabet, or export without a vocabulary (--no-vocabulary)"
        what = f"{len(absent)} of the 256 byte tokens are missing: llama.cpp would abort"
        raise UserError(what, file=path, remedy=remedy)
