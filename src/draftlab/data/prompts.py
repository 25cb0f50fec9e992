"""A request of a dataset, and a rejected row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """One request: ``text`` is what a user asks; ``reference`` is the dataset's answer, if it has one."""

    id: str
    dataset: str
    split: str
    text: str
    reference: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejection:
    """A raw row that gives no prompt: where it is, why, and an excerpt of it."""

    file: str
    line: int
    reason: str
    row: str
