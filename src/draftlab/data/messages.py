"""One message of a conversation in the formats of engines and clients, and the turns that it stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftlab.data.fields import BadRow, Row, as_text
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
MORE = ("tool_calls", "function_call", "reasoning_content")
"""Fields that LangChain may keep in ``additional_kwargs``."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields beside a message's content that may hold its reasoning as text."""
THOUGHTS = ("thinking", "reasoning")
PARTS = {"type", "text", "json", "image", "document", "video"}
"""Fields that tell a part of a content from other objects."""
PICTURES = ("image", "image_url", "input_image")
"""Types of the parts of a content."""


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


def turns_in(message: Row) -> list[Turn]:
    """The turns in one message: results of tools stand in a user's message in Anthropic's format, and alone in OpenAI's Responses."""
    message = in_common_form(message)
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
    results = [part for part in content if kind_of(part) == "tool_result"] if isinstance(content, list) else []
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
        thoughts = [part for part in parts if kind_of(part) in THOUGHTS]
        found = [text for part in thoughts for text in texts_of(part.get("thinking", part.get("text")))]
    text = "\n".join(text for text in found if isinstance(text, str))
    return as_text(text, "the reasoning") if text.strip() else ""


def _text(content: Any, name: str) -> str:
    """The text of a message's content, which may come in parts; only a user's must not be empty."""
    is_user = ROLES[name] == "user"
    if isinstance(content, list):
        if not is_user and any(kind_of(part) in PICTURES for part in content):
            raise BadRow("a picture where text is expected")
        texts = texts_of([part for part in content if kind_of(part) not in THOUGHTS])
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


def kind_of(part: Any) -> Any:
    """The ``type`` of a message or of a part of its content; None for a bare text."""
    return part.get("type") if isinstance(part, Mapping) else None


def in_common_form(message: Row) -> Row:
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
