"""Tools in the formats of OpenAI and Anthropic: the calls in a message, and the schemas beside a conversation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

from draftlab.data.fields import BadRow, Row, mapping_of
from draftlab.data.raw_rows import well_formed
from draftlab.data.strict_json import decoded

SCHEMAS = ("parameters", "input_schema", "inputSchema")
"""Fields that hold the schema of a tool's arguments: OpenAI's, Anthropic's and MCP's."""
CALLS = ("function_call", "custom_tool_call")
"""Types of items that call a tool in OpenAI's Responses."""


def calls_in(message: Row) -> list[dict[str, Any]]:
    """The calls of tools in a message, in OpenAI's format with the arguments as an object, which chat templates expect.

    Read are ``tool_calls``, the older ``function_call``, parts of type ``tool_use`` (Anthropic), and an item that is a call (OpenAI's
    Responses). The text that a custom tool gets becomes the argument ``input``.

    **Raises:** ``BadRow`` for a call without the name of a tool.

    >>> calls_in({"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "add", "arguments": '{"x": 1}'}}]})
    [{'id': 'a', 'type': 'function', 'function': {'name': 'add', 'arguments': {'x': 1}}}]
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    found = [part for part in parts if isinstance(part, Mapping) and part.get("type") == "tool_use"]
    calls = message.get("tool_calls")
    if isinstance(calls, str):  # as tables hold them
        calls = decoded(calls)
    if isinstance(calls, list):
        known = [part.get("id") for part in found]  # LangChain has the calls of Anthropic's twice
        found += [
            call for call in calls if not isinstance(call, Mapping) or call.get("id") is None or call["id"] not in known
        ]
    if isinstance(call := message.get("function_call"), Mapping):
        found.append(call)
    if message.get("type") in CALLS:
        found.append(message)
    return [_call(mapping_of(call, "a call of a tool")) for call in found]


ARGUMENTS = ("arguments", "input", "args")


def _call(call: Row) -> dict[str, Any]:
    called = next((call[kind] for kind in ("function", "custom") if isinstance(call.get(kind), Mapping)), call)
    name, arguments = called.get("name"), next((called[key] for key in ARGUMENTS if key in called), None)
    if not isinstance(name, str) or not name:
        raise BadRow("a call of a tool has no name")
    if isinstance(arguments, str) and "arguments" not in called:
        arguments = {"input": arguments}
    if isinstance(arguments, str):
        arguments = decoded(arguments)  # a model may write anything
    given: dict[str, Any] = {"name": name, "arguments": {} if arguments in (None, "") else arguments}
    number = call.get("call_id") or call.get("id")
    return _checked(({"id": number} if isinstance(number, str) else {}) | {"type": "function", "function": given})


PARAMETERS = ("model_parameters", "optional_params", "extra_body", "toolConfig")


def places_in(row: Row) -> list[Row]:
    """A request, and the parameters within it."""
    return [row, *(row[name] for name in PARAMETERS if isinstance(row.get(name), Mapping))]


def offered_in(row: Row) -> list[dict[str, Any]]:
    """The tools that a request offers, ``tools`` or ``functions``, in OpenAI's format; LiteLLM and Bedrock log them among the parameters.

    Left out is what has no schema: a name alone, and tools of the server's own.
    """
    value = next((place[name] for place in places_in(row) for name in ("tools", "functions") if place.get(name)), None)
    if isinstance(value, str):  # as tables hold them
        value = decoded(value)
    offered = []
    for item in itertools.chain.from_iterable(map(_declared, value if isinstance(value, list) else [])):
        tool = item.get("function", item) if isinstance(item, Mapping) else item
        if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
            continue
        if tool is not item:
            offered.append(_checked(dict(item)))
            continue
        schema = next((tool[name] for name in SCHEMAS if isinstance(tool.get(name), Mapping)), None)
        if schema is not None or item.get("type") == "function":  # a function may have no arguments
            described = {name: tool[name] for name in ("name", "description") if isinstance(tool.get(name), str)}
            offered.append(_checked({"type": "function", "function": {**described, "parameters": schema or {}}}))
    return offered


def _declared(item: Any) -> list[Any]:
    """The tools in an item of a request: Gemini's items hold several, and Bedrock's a specification."""
    held = item if isinstance(item, Mapping) else {}
    declared = held.get("functionDeclarations", held.get("function_declarations"))
    if isinstance(declared, list):
        return declared
    spec = held.get("toolSpec")
    if not isinstance(spec, Mapping):
        return [item]
    schema = spec.get("inputSchema")
    return [{**spec, "inputSchema": schema.get("json") if isinstance(schema, Mapping) else None}]


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    if not well_formed(json.dumps(value, ensure_ascii=False)):
        raise BadRow("a tool holds a lone surrogate")
    return value
