"""Conversations: their turns, the first request, and the last one with all that was said before it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from draftlab.data.fields import BadRow, Cleaned, mapping_of
from draftlab.data.messages import ROLES, Turn, in_common_form, turns_in
from draftlab.data.tools import CALLS

CUT = "cut"
"""In the ``meta`` of a prompt: its conversation ends at a message that cannot be read, before what the row asks."""


def first_request(conversation: Any) -> Cleaned:
    """The first request of a user and the answer to it. What an assistant says before it is left out."""
    spoken = turns(conversation)
    asked = _asked(spoken)
    meta: dict[str, Any] = {"turns": len(asked)}
    if spoken[0].role == "system" and spoken[0].text:
        meta["system"] = spoken[0].text.strip()
    answer = _answer(spoken, asked[0])
    return Cleaned(spoken[asked[0]].text.strip(), answer and answer.strip(), meta)


def last_request(conversation: Any, system: str | None = None, response: str | None = None) -> Cleaned:
    """The last turn of a user or a tool, all that came before it, and the answer to it: a turn, or the ``response`` beside the conversation.

    ``system`` comes before everything. Left out: messages without text, calls or reasoning, and what an assistant says before the first request.
    """
    said = [Turn("system", system)] if system else []
    read, is_whole = _read(conversation)
    spoken = _joined(
        [*said, *(turn for turn in read if turn.text or turn.calls or turn.reasoning or turn.role == "tool")]
    )
    asked = _asked(spoken)
    last = max(place for place, turn in enumerate(spoken) if place >= asked[0] and turn.role in ("user", "tool"))
    until = [turn for place, turn in enumerate(spoken[: last + 1]) if place >= asked[0] or turn.role == "system"]
    answer = _answer(spoken, last)
    if answer is None and is_whole and not any(turn.text or turn.calls for turn in spoken[last + 1 :]):
        answer = response
    return Cleaned(
        spoken[last].text,
        answer,
        {"turns": len(asked)} | ({} if is_whole else {CUT: True}),
        [turn.message for turn in until] if len(until) > 1 else [],
    )


def _asked(spoken: list[Turn]) -> list[int]:
    """The places of the user's turns; ``BadRow`` without one."""
    places = [place for place, turn in enumerate(spoken) if turn.role == "user"]
    if not places:
        raise BadRow("no user turn")
    return places


def _answer(spoken: list[Turn], place: int) -> str | None:
    """What the assistant answered to the turn at ``place``."""
    return next((turn.text or None for turn in spoken[place + 1 : place + 2] if turn.role == "assistant"), None)


def turns(conversation: Any) -> list[Turn]:
    """The turns of a list of ``{role, content}`` or ``{from, value}``; successive messages of one role are joined, except results of tools.

    Only a user's message must have text: an assistant that calls a tool says nothing.

    **Raises:** ``BadRow`` for a message that is not an object, has an unknown role, or is a user's without text. After the
    first request, such a message ends the conversation instead.
    """
    return _joined(_read(conversation)[0])


def _read(conversation: Any) -> tuple[list[Turn], bool]:
    """The turns up to the first message that cannot be read, and whether all could."""
    if not isinstance(conversation, list):
        raise BadRow(f"the conversation is {type(conversation).__name__}, not a list")
    if len(conversation) == 1 and isinstance(conversation[0], list):  # LangChain's batch of one
        conversation = conversation[0]
    spoken: list[Turn] = []
    for item in conversation:
        try:
            spoken += turns_in(mapping_of(item, "a message"))
        except BadRow:
            if any(turn.role == "user" for turn in spoken):
                return spoken, False
            raise
    return spoken, True


def _joined(spoken: Iterable[Turn]) -> list[Turn]:
    """Join successive turns of one role."""
    joined: list[Turn] = []
    for turn in spoken:
        if joined and joined[-1].role == turn.role != "tool":
            joined[-1] = joined[-1].then(turn)
        else:
            joined.append(turn)
    return joined


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages, rather than one of other objects."""

    def is_message(item: Any) -> bool:
        item = in_common_form(item) if isinstance(item, Mapping) else {}
        role = str(item.get("role", item.get("from"))).lower()
        return (role in ROLES or role in CALLS) and bool({"content", "value", "tool_calls"} & item.keys())

    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return isinstance(value, list) and bool(value) and all(map(is_message, value))
