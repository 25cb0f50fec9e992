"""A request of a dataset, and a rejected row."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

RENDERED = re.compile(
    r"\s*(?:<s>|<bos>)?\s*(?:<\|\w+\|>|<｜|<start_of_turn>|<fim_prefix>|\[INST\]|\[SYSTEM_PROMPT\]|\[gMASK\])"
)
"""The beginning of a text that is already in a chat template with special tokens."""
AS_TEXT = (
    (re.compile(r"(?:^|\s)USER: "), " ASSISTANT:"),
    (re.compile(r"^### Instruction:\n", re.M), "\n### Response:"),
)
"""A turn of the user, and the end of a prompt, in templates without special tokens: Vicuna's and Alpaca's."""


@dataclass(frozen=True)
class Prompt:
    """One request: ``text`` is what a user asks, or the result of a tool; ``reference`` is the dataset's answer, if it has one.

    ``conversation`` holds all messages that the model reads, the text's last, if there are others: ``role``, ``content``, and perhaps
    ``reasoning_content`` and ``tool_calls``. ``tools`` are the schemas of what the model may call. Both are in OpenAI's format.
    ``template_options`` are variables for the target's chat template, such as ``enable_thinking``.
    """

    id: str
    dataset: str
    split: str
    text: str
    reference: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    conversation: list[dict[str, Any]] = field(default_factory=list)
    tools: list[dict[str, Any]] = field(default_factory=list)
    template_options: dict[str, Any] = field(default_factory=dict)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All that the model reads, the text last."""
        return self.conversation or [{"role": "user", "content": self.text}]

    @property
    def whole(self) -> str:
        """All that the model reads as one text: schemas of tools, contents, reasoning and calls, in lines."""
        schemas = json.dumps(self.tools, ensure_ascii=False) if self.tools else ""
        return "\n".join(filter(None, (schemas, *map(_text, self.messages))))

    @property
    def has_special_template(self) -> bool:
        """Whether it is one text that is in a chat template with special tokens already."""
        return not self.conversation and RENDERED.match(self.text) is not None

    @property
    def is_rendered(self) -> bool:
        """Whether it is one text that is in a chat template already. One without special tokens ends where the model's turn begins."""
        if self.has_special_template:
            return True
        text = self.text.rstrip()
        return not self.conversation and any(text.endswith(end) and turn.search(text) for turn, end in AS_TEXT)

    @property
    def opening(self) -> str:
        """The beginning of the conversation, up to the user's first message."""
        asked = next(place for place, message in enumerate(self.messages, 1) if message["role"] == "user")
        return "\n".join(map(_text, self.messages[:asked]))


def _text(message: dict[str, Any]) -> str:
    calls = json.dumps(message["tool_calls"], ensure_ascii=False) if "tool_calls" in message else ""
    return "\n".join(filter(None, (message.get("reasoning_content"), message["content"], calls)))


@dataclass(frozen=True)
class Rejection:
    """A raw row that gives no prompt: where it is, why, and an excerpt of it."""

    file: str
    line: int
    reason: str
    row: str
