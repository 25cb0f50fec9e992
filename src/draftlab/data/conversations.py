"""Conversations in the common formats: their turns, the first request, and the last one with all that was said before it."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from draftlab.data.fields import BadRow, Cleaned, Row, as_text, mapping_of
from draftlab.data.raw_rows import well_formed
from draftlab.data.strict_json import decoded
from draftlab.data.tools import CALLS, calls_in

Role = Literal["system", "user", "assistant", "tool"]

ROLES: dict[str, Role] = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "ai": "assistant", "aimessagechunk": "assistant",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "bard": "assistant", "bing": "assistant", "model": "assistant",
    "tool": "tool", "function": "tool", "ipython": "tool", "observation": "tool", "tool_response": "tool",
}  # fmt: skip


@dataclass(frozen=True)
class Turn:
    """One message. ``calls`` and ``reasoning`` are an assistant's; ``call_id`` and ``name`` say which call a tool answers."""

    role: Role
    text: str
    calls: list[dict[str, Any]] = field(default_factory=list)
    call_id: str | None = None
    name: str | None = None
    reasoning: str = ""

    @property
    def message(self) -> dict[str, Any]:
        """The turn in OpenAI's format."""
        others = {
            "reasoning_content": self.reasoning,
            "tool_calls": self.calls,
            "tool_call_id": self.call_id,
            "name": self.name,
        }
        return {"role": self.role, "content": self.text, **{key: value for key, value in others.items() if value}}

    def then(self, other: Turn) -> Turn:
        """This turn and the next of the same role as one."""
        text, reasoning = (
            "\n".join(filter(None, pair)) for pair in ((self.text, other.text), (self.reasoning, other.reasoning))
        )
        return Turn(self.role, text, self.calls + other.calls, reasoning=reasoning)


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
            spoken += _turns(mapping_of(item, "a message"))
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


MORE = ("tool_calls", "function_call", "reasoning_content")
"""Fields that LangChain may keep in ``additional_kwargs``."""


def _common(message: Row) -> Row:
    """A message of LangChain, Gemini, Bedrock or OpenTelemetry with its role and the parts of its content in the usual form."""
    inside = message.get("kwargs", message.get("data"))
    is_bare = not {"role", "from", "content"} & message.keys()
    # LangChain's messages, written as objects.
    if is_bare and isinstance(inside, Mapping) and isinstance(message.get("type"), str):
        message = {"type": message["type"], **inside}
    more = message.get("additional_kwargs")
    if isinstance(more, Mapping):
        message = {**message, **{key: more[key] for key in MORE if more.get(key) and not message.get(key)}}
    if not {"role", "from"} & message.keys():
        kind = message.get("type")
        if isinstance(kind, str) and kind.lower() in ROLES and "content" in message:
            message = {**message, "role": kind}
        elif "parts" in message:
            message = {**message, "role": "user"}
    content = message.get("content", message.get("value", message.get("parts")))
    if not isinstance(content, list) or (
        "content" in message and ROLES.get(str(message.get("role")).lower()) == "tool"
    ):
        return message
    return {**message, "content": [_part(p) for p in content if not (isinstance(p, Mapping) and "cachePoint" in p)]}


def _part(part: Any) -> Any:
    """A part of a content of Gemini, Bedrock or OpenTelemetry as a part of Anthropic's; other parts stay as they are."""
    if not isinstance(part, Mapping):
        return part
    held = {key: value for key, value in part.items() if isinstance(value, Mapping)}
    if call := held.get("functionCall") or held.get("function_call") or held.get("toolUse"):
        return {**call, "type": "tool_use", "id": call.get("id", call.get("toolUseId"))}
    if result := held.get("functionResponse") or held.get("function_response") or held.get("toolResult"):
        content = result.get("content", result.get("response"))
        return {
            **result,
            "type": "tool_result",
            "tool_use_id": result.get("id", result.get("toolUseId")),
            "content": content,
        }
    match part.get("type"):
        case "tool_call":
            return {**part, "type": "tool_use"}
        case "tool_call_response":
            content = part.get("response", part.get("result"))
            return {"type": "tool_result", "tool_use_id": part.get("id"), "content": content}
        case "text" | "reasoning" if "content" in part and "text" not in part:
            return {"type": part["type"], "text": part["content"]}
        case None if "json" in part:
            return {"type": "text", "text": json.dumps(part["json"], ensure_ascii=False)}
        case None if reasoning := held.get("reasoningContent"):
            text = reasoning.get("reasoningText")
            return {"type": "thinking", "thinking": text.get("text") if isinstance(text, Mapping) else None}
        case None if part.get("thought") is True:
            return {"type": "thinking", "thinking": part.get("text")}
        case None if not {"text", "refusal", "content"} & part.keys():
            return {"type": "image"}  # or another thing that is no text
    return part


def _turns(message: Row) -> list[Turn]:
    """The turns in one message: results of tools stand in a user's message in Anthropic's format, and alone in OpenAI's Responses."""
    message = _common(message)
    match message.get("type"):
        case kind if kind in CALLS:
            return [Turn("assistant", "", calls_in(message))]
        case "function_call_output" | "custom_tool_call_output":
            return [_result(message, message.get("output"), message.get("call_id"))]
        case "reasoning":
            return [Turn("assistant", "", reasoning=_reasoning(message))]
        case str() if not {"role", "from"} & message.keys():
            return []  # calls of the server's own tools
    name = as_text(message.get("role", message.get("from")), "role").lower()
    if name in CALLS:  # as ShareGPT's files name a call
        call = decoded(as_text(message.get("content", message.get("value")), "a call of a tool"))
        return [Turn("assistant", "", calls_in({"tool_calls": call if isinstance(call, list) else [call]}))]
    if name not in ROLES:
        raise BadRow("unknown role", repr(name))
    if message.get("images"):  # Ollama's
        raise BadRow("a picture where text is expected")
    role, content = ROLES[name], message.get("content", message.get("value"))
    results = [part for part in content if _kind(part) == "tool_result"] if isinstance(content, list) else []
    if role == "tool" and not results:
        return [_result(message, content, message.get("tool_call_id"))]
    if role in ("user", "tool") and isinstance(content, list):
        found = [_result(part, part.get("content"), part.get("tool_use_id")) for part in results]
        others = [part for part in content if part not in results and part != {"type": "text", "text": ""}]
        return [*found, Turn(role, _text(others, name))] if others or not found else found
    if role == "assistant":
        refusal = message.get("refusal")
        said = _text(content, name) or (_text(refusal, name) if isinstance(refusal, str) else "")
        return [Turn(role, said, calls_in(message), reasoning=_reasoning(message))]
    return [Turn(role, _text(content, name))]


def _result(message: Row, content: Any, call: Any) -> Turn:
    """A tool's result, which may be empty."""
    names = (call, message.get("name"))
    call_id, name = (value if isinstance(value, str) and well_formed(value) else None for value in names)
    if isinstance(content, list) and all(
        isinstance(part, str) or (isinstance(part, Mapping) and PARTS & part.keys()) for part in content
    ):
        content = [_part(part) for part in content]
    elif not isinstance(content, str | None):  # data that the tool returned
        content = json.dumps(content, ensure_ascii=False)
    return Turn("tool", _text(content, "tool"), call_id=call_id, name=name)


REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields beside a message's content that may hold its reasoning as text."""


def _reasoning(message: Row) -> str:
    """What an assistant thought before it spoke; empty if the message does not tell.

    It is a field beside the content, parts of the content of type ``thinking`` (Anthropic, Mistral) or ``reasoning``, or an item of its own that
    holds the text or a summary (OpenAI's Responses).
    """
    content = message.get("content")
    if message.get("type") == "reasoning":
        found = texts_of(content or message.get("summary"))
    elif beside := next((message[name] for name in REASONING if message.get(name)), None):
        found = texts_of(beside)
    else:
        parts = content if isinstance(content, list) else []
        thoughts = [part for part in parts if _kind(part) in THOUGHTS]
        found = [text for part in thoughts for text in texts_of(part.get("thinking", part.get("text")))]
    text = "\n".join(text for text in found if isinstance(text, str))
    return as_text(text, "the reasoning") if text.strip() else ""


def _text(content: Any, name: str) -> str:
    """The text of a message's content, which may come in parts; only a user's must not be empty."""
    is_user = ROLES[name] == "user"
    if isinstance(content, list):
        if not is_user and any(_kind(part) in PICTURES for part in content):
            raise BadRow("a picture where text is expected")
        texts = texts_of([part for part in content if _kind(part) not in THOUGHTS])
        if is_user and not all(isinstance(text, str) for text in texts):
            raise BadRow("a part of what the user says is not text")
        content = "\n".join(text for text in texts if isinstance(text, str))
    if not is_user and (content is None or (isinstance(content, str) and not content.strip())):
        return ""
    as_text(content, f"the text of {name}")
    return str(content)  # with the space around it, which the model reads


def texts_of(content: Any) -> list[Any]:
    """The texts of the parts of a content, with other things where a part has none."""
    parts = content if isinstance(content, list) else [content]
    return [part.get("text", part.get("refusal")) if isinstance(part, Mapping) else part for part in parts]


THOUGHTS = ("thinking", "reasoning")
PARTS = {"type", "text", "json", "image", "document", "video"}
"""Fields that tell a part of a content from other objects."""
PICTURES = ("image", "image_url", "input_image")
"""Types of the parts of a content."""


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages, rather than one of other objects."""

    def is_message(item: Any) -> bool:
        item = _common(item) if isinstance(item, Mapping) else {}
        role = str(item.get("role", item.get("from"))).lower()
        return (role in ROLES or role in CALLS) and bool({"content", "value", "tool_calls"} & item.keys())

    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list):
        value = value[0]
    return isinstance(value, list) and bool(value) and all(map(is_message, value))


def first_request(conversation: Any) -> Cleaned:
    """The first request of a user and the answer to it. What an assistant says before it is left out."""
    spoken = turns(conversation)
    asked = _asked(spoken)
    meta: dict[str, Any] = {"turns": len(asked)}
    if spoken[0].role == "system" and spoken[0].text:
        meta["system"] = spoken[0].text.strip()
    answer = _answer(spoken, asked[0])
    return Cleaned(spoken[asked[0]].text.strip(), answer and answer.strip(), meta)


CUT = "cut"
"""In the ``meta`` of a prompt: its conversation ends at a message that cannot be read, before what the row asks."""


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
    return Cleaned(
        spoken[last].text,
        _answer(spoken, last)
        or (response if is_whole and not any(t.text or t.calls for t in spoken[last:][1:]) else None),
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


def requests_in(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """A digest of the conversation up to each request in it, the last for all of it.

    Two prompts belong to one conversation if the last request of one is among those of the other. Identifiers of calls and reasoning do not count: clients may
    change or drop them.
    """
    running = hashlib.blake2b(digest_size=8)
    found = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        if message["role"] == "assistant" and not message["content"] and not calls:
            continue  # it only thought
        running.update(json.dumps([message["role"], message["content"], calls]).encode())
        if message["role"] in ("user", "tool"):
            found.append(int.from_bytes(running.digest()))
    return found


def conversation_numbers(prompts: Sequence[Sequence[Mapping[str, Any]]]) -> list[int]:
    """The number of each prompt's conversation among them: that of the conversation's first prompt.

    A prompt that several others continue, each in its own way, is a common beginning and joins none of them.

    >>> asked, answered = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
    >>> conversation_numbers([[asked], [{"role": "user", "content": "How?"}], [asked, answered, asked]])
    [0, 1, 0]
    """
    requests = [requests_in(messages) for messages in prompts]
    following: dict[int, set[int]] = {}
    for found in requests:
        for request, after in itertools.pairwise(found):
            following.setdefault(request, set()).add(after)
    begun: dict[int, int] = {}  # the conversation that each prompt belongs to, by its last request
    for found in sorted(requests, key=len):
        known = (begun[request] for request in found if request in begun and len(following.get(request, ())) < 2)
        begun[found[-1]] = next(known, begun.get(found[-1], found[-1]))
    first: dict[int, int] = {}
    return [first.setdefault(begun[found[-1]], number) for number, found in enumerate(requests)]


def answered(row: Row) -> str | None:
    """The text of a response in the formats of OpenAI and Anthropic, in ``response`` (LiteLLM, batches), in ``output`` (Langfuse) or in the row
    itself; None without one."""
    answer: Any = row.get("response", row)
    if isinstance(answer, list) and answer:
        answer = answer[0]
    if isinstance(answer, Mapping) and isinstance(answer.get("body"), Mapping):
        answer = answer["body"]
    if not isinstance(answer, Mapping):
        return None
    choices, output = answer.get("choices", answer.get("candidates")), answer.get("output")
    if isinstance(output, Mapping) and isinstance(output.get("outputBodyJson"), Mapping):  # Bedrock's log
        return answered({"response": output["outputBodyJson"]})
    first = choices[0] if isinstance(choices, list) and choices else {}
    spoken = output if isinstance(output, list) else []
    inside = [
        place.get(name)
        for place in (first, output, answer)
        if isinstance(place, Mapping) and place is not row
        for name in ("message", "content")
    ]
    if answer is row and isinstance(said := row.get("message"), Mapping) and "role" in said:
        inside.append(said)
    for message in (first, *inside, output, answer, *spoken):
        if not isinstance(message, Mapping) or message is row or _kind(message) in THOUGHTS:
            continue
        message = _common(message)
        if ROLES.get(str(message.get("role") or "assistant").lower()) != "assistant":
            continue
        content = next(
            (message[name] for name in ("content", "text", "generated_text", "response") if name in message), None
        )
        parts = [part for part in content if _kind(part) not in THOUGHTS] if isinstance(content, list) else content
        texts = [text for text in texts_of(parts) if isinstance(text, str)]
        if text := "\n".join(texts).strip():
            return text
    return None
