"""Text to token ids and back: the tokenizer of a model folder, and the byte-level BPE that we train."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from draftlab.errors import UserError
from draftlab.files.json_files import read_object, read_text
from draftlab.files.weights import is_gguf
from draftlab.models.chat import Message, pieces
from draftlab.models.config import TOOL_TEMPLATE, read_eos_ids

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the library ``tokenizers``, with the ids that end an answer and its chat template, which may write ``bos_token`` and ``eos_token``.

    ``tool_template`` is the chat template for requests with tools, where it is another one.
    """

    backend: tokenizers.Tokenizer
    eos_ids: tuple[int, ...]
    chat_template: str | None = None
    bos_token: str = "<s>"
    eos_token: str = "</s>"
    tool_template: str | None = None

    @property
    def vocab_size(self) -> int:
        """Number of token ids, including added tokens: one more than the largest."""
        return 1 + max(self.backend.get_vocab().values(), default=-1)

    def encode(self, text: str) -> list[int]:
        """Ids of ``text`` without bos; nothing in the text becomes a special token."""
        return list(self.backend.encode(text, add_special_tokens=False).ids)

    def encode_prompt(
        self,
        asked: str | Sequence[Message],
        template: str,
        tools: Sequence[Message] = (),
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Ids of a user's text, or of messages that may call ``tools``, in a chat template with ``options`` (``models.chat.pieces``).

        They include the special tokens that the model adds (bos for Llama, eos for T5). Apart from these, only the template's text may
        contain special tokens: ``</s>`` in a message stays text.
        """
        messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
        parts: list[str | int] = []
        jinja = self.tool_template if tools and self.tool_template else self.chat_template
        for piece in pieces(template, messages, jinja, tools, self.bos_token, self.eos_token, options):
            parts += self._special_pieces(piece.text) if piece.is_template else [piece.text]
        if all(isinstance(part, str) for part in parts):
            return list(self.backend.encode("".join(map(str, parts))).ids)
        ids = list[int]()
        runs = [list(run) for _, run in itertools.groupby(parts, lambda part: isinstance(part, str))]
        added = self.backend.get_added_tokens_decoder()
        for before, run, after in zip([[], *runs], runs, [*runs[1:], []], strict=False):
            if isinstance(run[0], int):
                ids += map(int, run)
                continue
            text = "".join(map(str, run))
            if before and added[int(before[-1])].rstrip:  # the token takes the space beside it
                text = text.lstrip()
            if after and added[int(after[0])].lstrip:
                text = text.rstrip()
            ids += list((self._inner if before else self.backend).encode(text, add_special_tokens=False).ids)
        begin, end = self._added()
        if begin == ids[: len(begin)]:  # the template wrote bos itself
            begin = []
        return [*begin, *ids, *end]

    @functools.cached_property
    def _inner(self) -> tokenizers.Tokenizer:
        """The tokenizer of a text after a special token: one that writes a space only before the ``first`` text writes none there."""
        content = json.loads(self.backend.to_str())
        split = content["pre_tokenizer"] or {}
        firsts = [each for each in (split, *split.get("pretokenizers", ())) if each.get("prepend_scheme") == "first"]
        for each in firsts:
            each["prepend_scheme"] = "never"
        if not firsts:
            return self.backend
        inner = tokenizers.Tokenizer.from_str(json.dumps(content))
        inner.encode_special_tokens = True
        return inner

    def _added(self) -> tuple[list[int], list[int]]:
        """The special tokens that the model adds before a text, and those after it."""
        encoded = self.backend.encode("x")
        text = [place for place, special in enumerate(encoded.special_tokens_mask) if not special] or [len(encoded)]
        return list(encoded.ids[: text[0]]), list(encoded.ids[text[-1] + 1 :])

    def _special_pieces(self, text: str) -> list[str | int]:
        """A template's text, split into texts and ids of special tokens."""
        specials = {t.content: i for i, t in self.backend.get_added_tokens_decoder().items() if t.special}
        if not specials:
            return [text]
        names = sorted(map(re.escape, specials), key=len, reverse=True)
        return [specials.get(part, part) for part in re.split(f"({'|'.join(names)})", text) if part]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids without special tokens."""
        return str(self.backend.decode(list(ids), skip_special_tokens=True))

    def save(self, folder: Path | str) -> None:
        """Write tokenizer.json and tokenizer_config.json into an existing model folder."""
        folder = Path(folder)
        text_mode, self.backend.encode_special_tokens = self.backend.encode_special_tokens, False
        try:
            self.backend.save(str(folder / "tokenizer.json"))
        finally:
            self.backend.encode_special_tokens = text_mode
        names = {"bos_token": self.bos_token, "eos_token": self.eos_token, "pad_token": "<pad>", "unk_token": "<unk>"}
        known = {key: name for key, name in names.items() if self.backend.token_to_id(name) is not None}
        templates = {"default": self.chat_template, "tool_use": self.tool_template} if self.tool_template else {}
        named = [{"name": name, "template": template} for name, template in templates.items() if template]
        config: dict[str, Any] = known | ({"chat_template": named} if named else {})
        config |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
        if self.chat_template:
            (folder / "chat_template.jinja").write_text(self.chat_template, encoding="utf-8")


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Read the tokenizer of a GGUF file or of a model folder: tokenizer.json, and the end-of-text ids of ``read_eos_ids``."""
    if is_gguf(folder):
        from draftlab.models.gguf_import import read_tokenizer

        return read_tokenizer(folder)
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        what = "no tokenizer.json" if Path(folder).exists() else "no such folder"
        raise UserError(what, file=folder, remedy="name the folder of a model with its tokenizer.json")
    backend = read_backend(file)
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # user text never becomes a special token
    return Tokenizer(backend, read_eos_ids(folder), **chat_templates(Path(folder)))


def read_backend(file: Path) -> tokenizers.Tokenizer:
    """Read a tokenizer.json, and let it encode a text.

    **Raises:** ``UserError`` if it does not exist, or if the library cannot read it or encode with it.
    """
    if not file.is_file():
        raise UserError("no such file", file=file, remedy="use a model that has its tokenizer.json")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
        backend.encode("a")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # bare Exception, or pyo3's PanicException, which is none
        raise UserError(f"not a tokenizer: {error}", file=file, remedy="fetch or make the model again") from None
    return backend


def chat_templates(folder: Path) -> dict[str, Any]:
    """The fields of ``Tokenizer`` that tokenizer_config.json has, or files beside it: templates, and special_tokens_map.json, which prevails."""
    config, special = (
        read_object(file) if (file := folder / name).is_file() else {}
        for name in ("tokenizer_config.json", "special_tokens_map.json")
    )
    templates: Any = config.get("chat_template")
    if isinstance(templates, list):  # by name
        named = [each for each in templates if isinstance(each, dict)]
        templates = {str(each.get("name")): each.get("template") for each in named}
    else:
        templates = {"default": templates}
    for name, beside in (("default", "chat_template.jinja"), ("tool_use", TOOL_TEMPLATE)):
        if (folder / beside).is_file():
            templates[name] = read_text(folder / beside)
    found = {"chat_template": templates.get("default"), "tool_template": templates.get("tool_use")}
    if config or special:
        tokens = {name: special.get(name) or config.get(name) for name in ("bos_token", "eos_token")}
        texts = {name: token.get("content") if isinstance(token, dict) else token for name, token in tokens.items()}
        found |= {name: text or "" for name, text in texts.items()}
    return {name: text for name, text in found.items() if isinstance(text, str)}


def train_tokenizer(texts: Iterable[str], vocab_size: int = 1024) -> Tokenizer:
    """Train a byte-level BPE on ``texts``: GPT-2 splitting, special tokens ``SPECIALS`` with ids 0 to 3, bos before a prompt."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    # Plain GPT-2 splitting is what llama.cpp's tokenizer "gpt-2" does.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(alphabet) + len(SPECIALS):
        raise UserError(f"vocab_size {vocab_size} is too small", remedy=f"use {len(alphabet) + len(SPECIALS)} or more")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(SPECIALS), initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", SPECIALS.index("<s>"))]
    )
    backend.encode_special_tokens = True
    return Tokenizer(backend, eos_ids=(SPECIALS.index("</s>"),))


def check_same_tokenizer(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise ``UserError`` unless both map the same strings to the same ids, which the verifier compares."""
    ours, theirs = (tokenizer.backend.get_vocab(with_added_tokens=True) for tokenizer in (target, draft))
    if ours != theirs:
        name = min(token for token, _ in ours.items() ^ theirs.items())
        what = (
            f"target and draft have different vocabularies ({len(ours)} and {len(theirs)} tokens; "
            f"{name!r} is {ours.get(name)} in one and {theirs.get(name)} in the other)"
        )
        remedy = "use two models that share a tokenizer, or give the draft the target's vocabulary: draftlab transplant"
        raise UserError(what, remedy=remedy)
