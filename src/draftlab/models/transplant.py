"""A draft of another family with the vocabulary of its target: each token of the target gets rows of the draft's tokens that spell it.

A verifier compares the distributions of two models token by token, so both need one vocabulary. Where no small model of the target's family
exists, one of another family can get it: its layers stay, and its embeddings and head are rebuilt. A token that both vocabularies spell alike
keeps its rows. Any other is spelled with the longest tokens of the draft. It reads as the last of them, after which the draft predicts what follows;
its row of the head is their mean. So its logit is the mean of theirs, which is low where the draft would begin with the first of them: with
that row alone, the probability of a token would be that of every longer one that begins with it. The text stays lossless, and distillation
teaches the draft the tokens that it did not have. The method is that of turboderp's and jukofyork's transplant-vocab, of which drafts for
DeepSeek were made from Qwen2.5; there, later tokens weigh less in the head.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from draftlab.errors import UserError
from draftlab.files.atomic import SEAL, atomic_dir
from draftlab.files.json_files import object_in, read_object, write_json
from draftlab.files.scratch import scratch
from draftlab.files.seals import seal
from draftlab.models import hub
from draftlab.models.config import copy_files, head_in, read_config
from draftlab.models.gguf_import import ORIGINAL
from draftlab.models.gguf_vocabulary import BYTE, SPACE
from draftlab.models.tokenizer import Tokenizer, load_tokenizer
from draftlab.models.vocabulary_rows import make_rows, rows_of

EXAMPLE = '{"<|eot_id|>": "<|im_end|>"}'


def transplant(*, model: str, target: str, out: Path, same: str = "{}") -> None:
    """Give a draft of another family the vocabulary of its target, so that it can draft for it; distillation then improves it.

    **Arguments:**
    - `model`: the draft: a model folder, a GGUF file or a hub id
    - `target`: the target, likewise; only its tokenizer is read
    - `out`: the folder to write
    - `same`: JSON: tokens of the target that the draft has under another name, such as {"<|eot_id|>": "<|im_end|>"}
    """
    pairs, part = _read_pairs(same), "its head proposes only a part of the vocabulary"
    refused = UserError(part, file=model, remedy="give a draft with its whole head")
    if head_in(model):
        raise refused
    hub.check_outside(target, out)
    with scratch() as temporary:
        words = temporary / "target"
        words.mkdir()
        hub.copy_tokenizer(target, words)
        with atomic_dir(out) as folder:
            hub.copy_model(model, folder)
            for name in (ORIGINAL, SEAL):
                (folder / name).unlink(missing_ok=True)
            if read_config(folder).get("head_tokens"):
                raise refused
            ours, theirs = load_tokenizer(words), load_tokenizer(folder)
            spelled = spellings(ours, theirs, pairs)
            last = rows_of(folder) - 1
            every = [spelled.get(token) or (last,) for token in range(rows_of(words) or ours.vocab_size)]
            make_rows(folder, [ids[-1:] for ids in every], every)
            for file in [*folder.iterdir()]:
                if file.is_symlink():  # to the draft's own file
                    source = file.resolve()
                    file.unlink()
                    shutil.copyfile(source, file)
            _replace_tokenizer(folder, words, ours)
            seal(folder)
    alike = sum(len(ids) == 1 for ids in spelled.values())
    print(f"{alike:,} of {len(ours.backend.get_vocab()):,} tokens of the target are tokens of the draft")


def spellings(target: Tokenizer, draft: Tokenizer, same: Mapping[str, str] | None = None) -> dict[int, tuple[int, ...]]:
    """The draft's tokens that spell each token of the target; none for bytes that the draft cannot write.

    A special token is, in this order, what ``same`` says, the draft's token of this name, the draft's token that begins or ends a text if it does
    that too, or text.

    **Raises:** ``UserError`` if ``same`` names a token that one of the two does not have.
    """
    ours, theirs = _contents(target), _contents(draft)
    texts = {content: token for token, (content, is_special) in theirs.items() if not is_special}
    specials = {content: token for token, (content, is_special) in theirs.items() if is_special}
    named = {_token(target, name, "target"): _token(draft, other, "draft") for name, other in (same or {}).items()}
    chosen = _boundaries(target, draft)
    chosen |= {
        token: specials[content] for token, (content, is_special) in ours.items() if is_special and content in specials
    }
    longest = max(map(len, texts))
    found = {token: _spell(content, texts, longest) for token, (content, _) in ours.items()}
    spelled = {token: ids for token, ids in found.items() if ids}
    return spelled | {token: (other,) for token, other in (chosen | named).items()}


def _spell(content: bytes, texts: Mapping[bytes, int], longest: int) -> tuple[int, ...]:
    """``content`` in the longest tokens of ``texts``, from left to right; () if a byte is in none."""
    ids, at = list[int](), 0
    while at < len(content):
        ends = range(min(at + longest, len(content)), at, -1)
        end = next((end for end in ends if content[at:end] in texts), None)
        if end is None:
            return ()
        ids.append(texts[content[at:end]])
        at = end
    return tuple(ids)


def _contents(tokenizer: Tokenizer) -> dict[int, tuple[bytes, bool]]:
    """The bytes of each token, and whether it is a special one, which no text contains."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    decoder = json.dumps(json.loads(tokenizer.backend.to_str())["decoder"])
    letters = {letter: byte for byte, letter in bytes_to_unicode().items()} if "ByteLevel" in decoder else {}  # type: ignore[no-untyped-call]
    added = tokenizer.backend.get_added_tokens_decoder()
    found = dict[int, tuple[bytes, bool]]()
    for name, token in tokenizer.backend.get_vocab(with_added_tokens=True).items():
        if token in added:
            found[token] = (name.encode(), added[token].special)
        elif letters and all(letter in letters for letter in name):
            found[token] = (bytes(letters[letter] for letter in name), False)
        elif BYTE.fullmatch(name):
            found[token] = (bytes([int(name[3:5], 16)]), False)
        else:
            found[token] = (name.replace(SPACE, " ").encode(), False)
    return found


def _boundaries(target: Tokenizer, draft: Tokenizer) -> dict[int, int]:
    """The tokens of the target that begin or end a text, with those of the draft."""
    begins = [tokenizer.backend.token_to_id(tokenizer.bos_token) for tokenizer in (target, draft)]
    found = {begins[0]: begins[1]} if begins[0] is not None and begins[1] is not None else {}
    return found | dict.fromkeys(target.eos_ids, draft.eos_ids[0])


def _token(tokenizer: Tokenizer, name: str, role: str) -> int:
    """The id of the token that ``same`` names."""
    token = tokenizer.backend.token_to_id(name)
    if token is None:
        raise UserError(f"the {role} has no token {name!r}", remedy="name tokens as its tokenizer.json does")
    return int(token)


def _read_pairs(text: str) -> dict[str, str]:
    """The tokens that ``same`` names."""
    pairs = object_in(text, "same", EXAMPLE)
    if not all(isinstance(name, str) for name in pairs.values()):
        raise UserError(f"same is {text!r}, with a value that is no text", remedy=f"give texts, such as '{EXAMPLE}'")
    return pairs


def _replace_tokenizer(folder: Path, words: Path, target: Tokenizer) -> None:
    """Give the draft in ``folder`` the tokenizer in ``words``, and its special tokens."""
    for name in hub.TOKENIZER:
        (folder / name).unlink(missing_ok=True)
    copy_files(words, folder, hub.TOKENIZER)
    theirs = read_object(words / "config.json")
    ids = {name: theirs.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(folder / "config.json", read_object(folder / "config.json") | ids)
    write_json(folder / "generation_config.json", {"eos_token_id": list(target.eos_ids)})
