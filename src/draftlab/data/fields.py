"""Reads the fields of a raw row: a value of the right type, or the reason why the row is rejected."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from draftlab.data.raw_rows import well_formed

Row = Mapping[str, Any]


class BadRow(Exception):
    """The reason why a row gives no prompt, the same text for all rows with this fault, and a detail of this row."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


@dataclass(frozen=True)
class Cleaned:
    """A row's prompt, the dataset's answer if there is one, and the labels that a stream may sort by.

    ``conversation``, ``tools`` and ``template_options``: as in ``Prompt``.
    """

    text: str
    reference: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    conversation: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    template_options: dict[str, Any] = field(default_factory=dict)


def text_of(row: Row, *names: str) -> str:
    """The stripped text of the first of these fields that the row has; ``BadRow`` if it is missing, empty or not text."""
    name = _present(row, names)
    return as_text(row[name], name)


def _present(row: Row, names: Sequence[str]) -> str:
    """The first of these field names that the row has; ``BadRow`` if it has none."""
    name = next((name for name in names if name in row), None)
    if name is None:
        raise BadRow(f"no {' or '.join(names)}", f"it has {', '.join(row)}" if row else "")
    return name


def maybe_text(row: Row, *names: str) -> str | None:
    """As ``text_of``, but None for a missing, null or empty field."""
    value = next((row[name] for name in names if name in row), None)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    return text_of(row, *names)


def as_text(value: Any, name: str) -> str:
    """``value`` as stripped text; anything else is a ``BadRow`` that names it."""
    if value is None:
        raise BadRow(f"{name} is null")
    if not isinstance(value, str):
        raise BadRow(f"{name} is {type(value).__name__}, not text")
    if not well_formed(value):
        raise BadRow(f"{name} holds a lone surrogate")
    if not value.strip():
        raise BadRow(f"{name} is empty")
    return value.strip()


def items_of(row: Row, *names: str) -> list[Any]:
    """The list in the first of these fields that the row has; ``BadRow`` if it is missing, empty or not a list."""
    name = _present(row, names)
    value = row[name]
    if not isinstance(value, list):
        raise BadRow(f"{name} is {type(value).__name__}, not a list")
    if not value:
        raise BadRow(f"{name} is empty")
    return value


def mapping_of(value: Any, name: str) -> Row:
    """``value`` as an object; anything else is a ``BadRow`` that names it."""
    if not isinstance(value, Mapping):
        raise BadRow(f"{name} is {type(value).__name__}, not an object")
    return value


LABELS = {
    "language": ("language", "lang"),
    "topic": ("topic", "category", "cluster"),
    "time": ("tstamp", "timestamp", "time"),
    "model": ("model",),
}


def labels(row: Row) -> dict[str, Any]:
    """The labels in a row that a stream may sort by: language, topic, time in seconds, model."""
    present: dict[str, Any] = {}
    for label, names in LABELS.items():
        value = next((row[name] for name in names if row.get(name) is not None), None)
        if label == "time":
            if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
                present[label] = value
        elif isinstance(value, str) and value and well_formed(value):
            present[label] = value
    return present
