"""The tokenizer in a GGUF file that ``gguf`` writes: that of a model folder, or that of another file.

llama.cpp aborts the process on some vocabularies, and reads others differently. Anything that could lead to such a file is a ``UserError``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import gguf
from tokenizers import Tokenizer, pre_tokenizers

from draftlab.errors import UserError
from draftlab.files.gguf_header import read_header
from draftlab.models.config import read_eos_ids
from draftlab.models.tokenizer import chat_templates, read_backend

VOCABULARY_KEY = "draftlab.vocabulary_sha256"
"""A key of ours for a digest of the vocabulary; llama.cpp ignores it."""
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


def add_vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict[str, Any], vocabulary: bool | Path) -> None:
    """Write the tokenizer of a model ``folder``, or of the GGUF file ``vocabulary``; for False only its digest and its special tokens."""
    if isinstance(vocabulary, Path):
        _copy(writer, vocabulary, config["vocab_size"])
        return
    path, size = folder / "tokenizer.json", config["vocab_size"]
    tokenizer = read_backend(path) if vocabulary or path.exists() else None
    ends = _end_tokens(config, folder)
    if vocabulary and len(ends) > len(ENDS):
        what = f"{len(ends)} tokens end an answer, but a GGUF file can name {len(ENDS)}"
        raise UserError(what, file=folder, remedy="name fewer as eos_token_id, or export without a vocabulary")
    begun = tokenizer.encode("x") if tokenizer and vocabulary else None
    first = begun.ids[0] if begun and begun.special_tokens_mask[:1] == [1] else None
    bos = first if config.get("bos_token_id") in (None, -1) else config["bos_token_id"]
    tokens = [("bos", "bos", bos), ("pad", "padding", config.get("pad_token_id"))]
    tokens += [("eos", key, token) for key, token in zip(ENDS, ends, strict=False)]
    _add_special_tokens(writer, tokens, size, folder)
    if tokenizer is not None:
        writer.add_string(VOCABULARY_KEY, vocabulary_digest(tokenizer))
    if not vocabulary or tokenizer is None:
        writer.add_tokenizer_model("no_vocab")
        return
    is_prefixed = _add_pieces(writer, tokenizer, size, path)
    writer.add_add_bos_token(first is not None and first == bos)
    writer.add_add_space_prefix(is_prefixed)
    _add_templates(writer, folder)


def _copy(writer: gguf.GGUFWriter, file: Path, size: int) -> None:
    metadata = read_header(file).metadata
    count = len(metadata["tokenizer.ggml.tokens"])
    if count != size:
        raise UserError(f"{count} tokens, but the model has {size}", file=file, remedy="give the target of this draft")
    for key, value in metadata.items():
        if key.startswith("tokenizer.ggml."):
            writer.add_key_value(key, value, TYPES[type(value)])


def _add_pieces(writer: gguf.GGUFWriter, tokenizer: Tokenizer, size: int, path: Path) -> bool:
    """Write all pieces, and how llama.cpp joins them; return whether a text gets a space before it."""
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
    return bool(prefixed)


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
