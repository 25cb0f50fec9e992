"""Reads and checks ``config.json`` of a model folder, and the ids that end an answer."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from draftlab.errors import UserError
from draftlab.files.json_files import read_object
from draftlab.files.rope_scaling import RopeScaling
from draftlab.files.weights import is_gguf

Size = Annotated[int, Field(gt=0, le=1 << 24)]
MOST_LAYERS = 1 << 10
Depth = Annotated[int, Field(gt=0, le=MOST_LAYERS)]
Positive = Annotated[float, Field(gt=0, le=1e12)]
Id = Annotated[int, Field(ge=-1, lt=1 << 31)]  # -1 means none in old files
Ids = Id | Annotated[list[Id], Field(min_length=1)] | None


LLAMAS = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
"""The decoders that the project's Llama can be, by the ``model_type`` in config.json, and transformers' class of each."""
HEADS = "heads.safetensors"
"""The weights of a draft on its target's states, which only a run that has the target can open."""
HEAD_ALONE = "it is a head of EAGLE-3, DFlash or DSpark, which reads its target's states"
ONLY_DISTIL = "run only experiments that distil it: docs/own.md, a released head"
CONVERT_HEAD = "python convert_hf_to_gguf.py HEAD --target-model-dir TARGET --outfile HEAD.gguf"
"""How llama.cpp's own tool makes a GGUF file of a head, which takes the tokenizer and the layers to read from the target's folder."""
LLAMA_3_ROPE = tuple(field.name for field in dataclasses.fields(RopeScaling))
"""What ``rope_scaling`` must say of a Llama 3."""
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
"""Where transformers writes the chat template for requests with tools, if it is another one."""

Head = Literal["", "eagle3", "dflash", "dspark"]
"""A kind of head on its target's states, by vLLM's names; empty: a draft that is a language model."""
IN_BLOCKS = ("dflash", "dspark")
"""The heads that always fill in a block."""

STRICT = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)


class Fields(BaseModel):
    """Fields of any architecture; ``transformers`` checks fields that are not listed here."""

    model_config = STRICT

    model_type: str = ""
    architectures: list[str] | None = None
    vocab_size: Size | None = None
    tie_word_embeddings: bool | None = None
    bos_token_id: Id | None = None
    eos_token_id: Ids = None
    pad_token_id: Id | None = None
    quantization_config: dict[str, Any] | None = None
    draftlab_inflated_from: dict[str, int] | None = None


class Rope(BaseModel):
    """Rotary positions."""

    model_config = STRICT

    rope_theta: Positive | None = None
    rope_type: str | None = None
    type: str | None = None
    factor: Positive | None = None
    low_freq_factor: Positive | None = None
    high_freq_factor: Positive | None = None
    original_max_position_embeddings: Size | None = None

    @model_validator(mode="after")
    def _check(self) -> Rope:
        if (self.rope_type or self.type) != "llama3":
            return self
        missing = [name for name in LLAMA_3_ROPE if getattr(self, name) is None]
        if missing:
            raise ValueError(f"rope type llama3 without {missing[0]}")
        if self.low_freq_factor >= self.high_freq_factor:  # type: ignore[operator]
            raise ValueError("rope type llama3 needs a low_freq_factor below its high_freq_factor")
        return self


class LlamaFields(Fields):
    """The sizes of a Llama, with the defaults of ``transformers``."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Depth
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Size = 2048
    rms_norm_eps: Positive = 1e-6
    rope_theta: Positive | None = None
    rope_parameters: Rope | None = None
    rope_scaling: Rope | None = None
    tie_word_embeddings: bool = False
    hidden_act: str = "silu"
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    initializer_range: Positive | None = None
    use_sliding_window: bool | None = None
    head_tokens: Annotated[int, Field(ge=0, le=1 << 24)] | None = None
    pard_token: Id | None = None
    ptd_token_id: Id | None = None
    mask_token_id: Id | None = None
    parallel_drafting: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> LlamaFields:
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads or self.num_attention_heads
        if heads % kv_heads:
            raise ValueError(f"{heads} attention heads are not a multiple of {kv_heads} key-value heads")
        if self.head_dim is None and self.hidden_size % heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of {heads} attention heads")
        if (width := self.head_dim or self.hidden_size // heads) % 2:
            raise ValueError(f"heads are {width} wide: rotary positions need an even width")
        mask = mask_token_of(self.model_dump())
        if mask is not None and not 0 <= mask < self.vocab_size:
            raise ValueError(f"the mask, token {mask}, is none of the {self.vocab_size} tokens")
        return self


class Qwen2Fields(LlamaFields):
    """A Llama whose queries, keys and values have biases."""

    max_position_embeddings: Size = 32_768


class Qwen3Fields(LlamaFields):
    """A Llama whose queries and keys are normed, head by head."""

    max_position_embeddings: Size = 32_768
    head_dim: Size = 128


class MistralFields(LlamaFields):
    """A Llama, where ``sliding_window`` is null."""

    max_position_embeddings: Size = 131_072
    num_key_value_heads: Size | None = 8
    sliding_window: Size | None = 4096


class T5Fields(Fields):
    """The sizes of a T5."""

    vocab_size: Size
    d_model: Size
    d_ff: Size
    d_kv: Size
    num_heads: Size
    num_layers: Depth
    num_decoder_layers: Depth | None = None
    n_positions: Size = 512
    relative_attention_num_buckets: Size = 32
    layer_norm_epsilon: Positive = 1e-6
    decoder_start_token_id: Annotated[int, Field(ge=0, lt=1 << 24)]
    feed_forward_proj: str = "relu"
    scale_decoder_outputs: bool | None = None
    tie_word_embeddings: bool = True


KINDS: dict[str, type[Fields]] = {
    "llama": LlamaFields,
    "mistral": MistralFields,
    "qwen2": Qwen2Fields,
    "qwen3": Qwen3Fields,
    "t5": T5Fields,
}


def read_config(folder: Path | str) -> dict[str, Any]:
    """Read ``config.json`` of a model folder, check type and bounds of the fields that this package reads, and add their defaults.

    **Raises:** ``UserError`` that names the file, the field and what is wrong with it.
    """
    file = Path(folder) / "config.json"
    if not file.is_file() and (Path(folder) / HEADS).is_file():
        what = "this draft reads its target's states, and can be opened only where it was distilled"
        raise UserError(what, file=folder, remedy="for other experiments, distil a draft with reads_target: false")
    raw = _flat(read_object(file))
    kind = raw.get("model_type")
    if kind is None and raw.get("architectures") == ["LlamaForCausalLM"]:  # written by an old version
        kind = "llama"
        raw = raw | {"model_type": kind}
    fields = _validate(KINDS.get(kind, Fields) if isinstance(kind, str) else Fields, raw, file).model_dump()
    return raw | {name: value for name, value in fields.items() if value is not None and raw.get(name) is None}


def _flat(raw: dict[str, Any]) -> dict[str, Any]:
    """A config.json whose fields of a decoder are in an object of their own, as the speculators library writes it, with these at the top level."""
    layer = raw.get("transformer_layer_config")
    return raw | layer | {"architectures": raw.get("architectures")} if isinstance(layer, dict) else raw


def another_head(folder: Path) -> UserError:
    """The error where ``config.json`` calls the head the embedding, and the weights have another one."""
    what = "config.json says that the head is the embedding, but the folder has another head"
    return UserError(what, file=folder, remedy="set tie_word_embeddings to false, or remove lm_head.weight")


def rope_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """How positions rotate: ``rope_scaling``, which in transformers, too, prevails over ``rope_parameters``; {} if neither says."""
    return config.get("rope_scaling") or config.get("rope_parameters") or {}


def is_head(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a head of EAGLE-3 or DFlash, or of another draft that reads its target's states."""
    stated = any(name in config for name in ("draft_vocab_size", "speculators_model_type"))
    return stated or is_dflash(config) or any("Eagle3" in name for name in config.get("architectures") or ())


def is_dflash(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a head of DFlash, or of DSpark, which extends it."""
    named = any("DFlash" in name for name in config.get("architectures") or ())
    return named or config.get("speculators_model_type") == "dflash" or is_dspark(config)


def is_dspark(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a head of DSpark."""
    named = any("DSpark" in name for name in config.get("architectures") or ())
    return named or config.get("speculators_model_type") == "dspark"


def head_in(model: Path | str) -> Head:
    """Which head is in the folder of a model; none in that of a language model, where the model is on the hub, which is not known yet, or for ''."""
    if not model or not (Path(model) / "config.json").is_file() or not is_head(config := read_config(model)):
        return ""
    return "dspark" if is_dspark(config) else "dflash" if is_dflash(config) else "eagle3"


def mask_token_of(config: Mapping[str, Any]) -> int | None:
    """What a draft that proposes a block in one pass reads for a token that is not known yet (PARD, P-EAGLE, DFlash); None: it drafts token after
    token.

    PARD and vLLM name it ``pard_token``, P-EAGLE's authors ``ptd_token_id``. In heads of DFlash, of the speculators library and of NeMo it is
    ``mask_token_id``, which other models have for other purposes.
    """
    is_of_dflash = is_dflash(config)
    is_at_once = is_of_dflash or config.get("speculators_model_type") == "peagle" or config.get("parallel_drafting")
    names = ("pard_token", "ptd_token_id", *["mask_token_id"] * bool(is_at_once))
    stated = {**config, **(config.get("dflash_config") or {})} if is_of_dflash else config
    return next((stated[name] for name in names if stated.get(name) is not None), None)


def drafts_in_parallel(model: Path | str) -> bool:
    """Whether a model is the folder of a draft that proposes a block in one pass; False for one on the hub, which is not known yet."""
    return (Path(model) / "config.json").is_file() and mask_token_of(read_config(model)) is not None


def check_layers(name: str, layers: object, folder: Path) -> list[int]:
    """Layers that ``name`` gives in config.json; a ``UserError`` if they are none, or not in ascending order."""
    is_list = isinstance(layers, list) and layers and all(type(layer) is int and layer >= 0 for layer in layers)
    if not isinstance(layers, list) or not is_list or layers != sorted(layers):
        what = f"{name}: {layers!r} are not layers in ascending order"
        raise UserError(what, file=folder / "config.json", remedy="fetch the head again")
    return layers


def rope_theta_of(config: Mapping[str, Any]) -> float:
    """The base of the rotary frequencies."""
    return float(rope_of(config).get("rope_theta") or config.get("rope_theta") or 10_000.0)


def rope_scaling_of(config: Mapping[str, Any]) -> RopeScaling | None:
    """How positions are stretched; None if they are not."""
    rope = rope_of(config)
    is_scaled = rope.get("rope_type", rope.get("type")) == "llama3"
    return RopeScaling(**{name: rope[name] for name in LLAMA_3_ROPE}) if is_scaled else None


def unsupported_settings(config: Mapping[str, Any]) -> list[str]:
    """The settings by which a decoder of a family in ``LLAMAS`` departs from the project's Llama: further biases, other positions or activation."""
    rope, kind = rope_of(config), config.get("model_type")
    ropes = ("default", "llama3") if kind in ("llama", "mistral") else ("default",)  # llama.cpp reads no others
    unsupported = {
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "attention_bias": config.get("attention_bias", False),
        "mlp_bias": config.get("mlp_bias", False),
        "use_sliding_window": config.get("use_sliding_window", False),
        "sliding_window": kind == "mistral" and config.get("sliding_window"),
        "is_causal": not config.get("is_causal", True),
        "layer_types": not set(config.get("layer_types") or ()) <= {"full_attention"},
        "rope type": rope.get("rope_type", rope.get("type", "default")) not in ropes,
    }
    return [name for name, is_set in unsupported.items() if is_set]


def is_llama(config: Mapping[str, Any]) -> bool:
    """Whether the project's Llama can be this model: a plain decoder of a family in ``LLAMAS``, not quantized."""
    kind = config.get("model_type")
    return (
        kind in LLAMAS
        and config.get("architectures") == [LLAMAS[kind]]
        and not unsupported_settings(config)
        and not config.get("quantization_config")
    )


def read_sizes(model: Path) -> dict[str, Any]:
    """The config of a model folder, or the fields of a config that the header of a GGUF file has."""
    from draftlab.files.gguf_header import read_header  # imports numpy

    return read_header(model).shape if is_gguf(model) else read_config(model)


def context_of(model: Path | str) -> int:
    """How many tokens a request may have, according to a model folder or a GGUF file; 0 if unknown, as for a T5."""
    if not is_gguf(model) and not (Path(model) / "config.json").is_file():
        return 0
    return int(read_sizes(Path(model)).get("max_position_embeddings") or 0)


def read_eos_ids(folder: Path | str) -> tuple[int, ...]:
    """The ids that end an answer, from generation_config.json or else config.json."""
    for name in ("generation_config.json", "config.json"):
        file = Path(folder) / name
        if file.is_file():
            eos = _validate(Fields, read_object(file), file).eos_token_id
            ids = [token for token in (eos if isinstance(eos, list) else [eos]) if token is not None and token >= 0]
            if ids:
                return tuple(ids)
    raise UserError("no eos_token_id", file=Path(folder) / "config.json", remedy="add it: answers must be able to end")


def _validate(kind: type[Fields], raw: dict[str, Any], file: Path) -> Fields:
    """The fields of a file; ``UserError`` names the first that is wrong."""
    remedy = "use the model's own file: fetch or make the model again"
    try:
        json.dumps(raw, allow_nan=False)
    except ValueError:
        raise UserError("a number that is not finite", file=file, remedy=remedy) from None
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        what = first["msg"].removeprefix("Value error, ")
        raise UserError(f"{key}: {what}" if key else what, file=file, remedy=remedy) from None


def copy_files(source: Path, folder: Path, names: Iterable[str]) -> None:
    """Copy those of the files ``names`` that a model folder has."""
    for name in names:
        if (source / name).is_file():
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / name, folder / name)
