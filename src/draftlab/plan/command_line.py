"""Command lines: settings as arguments, so that a changed value reruns the jobs that have it and no others; and what Snakemake was asked for."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from draftlab.core.settings import Settings
from draftlab.errors import UserError

QUOTES = "'\""
"""What Snakemake strips from both ends of a value."""


def flags(settings: Settings, **others: Any) -> list[str]:
    """``--name value`` for every setting; a list becomes several values, ``None`` and empty text are left out."""
    arguments: list[str] = []
    for key, value in {**settings.model_dump(), **others}.items():
        name = key.replace("_", "-")
        if value is None or value == "":
            continue
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list | tuple):
            arguments += [f"--{name}", *map(str, value)]
        else:
            arguments += [f"--{name}", str(value)]
    return arguments


def read_value(text: str) -> Any:
    """The value of a ``KEY=VALUE`` argument, as Snakemake reads it: None, a number, a truth value, or texts in YAML, without quotes around it."""
    text = text.strip(QUOTES)
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    if text in ("True", "False"):
        return text == "True"
    return _parsed(text) if text else None


def _parsed(text: str) -> Any:
    """A list or mapping of texts in YAML, otherwise the text itself, perhaps cut."""
    try:
        return yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError:
        return text


WORDS = {"True": "true", "False": "false", "None": "null"}
"""How Python writes what JSON writes otherwise. Snakemake gives its jobs Python's form."""


def typed(value: Any) -> Any:
    """A value that Snakemake read, in which it left numbers and truth values as texts: they are what JSON takes them for.

    >>> typed({"enable_thinking": "false", "effort": "low", "levels": ["1", "None"]})
    {'enable_thinking': False, 'effort': 'low', 'levels': [1, None]}
    """
    if isinstance(value, Mapping):
        return {key: typed(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [typed(inner) for inner in value]
    if not isinstance(value, str):
        return value
    try:
        found = json.loads(WORDS.get(value, value))
    except ValueError:
        return value
    is_one = found is None or (isinstance(found, int | float) and math.isfinite(found))
    return found if is_one else value


def check_text(key: str, text: str) -> None:
    """``UserError`` if YAML takes a part of a text for a comment, a key or a mark; a name such as ``a #1`` then means another file.

    Quotes do not help, because Snakemake gives its jobs the text without them.
    """
    if (value := _parsed(text.strip(QUOTES))) != text:
        what = f"{key}: Snakemake reads {text} as {value}"
        raise UserError(what, file="--config", remedy="rename the file or folder, without ' #', ': ' and quotes")


LOOKS = re.compile(
    r"-[pFkqtr]*n[npFkqtr]*([cj].*)?|-[lSDt]"
    r"|--(dry-?run|unlock|lint|list.*|.*summary|dag|rulegraph|filegraph|d3dag|touch|archive|cleanup-metadata|report)(=.*)?"
)


def only_looks(words: Iterable[str]) -> bool:
    """Whether a ``snakemake`` command runs no job. Snakemake itself does not say so while it reads the Snakefile.

    >>> only_looks(["-np", "--cores", "1"]), only_looks(["--summary"]), only_looks(["-call", "--config", "name=n"])
    (True, True, False)
    >>> only_looks(["-nc1"]), only_looks(["--report=page.html"]), only_looks(["--report-after-run", "-c1"])
    (True, True, False)
    """
    return any(LOOKS.fullmatch(word) for word in words)


def is_locked(run: Path) -> bool:
    """Whether a process in this folder holds Snakemake's lock on files of a ``run``; one that ends meanwhile removes its locks."""
    for lock in Path(".snakemake/locks").glob("*"):
        with contextlib.suppress(OSError):
            if f"{run}/" in lock.read_text(encoding="utf-8", errors="replace"):
                return True
    return False
