"""Gets an existing model by name: a local folder, a GGUF file, or a repository on the hub.

Pickled weights are converted once. A model's own code is never run.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from draftlab.errors import UserError, first_line
from draftlab.files import packages
from draftlab.files.atomic import atomic_dir
from draftlab.files.hub import ask
from draftlab.files.json_files import write_json
from draftlab.files.packages import package_of
from draftlab.files.seals import content_digest, seal
from draftlab.files.weights import check_kind, is_gguf, parameter_count, parts_of
from draftlab.models.config import TOOL_TEMPLATE, context_of, copy_files, is_head, read_config, read_eos_ids
from draftlab.models.pickled import PICKLED, PICKLED_INDEX, convert
from draftlab.models.vocabulary_rows import fit_rows, rows_of

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
SECOND_COPY = "consolidated*"
"""All weights once more, under other names, in Mistral's repositories."""
VOCABULARIES = (("tokenizer.model",), ("spiece.model",), ("vocab.json", "merges.txt"), ("vocab.txt",))
"""The tokenizer files of repositories without tokenizer.json; it can be made from any of these sets."""

TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *(TOOL_TEMPLATE, "generation_config.json"),
    *(file for files in VOCABULARIES for file in files),
)
"""The files of a tokenizer, and the one with the tokens that end an answer."""
SMALL_FILES = (*TOKENIZER, "config.json")

LAYOUT = "use a model in the Hugging Face layout"


def copy_model(name: str, out: Path, tokenizer: Path | None = None) -> None:
    """Make ``out`` the model ``name``: a folder, a GGUF file, ``package:NAME``, or ``owner/name[@revision]`` of the hub.

    The weights of a local folder are linked. With the folder ``tokenizer`` of its target, a draft gets as many rows of embeddings as the target
    has (``fit_rows``), and a released head without a tokenizer gets that one.
    """
    name = _without_package(name)
    check_outside(name, out)
    rows = rows_of(tokenizer) if tokenizer else 0
    if is_gguf(name):
        from draftlab.models.gguf_import import write_folder

        write_folder(Path(name), out, rows)
        return
    source = fetch(name)
    link = os.symlink if source == Path(name) else _link_or_copy
    with atomic_dir(out) as folder:
        for pattern in WEIGHTS:
            for path in sorted(source.glob(pattern)):
                link(path.resolve(), folder / path.name)
        is_released_head = tokenizer is not None and is_head(read_config(source))
        if tokenizer and is_released_head and not (source / "tokenizer.json").is_file():
            copy_files(tokenizer, folder, TOKENIZER)
            write_json(folder / "generation_config.json", {"eos_token_id": list(read_eos_ids(tokenizer))})
        _copy_tokenizer(source, folder, name)
        if not is_released_head:
            fit_rows(folder, rows)
        seal(folder)


def check_outside(name: str, out: Path) -> None:
    """Raise ``UserError`` if the model ``name`` lies in the folder ``out``, which is about to be replaced."""
    source = Path(name).resolve()
    if out.resolve() in (source, *source.parents):
        raise UserError(f"it holds the model {name}, which would be lost", file=out, remedy="name a new folder")


def copy_tokenizer(name: str, folder: Path) -> None:
    """Copy the tokenizer of ``name``, and the config with the ids that end an answer, into ``folder``."""
    name = _without_package(name)
    if is_gguf(name):
        from draftlab.models.gguf_import import read_tokenizer

        tokenizer = read_tokenizer(name)
        tokenizer.save(folder)
        sizes = {"max_position_embeddings": context_of(name), "vocab_size": rows_of(Path(name))}
        config = {"eos_token_id": list(tokenizer.eos_ids)} | sizes
        write_json(folder / "config.json", config)
        return
    _copy_tokenizer(_resolve(name, SMALL_FILES), folder, name)


def fetch(name: str, otherwise: str = "give a local folder") -> Path:
    """The folder with the weights and the tokenizer of ``name``; pickled weights are converted into a folder next to the hub's cache."""
    from huggingface_hub import constants

    source = _resolve(name, (*WEIGHTS, *SMALL_FILES), otherwise)
    if any(source.glob(WEIGHTS[0])):
        parameter_count(source)  # refuses missing and damaged files, before a job ends with them
        return source
    source = _resolve(name, (PICKLED, PICKLED_INDEX, *SMALL_FILES), otherwise)
    if not any(source.glob(PICKLED)):
        for index in (*source.glob(WEIGHTS[1]), *source.glob(PICKLED_INDEX)):
            parts_of(index)  # names the part that is missing
        what = "no weights: neither *.safetensors nor pytorch_model*.bin"
        raise UserError(what, file=name, remedy=_or_again("use another model", name))
    if Path(name).is_dir():
        key = content_digest(source)[:16]
    else:
        commit = source.name
        key = f"{name.partition('@')[0].replace('/', '--')}-{commit}"
    converted = Path(constants.HF_HOME) / "converted" / key
    if not (converted / "converted.json").is_file():
        convert(source, converted)
    return converted


def _without_package(name: str) -> str:
    """The path of the file that ``package:NAME`` stands for; any other name as it is."""
    package = package_of(name)
    return str(packages.fetch(package)) if package else name


def _link_or_copy(file: Path, out: Path) -> None:
    """Put a file of the hub's cache at ``out``, where it stays if the cache is emptied."""
    try:
        os.link(file, out)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(file, out)


def _copy_tokenizer(source: Path, folder: Path, name: str) -> None:
    copy_files(source, folder, SMALL_FILES)
    if not (folder / "config.json").is_file():
        raise UserError("no config.json", file=name, remedy=_or_again(LAYOUT, name))
    if not (folder / "tokenizer.json").is_file():
        _make_tokenizer(folder, name)


def _make_tokenizer(folder: Path, name: str) -> None:
    """Write the tokenizer.json that is equivalent to the older tokenizer files of a folder."""
    files = next((files for files in VOCABULARIES if all((folder / file).is_file() for file in files)), None)
    if files is None:
        raise UserError("no tokenizer.json", file=name, remedy=_or_again(LAYOUT, name))
    from transformers import AutoTokenizer, logging
    from transformers.utils.import_utils import is_protobuf_available, is_sentencepiece_available

    if files[0].endswith(".model") and not (is_sentencepiece_available() and is_protobuf_available()):
        what = f"no tokenizer.json, and reading {files[0]} needs packages that are not installed"
        raise UserError(what, file=name, remedy="pip install sentencepiece protobuf")
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # one of its warnings ends in a traceback
    try:
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True).save_pretrained(folder)
    except Exception as error:  # the errors of the libraries behind it share no base
        what = f"no tokenizer.json, and none can be made from {' and '.join(files)}: {first_line(error)}"
        raise UserError(what, file=name, remedy="use a model that has one") from None


def _or_again(remedy: str, name: str) -> str:
    """``remedy``, and what else helps for a model of the hub: without a network, the cache may hold a part of it."""
    return remedy if Path(name).is_dir() else f"{remedy}, or fetch it again with a network and without HF_HUB_OFFLINE"


def _resolve(name: str, patterns: tuple[str, ...], otherwise: str = "give a local folder") -> Path:
    check_kind(Path(name))
    if Path(name).is_dir():
        return Path(name)
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(@\w[\w.-]*(/\w[\w.-]*)*)?", name):
        remedy = "give a folder, or owner/name or owner/name@revision of the hub"
        raise UserError("no such folder, and not a hub id", file=name, remedy=remedy)
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")

    def download(again: bool) -> str:
        folder = snapshot_download(
            repository,
            revision=revision or None,
            allow_patterns=list(patterns),
            ignore_patterns=SECOND_COPY,
            force_download=again,
        )
        for file in sorted(Path(folder).iterdir()):
            if not file.exists() and any(file.match(pattern) for pattern in patterns):
                raise FileNotFoundError(f"{file.name} is gone")  # a link that the library took for the file
        return folder

    return Path(ask("model", repository, download, otherwise=otherwise))
