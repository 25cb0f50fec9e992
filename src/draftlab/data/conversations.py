"""Conversations in the common formats: their turns, the first request, and the last one with all that was said before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    spoken: list[Turn] = []
    for item in conversation:
        try:
            spoken.append(_turn(mapping_of(item, "a message")))
        except BadRow:
            if any(turn.role == "user" for turn in spoken):
                break
            raise
    return _joined(spoken)


def _joined(spoken: Iterable[Turn]) -> list[Turn]:
    """Join successive turns of one role."""
    joined: list[Turn] = []
    for turn in spoken:
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
    asked = _asked(spoken)
    meta: dict[str, Any] = {"turns": len(asked)}
    if spoken[0].role == "system" and spoken[0].text:
        meta["system"] = spoken[0].text
    return Cleaned(spoken[asked[0]].text, _answer(spoken, asked[0]), meta)


def last_request(conversation: Any, system: str | None = None) -> Cleaned:
    """The last request of a user, all that was said before it, and the answer to it. ``system`` comes before everything.

    Left out: messages without text, and what an assistant says before the first request.
    """
    said = [Turn("system", system)] if system else []
    spoken = _joined([*said, *(turn for turn in turns(conversation) if turn.text)])
    asked = _asked(spoken)
    last = asked[-1]
    before = [turn for i, turn in enumerate(spoken[:last]) if i >= asked[0] or turn.role == "system"]
    return Cleaned(
        spoken[last].text,
        _answer(spoken, last),
        {"turns": len(asked)},
        [{"role": turn.role, "content": turn.text} for turn in before],
    )


def _asked(spoken: list[Turn]) -> list[int]:
    """The places of the user's turns; ``BadRow`` without one."""
    places = [i for i, turn in enumerate(spoken) if turn.role == "user"]
    if not places:
        raise BadRow("no user turn")
    return places


def _answer(spoken: list[Turn], place: int) -> str | None:
    """What the assistant answered to the turn at ``place``."""
    return next((turn.text or None for turn in spoken[place + 1 : place + 2] if turn.role == "assistant"), None)


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
