"""Conversations in the common formats: their turns, and the first request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from draftlab.data.fields import BadRow, Cleaned, Row, as_text, mapping_of

Role = Literal["system", "user", "assistant", "tool"]

ROLES: dict[str, Role] = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bard": "assistant", "bing": "assistant",
    "tool": "tool", "function": "tool",
}  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: Role
    text: str


def turns(conversation: Any) -> list[Turn]:
    """The turns of a list of ``{role, content}`` or ``{from, value}``; successive messages of one role are joined.

    Only a user's message must have text: an assistant that calls a tool says nothing.

    **Raises:** ``BadRow`` for a message that is not an object, has an unknown role, or is a user's without text. After the
    first request, such a message ends the conversation instead.
    """
    if not isinstance(conversation, list):
        raise BadRow(f"the conversation is {type(conversation).__name__}, not a list")
    joined: list[Turn] = []
    for item in conversation:
        try:
            turn = _turn(mapping_of(item, "a message"))
        except BadRow:
            if any(turn.role == "user" for turn in joined):
                break
            raise
        if joined and joined[-1].role == turn.role:
            joined[-1] = Turn(turn.role, "\n".join(filter(None, (joined[-1].text, turn.text))))
        else:
            joined.append(turn)
    return joined


def _turn(message: Row) -> Turn:
    name = as_text(message.get("role", message.get("from")), "role")
    if name not in ROLES:
        raise BadRow("unknown role", repr(name))
    role, content = ROLES[name], message.get("content", message.get("value"))
    if isinstance(content, list):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if role == "user" and not all(isinstance(text, str) for text in texts):
            raise BadRow("a part of what the user says is not text")
        content = "\n".join(text for text in texts if isinstance(text, str))
    if role != "user" and (content is None or (isinstance(content, str) and not content.strip())):
        return Turn(role, "")
    return Turn(role, as_text(content, f"the text of {name}"))


def first_request(conversation: Any) -> Cleaned:
    """The first request of a user and the answer to it. What an assistant says before it is left out."""
    spoken = turns(conversation)
    start = next((i for i, turn in enumerate(spoken) if turn.role == "user"), None)
    if start is None:
        raise BadRow("no user turn")
    answer = next((turn.text or None for turn in spoken[start + 1 : start + 2] if turn.role == "assistant"), None)
    meta: dict[str, Any] = {"turns": sum(turn.role == "user" for turn in spoken)}
    if spoken[0].role == "system" and spoken[0].text:
        meta["system"] = spoken[0].text
    return Cleaned(spoken[start].text, answer, meta)


def answered(row: Row) -> str | None:
    """The text of a response in OpenAI's format, in ``response`` (LiteLLM, batches) or in the row itself; None without one."""
    answer: Any = row.get("response", row)
    if isinstance(answer, Mapping) and isinstance(answer.get("body"), Mapping):
        answer = answer["body"]
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(first, Mapping):
        return None
    message = first.get("message")
    text = message.get("content") if isinstance(message, Mapping) else first.get("text")
    return text if isinstance(text, str) and text.strip() else None
