"""Chat templates, which turn a user's message into a prompt."""

from __future__ import annotations

import datetime
import functools
import re
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


def around_message(template: str, jinja: str | None = None) -> tuple[str, str]:
    """The text of a template before and after the user's message: of ``vicuna_v1.1``, ``vicuna_short``, ``plain`` or ``own``.

    ``own`` is the tokenizer's Jinja template (``chat_template`` in tokenizer_config.json), rendered in a sandbox.

    >>> around_message("vicuna_short")
    ('USER: ', ' ASSISTANT:')
    """
    match template:
        case "vicuna_v1.1":
            return f"{VICUNA_SYSTEM} USER: ", " ASSISTANT:"
        case "vicuna_short":
            return "USER: ", " ASSISTANT:"
        case "plain":
            return "", ""
        case "own":
            if not jinja:
                remedy = "name one: vicuna_v1.1, vicuna_short, plain"
                raise UserError("the tokenizer has no chat template", remedy=remedy)
            return _around_mark(jinja)
        case _:
            raise UserError(f"unknown chat template {template!r}", remedy="use vicuna_v1.1, vicuna_short, plain or own")


@functools.cache
def _around_mark(jinja: str) -> tuple[str, str]:
    # A mark takes the place of the message: all other text is the template's. Its mixed case and bracket show
    # whether the template changes the message (upper, escape, tojson).
    mark = "\ue000<mArk>\ue001"
    remedy = "use vicuna_v1.1, vicuna_short or plain"
    # {% generation %} marks the model's text for training; here it is a block like any other.
    jinja = re.sub(r"(\{%[-+]?\s*)generation\b", r"\1if true", jinja)
    jinja = re.sub(r"(\{%[-+]?\s*)endgeneration\b", r"\1endif", jinja)
    messages = [{"role": "user", "content": mark}]
    try:
        compiled = _environment().from_string(jinja)
        text = compiled.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="</s>")
    except Exception as error:  # it is a program: it may raise anything
        raise UserError(f"the chat template fails: {error}", remedy=remedy) from None
    if text.count(mark) != 1:
        raise UserError("the chat template leaves a message out, repeats it or changes it", remedy=remedy)
    before, _, after = text.partition(mark)
    return before, after


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
