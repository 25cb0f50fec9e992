"""A request of a dataset, and a rejected row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """One request: ``text`` is what a user asks; ``reference`` is the dataset's answer, if it has one.

    ``before`` holds the messages that the user's text follows, as ``{"role", "content"}``: a system prompt, and earlier turns.
    """

    id: str
    dataset: str
    split: str
    text: str
    reference: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    before: list[dict[str, str]] = field(default_factory=list)

    @property
    def messages(self) -> list[dict[str, str]]:
        """All that the model reads, the user's text last."""
        return [*self.before, {"role": "user", "content": self.text}]

    @property
    def whole(self) -> str:
        """The texts of all messages."""
        return "\n".join(message["content"] for message in self.messages)


@dataclass(frozen=True)
class Rejection:
    """A raw row that gives no prompt: where it is, why, and an excerpt of it."""

    file: str
    line: int
    reason: str
    row: str
