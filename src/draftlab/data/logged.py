"""Requests as logs hold them: inside other objects, as JSON text, and under other names."""

from __future__ import annotations

from collections.abc import Mapping

from draftlab.data.conversations import is_conversation
from draftlab.data.fields import Row
from draftlab.data.formats import CONVERSATION_FIELDS, PROMPT_FIELDS
from draftlab.data.responses import answered
from draftlab.data.strict_json import decoded

LOGGED = ("proxy_server_request", "request", "request_body", "body", "input", "inputBodyJson")
"""Fields of logs that hold a request: LiteLLM's, gateways', OpenAI's batches, Langfuse's, Bedrock's."""
SHIPPED = ("message", "log")
"""Fields in which shippers of logs put what a server wrote."""
GIVEN = ("params", "inputs", "attributes", *SHIPPED)
"""The same in Anthropic's batches, LangSmith's runs and OpenTelemetry, where the row has no prompt of its own."""
PACKED = {
    "response_body": "response", "responseBody": "response", "gen_ai.input.messages": "messages", "gen_ai.output.messages": "output",
    "gen_ai.system_instructions": "system", "gen_ai.tool.definitions": "tools",
}  # fmt: skip
"""Other names of fields that may be JSON text: gateways' and OpenTelemetry's."""
ALIASES = {**PACKED, "requestBody": "request", "systemInstruction": "system", "system_instruction": "system"}
"""The same with fields of gateways and Gemini."""


def request_of(row: Row) -> Row:
    """The row with the fields of the request that it holds."""
    row = _unpacked(row)
    own = (  # ``inputs`` may be a prompt or hold one
        row.get(name)
        for name in (*PROMPT_FIELDS, *CONVERSATION_FIELDS)
        if name != "inputs" or isinstance(row.get(name), str)
    )
    for name in LOGGED if any(own) else (*GIVEN, *LOGGED):
        if isinstance(row.get(name), Mapping) and (name not in SHIPPED or _is_request(row[name])):
            row = _unpacked({**row, **row[name]})
    return row


def _unpacked(row: Row) -> Row:
    """The row with requests, conversations and answers that it holds as JSON text, as tables do, as objects."""
    row = _renamed(row)
    held = {
        name: decoded(value)
        for name, value in row.items()
        if isinstance(value, str) and value.lstrip().startswith(("[", "{"))
    }
    unpacked = {name: value for name, value in held.items() if _is_packed(name, value, row)}
    return {**row, **unpacked} if unpacked else row


def _renamed(row: Row) -> Row:
    """The row with the usual names in place of ``ALIASES``."""
    known: dict[str, object] = {}
    for name, usual in ALIASES.items():
        value, given = row.get(name), row.get(usual)
        value = decoded(value) if name in PACKED and isinstance(value, str) else value
        if value and (not given or (isinstance(given, str) and not isinstance(value, str))):
            known.setdefault(usual, value)
    if is_conversation(row.get("contents")):  # Gemini's
        known["messages"] = row["contents"]
    return {**{name: value for name, value in row.items() if name not in ALIASES}, **known} if known else row


def _is_packed(name: str, held: object, row: Row) -> bool:
    """Whether JSON text is what a field of this name holds, rather than a text that a user wrote."""
    if name in CONVERSATION_FIELDS:
        return is_conversation(held)
    if name in ("history", "chat_history"):
        return isinstance(held, list)
    if name in ("output", "response"):
        if not isinstance(held, Mapping) or {"choices", "content", "output"} & held.keys():
            return isinstance(held, Mapping)
        return bool({"candidates", "generated_text", "done"} & held.keys()) and answered({"response": held}) is not None
    if name in SHIPPED:
        return _is_request(held)
    if name in PROMPT_FIELDS and not (name == "inputs" and isinstance(held, Mapping)):
        is_alone = not any(isinstance(row.get(field), str) for field in PROMPT_FIELDS if field != name)
        if name == "input" and isinstance(held, Mapping):
            held = next((held[field] for field in CONVERSATION_FIELDS if field in held), None)
        is_named = name in ("input", "inputs") or (
            isinstance(held, list)
            and all(isinstance(item, Mapping) and {"role", "from"} & item.keys() for item in held)
        )
        return is_alone and is_named and is_conversation(held)
    # The server TGI has ``parameters`` beside a prompt ``inputs``.
    return name in (*LOGGED, *GIVEN) and isinstance(held, Mapping) and not (name == "inputs" and "parameters" in row)


def _is_request(held: object) -> bool:
    """Whether an object is a server's request, rather than a message or another log."""
    return isinstance(held, Mapping) and bool({"prompt", "messages", *LOGGED} & held.keys()) and "role" not in held
