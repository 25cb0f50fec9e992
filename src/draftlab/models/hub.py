"""Models that exist already: a local folder, or a repository of the hub; safetensors only, no code of the model's own."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from draftlab.errors import UserError
from draftlab.hub import ask
from draftlab.records import atomic_dir

WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "config.json",
)


def copy_model(name: str, revision: str | None, out: Path) -> None:
    """Make ``out`` the model ``name``; the weights of a local folder are linked, not copied."""
    source = _resolve(name, revision, (*WEIGHTS, *TOKENIZER))
    weights = [path for pattern in WEIGHTS for path in sorted(source.glob(pattern))]
    if not weights:
        raise UserError(
            "no safetensors weights",
            file=name,
            remedy="convert the model, or give a revision that has them: pickled weights are never loaded",
        )
    with atomic_dir(out) as folder:
        for path in weights:
            os.symlink(path.resolve(), folder / path.name)
        _copy_tokenizer(source, folder)


def copy_tokenizer(name: str, revision: str | None, folder: Path) -> None:
    """Copy the tokenizer of ``name``, and the config that says how an answer ends, into ``folder``."""
    _copy_tokenizer(_resolve(name, revision, TOKENIZER), folder)


def _copy_tokenizer(source: Path, folder: Path) -> None:
    for file in TOKENIZER:
        if (source / file).is_file():
            shutil.copyfile(source / file, folder / file)
    for required in ("tokenizer.json", "config.json"):
        if not (folder / required).is_file():
            raise UserError(f"no {required}", file=source, remedy="use a model in the Hugging Face layout")


def _resolve(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")) or name.count("/") != 1:
        raise UserError("no such folder, and not a hub id", file=name, remedy="give a folder, or owner/name of the hub")
    from huggingface_hub import snapshot_download

    def download(again: bool) -> str:
        return snapshot_download(name, revision=revision, allow_patterns=list(patterns), force_download=again)

    return Path(ask("model", name, download, otherwise="give a local folder"))
