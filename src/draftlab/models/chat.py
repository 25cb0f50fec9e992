"""Chat templates, which turn messages into a prompt."""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from draftlab.errors import UserError

if TYPE_CHECKING:
    from jinja2 import Environment

VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
TODAY = datetime.date(2024, 7, 26)
"""The date for templates that write one, so that a prompt is the same every day; the default of Llama 3."""
OTHERS = "use vicuna_v1.1, vicuna_short or plain"


@functools.lru_cache(4096)
def around_messages(template: str, jinja: str | None = None, roles: tuple[str, ...] = ("user",)) -> tuple[str, ...]:
    """The texts of a template before, between and after messages of these roles: of ``vicuna_v1.1``, ``vicuna_short``, ``plain`` or ``own``.

    ``own`` is the tokenizer's Jinja template (``chat_template`` in tokenizer_config.json), rendered in a sandbox. ``plain`` writes
    a line break between two messages.

    **Raises:** ``UserError`` for an unknown template, and for one that fails, or that leaves out, repeats or changes a message.

    >>> around_messages("vicuna_short")
    ('USER: ', ' ASSISTANT:')
    >>> around_messages("vicuna_short", roles=("system", "user", "assistant", "user"))
    ('', ' USER: ', ' ASSISTANT: ', '</s>USER: ', ' ASSISTANT:')
    """
    # A mark takes the place of a message: all other text is the template's. Its mixed case and bracket show
    # whether the template changes the message (upper, escape, tojson).
    marks = [f"\ue000<mArk{number}>\ue001" for number in range(len(roles))]
    messages = [{"role": role, "content": mark} for role, mark in zip(roles, marks, strict=True)]
    match template:
        case "vicuna_v1.1":
            text = _vicuna(messages, VICUNA_SYSTEM)
        case "vicuna_short":
            text = _vicuna(messages, "")
        case "plain":
            text = "\n".join(marks)
        case "own":
            text = _rendered(jinja, messages)
        case _:
            raise UserError(f"unknown chat template {template!r}", remedy="use vicuna_v1.1, vicuna_short, plain or own")
    texts = re.split("|".join(marks), text)
    if re.findall("|".join(marks), text) != marks:
        raise UserError("the chat template leaves a message out, repeats it or changes it", remedy=OTHERS)
    return tuple(texts)


def _vicuna(messages: Sequence[Mapping[str, str]], system: str) -> str:
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


def _rendered(jinja: str | None, messages: Sequence[Mapping[str, str]]) -> str:
    if not jinja:
        raise UserError("the tokenizer has no chat template", remedy=f"name one: {OTHERS.removeprefix('use ')}")
    # {% generation %} marks the model's text for training; here it is a block like any other.
    jinja = re.sub(r"(\{%[-+]?\s*)generation\b", r"\1if true", jinja)
    jinja = re.sub(r"(\{%[-+]?\s*)endgeneration\b", r"\1endif", jinja)
    try:
        compiled = _environment().from_string(jinja)
        text: str = compiled.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="</s>")
    except Exception as error:  # it is a program: it may raise anything
        raise UserError(f"the chat template fails: {error}", remedy=OTHERS) from None
    return text


@functools.cache
def _environment() -> Environment:
    """The sandboxed environment with the functions that ``transformers`` offers to a chat template."""
    from jinja2 import TemplateError
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.globals |= {"raise_exception": refuse, "strftime_now": TODAY.strftime}
    return environment
