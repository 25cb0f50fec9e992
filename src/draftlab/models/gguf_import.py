"""Import of a GGUF file: as our own Llama, as a tokenizer, or as a model folder; ``gguf`` writes such files.

``files.gguf_header`` refuses files that our Llama cannot represent. ``gguf.dequantize`` reads the values, in float32.

For a ``llama``, llama.cpp stores the rows of query and key as neighbouring rotary pairs, as our ``Llama`` does in memory. For a
``qwen2`` or ``qwen3``, it stores them as halves, as Hugging Face does.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers import models as bpe

from draftlab.errors import UserError, first_line
from draftlab.files.atomic import atomic_dir
from draftlab.files.digests import sha256
from draftlab.files.gguf_header import BIASES, read_header
from draftlab.files.json_files import read_object, write_json
from draftlab.files.seals import seal
from draftlab.models.hub import check_outside
from draftlab.models.tokenizer import Tokenizer
from draftlab.models.vocabulary_rows import fit_rows

if TYPE_CHECKING:
    from torch import Tensor

    from draftlab.files.gguf_header import Header
    from draftlab.models.llama import Llama, LlamaConfig

ORIGINAL = "model.gguf"
"""The link in a model folder to the GGUF file from which it was made (``original``)."""

TURNED = ("attn_q", "attn_k", "attn_q_norm", "attn_k_norm")
"""The parts whose rows belong to rotary pairs."""

TURN_ENDS = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
"""Tokens that end a turn of a conversation, in llama.cpp too, though a header may not say so."""

TRIAL = """
import sys
from draftlab.models.llama_cpp import LlamaCpp
with LlamaCpp(sys.argv[1]) as model:
    model.prefill([1, 2])
"""

WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CONTROL, USER_DEFINED, UNUSED = gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED, gguf.TokenType.UNUSED


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    words = pre_tokenizers.Split(Regex(WORD.format(digits)), "isolated")
    return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


SPLITS: dict[str, Callable[[], Any]] = {
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": lambda: pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "qwen2": lambda: _split(""),
    "deepseek-r1-qwen": lambda: _split(""),
    "llama-bpe": lambda: _split("{1,3}"),
}
"""How text is split before byte-level BPE, by the name in the file (``tokenizer.ggml.pre``)."""


def config_of(header: Header) -> LlamaConfig:
    """The config of our Llama for the model of a GGUF file."""
    from draftlab.models.llama import LlamaConfig

    ids: dict[str, Any] = {
        name: header.metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "padding", "eos", "eot", "eom")
    }
    tokens: list[str] = header.metadata["tokenizer.ggml.tokens"]
    # The first files of Llama 3 name only the end of a text.
    if ids["eot"] is None and tokens[ids["eos"]] not in TURN_ENDS:
        ids["eot"] = next((place for place, token in enumerate(tokens) if token in TURN_ENDS), None)
    ends = list(dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None))
    return LlamaConfig(
        **header.shape,
        bos_token_id=ids["bos"],
        eos_token_id=ends[0] if len(ends) == 1 else tuple(ends),
        pad_token_id=ids["padding"],
        qkv_bias=header.architecture == "qwen2",
        qk_norm=header.architecture == "qwen3",
    )


def read_model(path: Path | str) -> Llama:
    """The model of a GGUF file, in float32, or in float16 or bfloat16 if the file stores all matrices so."""
    import torch

    from draftlab.models.llama import Llama
    from draftlab.models.rotary import together

    header = read_header(path)
    config = config_of(header)
    kinds = {gguf.GGMLQuantizationType(stored.packing) for stored in header.tensors.values() if len(stored.shape) == 2}
    halves = {gguf.GGMLQuantizationType.F16: torch.float16, gguf.GGMLQuantizationType.BF16: torch.bfloat16}
    dtype = halves.get(next(iter(kinds)), torch.float32) if len(kinds) == 1 else torch.float32
    data = np.memmap(header.path, dtype=np.uint8, mode="r")

    def read(name: str) -> Tensor:
        stored = header.tensors[name]
        kind = gguf.GGMLQuantizationType(stored.packing)
        packed = data[stored.start : stored.start + stored.size].reshape(stored.shape[0], -1)
        values = np.array(gguf.dequantize(packed, kind), dtype=np.float32).reshape(stored.shape)
        tensor = torch.from_numpy(values)
        tensor = tensor.to(dtype) if tensor.ndim == 2 else tensor
        is_halves = header.architecture != "llama" and name.split(".")[-2] in TURNED
        return together(tensor, config.head_dim) if is_halves else tensor

    renamed = {"input_norm": "attn_norm", "output": "attn_output", "mlp_norm": "ffn_norm", "down": "ffn_down"}
    joined = {"qkv": [f"{name}.weight" for name in BIASES], "gate_up": ["ffn_gate.weight", "ffn_up.weight"]}
    if config.qk_norm:
        renamed |= {"query_norm": "attn_q_norm", "key_norm": "attn_k_norm"}
    if config.qkv_bias:
        joined["qkv_bias"] = [f"{name}.bias" for name in BIASES]
    state = {"embed": read("token_embd.weight"), "norm": read("output_norm.weight")}
    if not config.tie_word_embeddings:
        state["head"] = read("output.weight")
    for layer in range(config.num_hidden_layers):
        ours, theirs = f"layers.{layer}.", f"blk.{layer}."
        state |= {f"{ours}{name}": read(f"{theirs}{other}.weight") for name, other in renamed.items()}
        state |= {ours + name: torch.cat([read(theirs + part) for part in parts]) for name, parts in joined.items()}
    model = Llama(config, torch.device("meta"))
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(True)


def read_tokenizer(path: Path | str) -> Tokenizer:
    """The tokenizer of a GGUF file, with its chat template and the ids that end an answer."""
    header = read_header(path)
    metadata, config = header.metadata, config_of(header)
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata.get("tokenizer.ggml.token_type", [gguf.TokenType.NORMAL] * len(tokens))
    is_byte_level = metadata["tokenizer.ggml.model"] == "gpt2"
    split: str = metadata.get("tokenizer.ggml.pre", "")
    vocabulary = {token: index for index, token in enumerate(tokens) if kinds[index] != UNUSED}
    if is_byte_level:
        merges = [tuple(line.split(" ", 1)) for line in metadata["tokenizer.ggml.merges"]]
        backend = _backend(header.path, vocabulary, merges, ignore_merges=split == "llama-bpe")
        backend.pre_tokenizer, backend.decoder = SPLITS[split](), decoders.ByteLevel()
    else:
        backend = _sentencepiece_bpe(header.path, tokens, vocabulary, metadata)
    for kind in (CONTROL, USER_DEFINED):
        names = [token for token, other in zip(tokens, kinds, strict=True) if other == kind]
        added = [AddedToken(name, special=kind == CONTROL, normalized=False) for name in names]
        (backend.add_special_tokens if kind == CONTROL else backend.add_tokens)(added)
    bos = config.bos_token_id
    if bos is not None and metadata.get("tokenizer.ggml.add_bos_token", not is_byte_level or split == "llama-bpe"):
        backend.post_processor = processors.TemplateProcessing(single="BOS $A", special_tokens=[("BOS", bos)])
    backend.encode_special_tokens = True
    eos = config.eos_token_id
    eos_ids = eos if isinstance(eos, tuple) else (int(eos or 0),)
    tool_template = metadata.get("tokenizer.chat_template.tool_use")
    texts = ("" if bos is None else tokens[bos], tokens[eos_ids[0]])
    return Tokenizer(backend, eos_ids, metadata.get("tokenizer.chat_template"), *texts, tool_template)


def _backend(path: Path, vocabulary: dict[str, int], merges: Sequence[Any], **options: Any) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(bpe.BPE(vocabulary, merges, **options))
    except Exception as error:  # the tokenizers library raises bare Exception
        raise UserError(f"no tokenizer: {first_line(error)}", file=path, remedy="fetch or export it again") from None


def _sentencepiece_bpe(
    path: Path, tokens: Sequence[str], vocabulary: dict[str, int], metadata: dict[str, Any]
) -> tokenizers.Tokenizer:
    """SentencePiece's BPE: of all neighbouring pieces, the pair whose union has the best score is merged first."""
    scores = metadata["tokenizer.ggml.scores"]
    pairs = [
        (-scores[index], index, at)
        for token, index in vocabulary.items()
        for at in range(1, len(token))
        if token[:at] in vocabulary and token[at:] in vocabulary
    ]
    merges = [(tokens[index][:at], tokens[index][at:]) for _, index, at in sorted(pairs)]
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    backend = _backend(path, vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend("▁")] * prefixed + [normalizers.Replace(" ", "▁")]
    backend.normalizer = normalizers.Sequence(steps)
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*undo, *([decoders.Strip(" ", 1, 0)] * prefixed)])
    return backend


def original(folder: Path, otherwise: str) -> Path | None:
    """The GGUF file from which a model folder was made, or a copy of it; None if it was made of another.

    **Raises:** ``UserError`` if the file is gone; ``otherwise`` is what to do if it cannot be put back.
    """
    link = folder / ORIGINAL
    if link.is_symlink() and not link.exists():
        what = f"the file that it leads to is gone: {link.readlink()}"
        raise UserError(what, file=link, remedy=f"put it back, or {otherwise}")
    return link if link.exists() else None


def check_loads(path: Path) -> None:
    """Let a separate process load a file and read two tokens: llama.cpp crashes on some damaged files."""
    command = [sys.executable, "-c", TRIAL, str(path)]
    status = subprocess.run(command, capture_output=True, check=False).returncode
    if status < 0:  # a signal; an ordinary error appears again where the file is used
        what = f"llama.cpp crashes with {signal.Signals(-status).name} when it reads this file"
        raise UserError(what, file=path, remedy="fetch or export it again")


def write_folder(path: Path, out: Path, rows: int = 0) -> None:
    """Write the model of a GGUF file as a folder in the Hugging Face layout, with a link to the file.

    **Arguments:**
    - `path`: the GGUF file
    - `out`: the folder to write
    - `rows`: the rows of embeddings that the folder gets, for a draft whose target has others; 0: those of the file
    """
    check_outside(str(path), out)
    check_loads(path)
    with atomic_dir(out) as folder:
        read_model(path).save(folder)
        fit_rows(folder, rows)
        read_tokenizer(path).save(folder)
        origin = {"file": path.name, "sha256": sha256(path)}
        write_json(folder / "config.json", read_object(folder / "config.json") | {"draftlab_made_of": origin})
        (folder / ORIGINAL).symlink_to(path.resolve())
        seal(folder)
