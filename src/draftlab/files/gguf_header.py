"""Reads the header of a GGUF file: which model it is, and whether our Llama can represent it, without reading its weights.

This takes a fraction of a second and needs no torch, so a plan can refuse a file before any job starts.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import gguf
from pydantic import Field, TypeAdapter, ValidationError

from draftlab.errors import UserError
from draftlab.files.rope_scaling import RopeScaling, scaling_of

ARCHITECTURES = ("llama", "qwen2", "qwen3")
SPLITS = ("gpt-2", "smollm", "qwen2", "deepseek-r1-qwen", "llama-bpe")
"""Supported ways to split text before byte-level BPE, by their name in the file (``tokenizer.ggml.pre``)."""

PACKINGS = {
    gguf.GGMLQuantizationType[name].value
    for name in ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]
}
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
BIASES = ("attn_q", "attn_k", "attn_v")
NORMS = ("attn_norm", "ffn_norm")
NORMS_OF_HEADS = ("attn_q_norm", "attn_k_norm")
ROPE_DIVISORS = "rope_freqs.weight"
"""The tensor by which rotary frequencies are divided."""

TOKENIZER = "tokenizer.ggml."
"""How the keys of a tokenizer's metadata begin."""
FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9

Size = Annotated[int, Field(gt=0, le=1 << 24)]
Depth = Annotated[int, Field(gt=0, le=1 << 10)]
Id = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
KINDS: dict[str, Any] = {
    **dict.fromkeys(("context_length", "embedding_length", "feed_forward_length"), Size),
    **dict.fromkeys((f"attention.{name}" for name in ("head_count", "head_count_kv", "key_length")), Size),
    "block_count": Depth,
    **dict.fromkeys(("attention.layer_norm_rms_epsilon", "rope.freq_base"), Positive),
    **dict.fromkeys((f"{TOKENIZER}{name}" for name in ("model", "pre")), str),
    **dict.fromkeys((f"{TOKENIZER}{name}" for name in ("tokens", "merges")), list[str]),
    f"{TOKENIZER}token_type": list[int],
    f"{TOKENIZER}scores": list[float],
    **dict.fromkeys((f"{TOKENIZER}{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")), Id),
    **dict.fromkeys((f"{TOKENIZER}{name}" for name in ("add_bos_token", "add_space_prefix")), bool),
    **dict.fromkeys(("tokenizer.chat_template", "tokenizer.chat_template.tool_use"), str),
}
"""What the values are that this package reads; the keys of a model's sizes begin with its architecture in the file."""


@dataclass(frozen=True)
class Stored:
    """One tensor of a file: its shape in numpy's order, its quantization type, and the offset of its first byte."""

    shape: tuple[int, ...]
    packing: int
    start: int

    @property
    def size(self) -> int:
        """The size of the tensor in the file, in bytes."""
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(self.packing)]
        return math.prod(self.shape) // block * size


@dataclass(frozen=True)
class Header:
    """The part of a GGUF file before its weights: metadata, and where each tensor is."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Stored]
    rope_divisors: tuple[float, ...] = ()

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """A metadata value whose key begins with the name of the architecture."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    @property
    def parameters(self) -> int:
        """The number of weights in the file."""
        return sum(math.prod(stored.shape) for stored in self.tensors.values())

    @property
    def rope_theta(self) -> float:
        return float(self.get("rope.freq_base", 10000.0))

    @property
    def rope_scaling(self) -> RopeScaling | None:
        """How positions are stretched; None if they are not, or in another way than Llama 3's."""
        return scaling_of(self.rope_divisors, self.rope_theta) if self.rope_divisors else None

    @property
    def shape(self) -> dict[str, Any]:
        """The header's fields under the names of a Hugging Face config; ``KeyError`` names a missing one."""

        def need(key: str) -> Any:
            return self.metadata[f"{self.architecture}.{key}"]

        heads, channels = need("attention.head_count"), need("embedding_length")
        embedding = self.tensors.get("token_embd.weight")
        if embedding is None:
            raise KeyError("token_embd.weight")
        if not isinstance(heads, int):
            raise KeyError("single number of heads")
        return {
            "vocab_size": embedding.shape[0],
            "hidden_size": channels,
            "intermediate_size": need("feed_forward_length"),
            "num_hidden_layers": need("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": self.get("attention.head_count_kv", heads),
            "max_position_embeddings": need("context_length"),
            "head_dim": self.get("attention.key_length", channels // heads),
            "rms_norm_eps": need("attention.layer_norm_rms_epsilon"),
            "rope_theta": self.rope_theta,
            "rope_scaling": self.rope_scaling,
            "tie_word_embeddings": "output.weight" not in self.tensors,
        }


def read_header(path: Path | str) -> Header:
    """Read everything but the weights of a GGUF file.

    **Raises:** ``UserError`` if it is not a GGUF file, is cut off, or holds a model that our Llama cannot represent.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="check the path")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _parse(path, data)
            size = len(data)
        _check(header)
    except (struct.error, ValueError, TypeError, OverflowError, ZeroDivisionError, RecursionError) as error:
        raise UserError(f"not a whole GGUF file: {error}", file=path, remedy="fetch it again") from None
    if size < max((stored.start + stored.size for stored in header.tensors.values()), default=0):
        raise UserError(f"cut off after {size} bytes", file=path, remedy="fetch it again")
    return header


def _parse(path: Path, data: mmap.mmap) -> Header:
    """Parse the header from the bytes of a file; ``ValueError`` or ``struct.error`` if it is damaged."""
    at = 0

    def take(form: str) -> Any:
        nonlocal at
        (value,) = struct.unpack_from(f"<{form}", data, at)
        at += struct.calcsize(f"<{form}")
        return value

    def text() -> str:
        nonlocal at
        end = take("Q") + at
        if end > len(data):
            raise ValueError("a text runs past its end")
        value, at = data[at:end].decode(), end
        return value

    def value(kind: int) -> Any:
        nonlocal at
        if kind not in (*FORMATS, TEXT, ARRAY):
            raise ValueError(f"a value of the unknown kind {kind}")
        if kind == TEXT:
            return text()
        if kind != ARRAY:
            return take(FORMATS[kind])
        inner, count = take("I"), take("Q")
        if inner not in FORMATS:
            return [value(inner) for _ in range(count)]
        values = struct.unpack_from(f"<{count}{FORMATS[inner]}", data, at)
        at += struct.calcsize(f"<{count}{FORMATS[inner]}")
        return list(values)

    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    at = 4
    version, tensors, entries = take("I"), take("Q"), take("Q")
    if version not in (2, 3):
        raise ValueError(f"version {version}")
    metadata: dict[str, Any] = {}
    for _ in range(entries):
        key = text()
        metadata[key] = value(take("I"))
    stored = {}
    for _ in range(tensors):
        name = text()
        shape = tuple(take("Q") for _ in range(take("I")))[::-1]
        stored[name] = (shape, take("I"), take("Q"))
    alignment = metadata.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    begin = -(-at // alignment) * alignment
    found = {name: Stored(shape, packing, begin + offset) for name, (shape, packing, offset) in stored.items()}
    divisors: tuple[float, ...] = ()
    if (last := found.get(ROPE_DIVISORS)) and (len(last.shape), last.packing) == (1, gguf.GGMLQuantizationType.F32):
        divisors = struct.unpack_from(f"<{last.shape[0]}f", data, last.start)
    return Header(path, metadata, found, divisors)


def _check(header: Header) -> None:
    """Raise ``UserError`` for anything that our Llama cannot represent exactly, and name it."""
    if isinstance(parts := header.metadata.get("split.count"), int) and parts > 1:
        remedy = "join them: llama-gguf-split --merge FIRST_PART OUT.gguf"
        raise UserError(f"one of {parts} parts of a model", file=header.path, remedy=remedy)
    if header.architecture not in ARCHITECTURES:
        raise _refused(header, f"architecture {header.architecture!r} cannot be read from a GGUF file")
    _check_kinds(header)
    try:
        config = header.shape
    except KeyError as key:
        raise _refused(header, f"the header has no {key.args[0]}") from None
    _check_attention(header, config["head_dim"])
    _check_tensors(header, config)
    _check_tokenizer(header, config["vocab_size"])


def _refused(header: Header, what: str) -> UserError:
    remedy = f"use a plain model of {', '.join(ARCHITECTURES)}, or a folder that transformers reads"
    return UserError(what, file=header.path, remedy=remedy)


def _check_attention(header: Header, width: int) -> None:
    """``UserError`` for positions or an attention that our Llama has not; ``width``: channels of a head."""
    # Without a type, llama.cpp scales linearly by a factor.
    factor = header.get("rope.scaling.factor", header.get("rope.scale_linear", 1.0))
    is_scaled = header.get("rope.scaling.type", "none" if factor in (0, 1) else "linear") != "none"
    is_scaled = is_scaled or header.get("rope.scaling.attn_factor", 1.0) != 1
    if ROPE_DIVISORS in header.tensors:  # llama.cpp does not read them for every architecture
        is_scaled = is_scaled or header.architecture != "llama" or header.rope_scaling is None
    if is_scaled or header.get("rope.dimension_count", width) != width:
        raise _refused(header, f"{header.architecture} with scaled or partial rotary positions cannot be read")
    is_causal = header.get("attention.causal", True)
    if header.get("attention.value_length", width) != width or header.get("attention.sliding_window") or not is_causal:
        raise _refused(header, f"{header.architecture} with this attention cannot be read")


def _check_tensors(header: Header, config: Mapping[str, Any]) -> None:
    """``UserError`` unless the file has the tensors of a model with this ``config``, in shapes and packings that can be read."""
    heads, width, channels = config["num_attention_heads"], config["head_dim"], config["hidden_size"]
    inner, kv = config["intermediate_size"], config["num_key_value_heads"]
    rows = {"attn_q": heads * width, "attn_k": kv * width, "attn_v": kv * width, "ffn_gate": inner, "ffn_up": inner}
    columns = {"attn_output": heads * width, "ffn_down": inner}
    wanted: dict[str, tuple[int, ...]] = {"output_norm.weight": (channels,)}
    for layer in range(config["num_hidden_layers"]):
        part = f"blk.{layer}."
        wanted |= {f"{part}{name}.weight": (rows.get(name, channels), columns.get(name, channels)) for name in MATRICES}
        wanted |= {f"{part}{name}.weight": (channels,) for name in NORMS}
        if header.architecture == "qwen2":
            wanted |= {f"{part}{name}.bias": (rows[name],) for name in BIASES}
        if header.architecture == "qwen3":
            wanted |= {f"{part}{name}.weight": (width,) for name in NORMS_OF_HEADS}
    wanted |= {name: (config["vocab_size"], channels) for name in ("token_embd.weight", "output.weight")}
    wanted |= {ROPE_DIVISORS: (width // 2,)}
    for name, stored in header.tensors.items():
        if wanted.get(name) != stored.shape:
            what = f"{header.architecture} with a tensor {name} of shape {stored.shape} cannot be read"
            raise _refused(header, what)
        if stored.packing not in PACKINGS:
            raise _refused(header, f"the packing of {name} (number {stored.packing}) cannot be read")
    if missing := sorted(wanted.keys() - header.tensors.keys() - {"output.weight", ROPE_DIVISORS}):
        raise _refused(header, f"no tensor {missing[0]}")


def _check_tokenizer(header: Header, vocab_size: int) -> None:
    """``UserError`` for a tokenizer of another kind, or one that does not fit a model of ``vocab_size`` tokens."""
    of_tokenizer = {
        name.removeprefix(TOKENIZER): value for name, value in header.metadata.items() if name.startswith(TOKENIZER)
    }
    kind, cut = of_tokenizer.get("model"), of_tokenizer.get("pre", "default")
    if kind not in ("llama", "gpt2") or (kind == "gpt2" and cut not in SPLITS):
        what = f"its tokenizer ({cut if kind == 'gpt2' else kind}) is not one of llama, {', '.join(SPLITS)}"
        raise _refused(header, what)
    if "eos_token_id" not in of_tokenizer:
        raise _refused(header, "it does not say which token ends an answer")
    needed = ("tokens", "scores" if kind == "llama" else "merges")
    if absent := [name for name in needed if name not in of_tokenizer]:
        raise _refused(header, f"its tokenizer has no {absent[0]}")
    if (count := len(of_tokenizer["tokens"])) != vocab_size:
        raise _refused(header, f"its tokenizer has {count} tokens, but its model {vocab_size}")
    for name in ("token_type", "scores"):
        if len(of_tokenizer.get(name, range(count))) != count:
            raise _refused(header, f"its tokenizer has {count} tokens, but another number of {name}")
    for name in ("bos", "eos", "eot", "eom", "unknown"):
        if (token := of_tokenizer.get(f"{name}_token_id", 0)) >= count:
            raise _refused(header, f"its {name}_token_id is {token}, but it has {count} tokens")


def _check_kinds(header: Header) -> None:
    """``UserError`` for a value of another kind than its key has."""
    for key, kind in KINDS.items():
        name = key if key.startswith("tokenizer.") else f"{header.architecture}.{key}"
        if name in header.metadata:
            try:
                TypeAdapter(kind).validate_python(header.metadata[name], strict=True)
            except ValidationError as error:
                what = f"{name}: {error.errors()[0]['msg']}"
                raise UserError(what, file=header.path, remedy="fetch or export it again") from None
