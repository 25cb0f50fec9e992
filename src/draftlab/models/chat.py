"""Chat templates, which turn messages into a prompt."""

from __future__ import annotations

import datetime
import functools
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from draftlab.errors import UserError, first_line

if TYPE_CHECKING:
    from jinja2 import Environment, Template

Message = Mapping[str, Any]

VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
TODAY = datetime.date(2024, 7, 26)
"""The date for templates that write one, so that a prompt is the same every day; the default of Llama 3."""
OTHERS = "use vicuna_v1.1, vicuna_short or plain"

SAID = ("reasoning_content", "content")
"""The fields of a message whose text is its author's, not the template's."""


class Piece(NamedTuple):
    """A part of a prompt: the template's own text, or the content of a message."""

    text: str
    is_template: bool


def pieces(
    template: str,
    messages: Sequence[Message],
    jinja: str | None = None,
    tools: Sequence[Message] = (),
    bos_token: str = "",
    eos_token: str = "</s>",
    options: Mapping[str, Any] | None = None,
) -> list[Piece]:
    """Messages in a template: ``vicuna_v1.1``, ``vicuna_short``, ``plain``, ``own`` or ``rendered``. Joined, the pieces are what the model reads.

    ``messages`` have a role, a content, and perhaps ``reasoning_content`` and ``tool_calls``, as in OpenAI's API; ``tools`` are the schemas
    of what the model may call. ``options`` are further variables of the ``own`` template, such as ``enable_thinking``.
    ``own`` is the tokenizer's Jinja template (``chat_template`` in tokenizer_config.json), rendered in a sandbox as ``transformers`` does,
    of ``messages`` in the form that it reads (``_readable``).
    ``plain`` writes a line break between two contents. Only ``own`` has a place for reasoning, calls and schemas.
    ``rendered`` is for a single text that is in the model's template already: all of it counts as the template's.

    A content, or a reasoning, is a piece of its own if the template writes it as it is, without the space around it, without the reasoning
    before ``</think>`` in it, or as JSON. If the template changes one otherwise, everything is one piece of the template.

    **Raises:** ``UserError`` for an unknown template, and for one that fails or that leaves the last message out.

    >>> pieces("vicuna_short", [{"role": "user", "content": "Why?"}])
    [Piece(text='USER: ', is_template=True), Piece(text='Why?', is_template=False), Piece(text=' ASSISTANT:', is_template=True)]
    """

    if template == "rendered":
        if tools or len(messages) > 1:
            what = "template rendered reads a single text, not a conversation or tools"
            raise UserError(what, remedy="use template own")
        return [Piece(messages[0]["content"], True)]

    def write(written: Sequence[Message]) -> str:
        match template:
            case "vicuna_v1.1":
                return _vicuna(written, VICUNA_SYSTEM)
            case "vicuna_short":
                return _vicuna(written, "")
            case "plain":
                return "\n".join(message["content"] for message in written if message["content"])
            case "own":
                return _rendered(jinja, written, tools, bos_token, eos_token, options or {})
        raise UserError(
            f"unknown chat template {template!r}", remedy="use vicuna_v1.1, vicuna_short, plain, own or rendered"
        )

    if template == "own":
        messages = _readable(messages, write)
    whole = write(messages)
    # A mark takes the place of a content: all other text is the template's.
    contents: dict[str, str] = {}

    def mark(text: str) -> str:
        contents[name := f"\ue000{len(contents)}\ue001"] = text
        return name

    try:
        marked = write(
            [{**message, **{key: mark(message[key]) for key in SAID if message.get(key)}} for message in messages]
        )
    except UserError:  # it reads the contents
        return [Piece(whole, True)]
    if messages[-1]["content"] and list(contents)[-1] not in marked:
        raise UserError("the chat template leaves out what is asked", remedy=OTHERS)
    parts = re.split(f"({'|'.join(contents)})", marked) if contents else [marked]
    return _aligned(parts, contents, whole) or [Piece(whole, True)]


def _aligned(parts: Sequence[str], contents: Mapping[str, str], whole: str) -> list[Piece]:
    """The pieces of ``whole`` whose texts and marks are ``parts``; none if it holds other texts, or contents that are changed in other ways."""
    found: list[Piece] = []
    place = 0
    for part, after in itertools.zip_longest(parts, parts[1:], fillvalue=""):
        ways = _ways(contents[part]) if part in contents else (part,)
        following = "" if after in contents else after
        text = next((way for way in ways if whole.startswith(way + following, place)), None)
        if text is None:
            return []
        found.append(Piece(text, part not in contents))
        place += len(text)
    return [piece for piece in found if piece.text] if place == len(whole) else []


def _ways(content: str) -> Iterator[str]:
    """How templates write a content: as it is, without the space or the line breaks around it, without its reasoning, or as JSON."""
    for text in (content, content.rpartition("</think>")[2]):
        yield from (text, text.lstrip("\n"), text.strip("\n"), text.strip())
    yield json.dumps(content, ensure_ascii=False)[1:-1]


def _vicuna(messages: Sequence[Message], system: str) -> str:
    """FastChat's template: the first system message replaces its own, and an answer ends with ``</s>``."""
    if messages[0]["role"] == "system":
        system, messages = messages[0]["content"], messages[1:]
    text = f"{system} " if system else ""
    for message in messages:
        match message["role"]:
            case "user":
                text += f"USER: {message['content']} ASSISTANT:"
            case "assistant":
                text += f" {message['content']}</s>"
            case role:
                raise UserError(f"the chat template has no place for a message of {role}", remedy="use plain or own")
    return text


def _rendered(
    jinja: str | None,
    messages: Sequence[Message],
    tools: Sequence[Message],
    bos_token: str,
    eos_token: str,
    options: Mapping[str, Any],
) -> str:
    if not jinja:
        raise UserError("the tokenizer has no chat template", remedy=f"name one: {OTHERS.removeprefix('use ')}")
    try:
        text: str = _compiled(jinja).render(
            {
                **options,
                "messages": [_with_reasoning(message) for message in messages],
                "tools": list(tools) or None,
                "documents": None,
                "add_generation_prompt": True,
                "bos_token": bos_token,
                "eos_token": eos_token,
            }
        )
    except Exception as error:  # it is a program: it may raise anything
        raise UserError(f"the chat template fails: {first_line(error)}", remedy=OTHERS) from None
    return text


def _readable(messages: Sequence[Message], write: Callable[[Sequence[Message]], str]) -> Sequence[Message]:
    """The messages in the first of several forms with which the template does not fail and writes most calls.

    Some templates write calls only where the content is None, or only arguments that are text; DeepSeek R1's is both. gpt-oss's refuses a
    content between reasoning and calls, which is left out only where every other form fails.
    """
    if not any("tool_calls" in message for message in messages):
        return messages
    without_words = [
        {**message, "content": ""} if {"tool_calls", "reasoning_content"} <= message.keys() else message
        for message in messages
    ]
    calls = sum(len(message.get("tool_calls", ())) for message in messages)
    for said in (messages, without_words):
        best, most = None, -1
        for content, arguments in itertools.product(("", None), (_unchanged, _as_text)):
            form = [_in_form(message, content, arguments) for message in said]
            count = _count_calls(form, write)
            if count == calls:
                return form
            if count > most:
                best, most = form, count
        if best is not None:
            return best
    return messages


def _in_form(message: Message, content: str | None, arguments: Callable[[Any], Any]) -> Message:
    """A message with calls: what its ``content`` is if it says nothing, and how ``arguments`` are written."""
    if "tool_calls" not in message:
        return message
    return _changed({**message, "content": message["content"] or content}, "arguments", arguments)


def _count_calls(messages: Sequence[Message], write: Callable[[Sequence[Message]], str]) -> int:
    """How many of the calls the template writes; -1 if it fails."""
    marks: list[str] = []

    def mark(name: str) -> str:
        marks.append(f"\ue000{len(marks)}\ue001")
        return marks[-1]

    try:
        text = write([_changed(message, "name", mark) for message in messages])
    except UserError:
        return -1
    return sum(name in text for name in marks)


def _changed(message: Message, field: str, change: Callable[[Any], Any]) -> Message:
    """A message in which this field of each call is changed."""
    calls = [
        {**call, "function": {**call["function"], field: change(call["function"][field])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _unchanged(value: Any) -> Any:
    return value


def _as_text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _with_reasoning(message: Message) -> Message:
    """A message whose reasoning has all names that templates know."""
    reasoning = message.get("reasoning_content")
    return {**message, "reasoning": reasoning, "thinking": reasoning} if reasoning else message


@functools.lru_cache(16)
def _compiled(jinja: str) -> Template:
    # {% generation %} marks the model's text for training; here it is a block like any other.
    jinja = re.sub(r"(\{%[-+]?\s*)generation\b", r"\1if true", jinja)
    jinja = re.sub(r"(\{%[-+]?\s*)endgeneration\b", r"\1endif", jinja)
    return _environment().from_string(jinja)


@functools.cache
def _environment() -> Environment:
    """The sandboxed environment with the functions that ``transformers`` offers to a chat template."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    def to_json(value: Any, ensure_ascii: bool = False, **layout: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **layout)  # Jinja's own writes < as \\u003c

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    environment.globals |= {"raise_exception": refuse, "strftime_now": TODAY.strftime}
    return environment
