"""Chat templates, which turn a conversation into a prompt.

A rendered prompt consists of segments. Only segments of the template may contain special tokens: ``</s>`` that a user typed stays text.
"""

from __future__ import annotations

import datetime
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from draftlab.errors import UserError

if TYPE_CHECKING:
    from jinja2 import Environment

Role = Literal["system", "user", "assistant", "tool"]
VICUNA_SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)
TODAY = datetime.date(2024, 7, 26)
"""The date for templates that write one, so that a prompt is the same every day; Llama 3's own default."""


@dataclass(frozen=True)
class Turn:
    """One message."""

    role: Role
    text: str


@dataclass(frozen=True)
class Segment:
    """A piece of a rendered prompt; text of the template is ``special``: it may contain special tokens."""

    text: str
    special: bool


END = Segment("</s>", special=True)


def render(template: str, conversation: Sequence[Turn], *, chat_template: str | None = None) -> list[Segment]:
    """The prompt for the next answer in a template by name: ``vicuna_v1.1``, ``vicuna_short``, ``plain`` or ``own``.

    ``own`` is the Jinja template of the tokenizer, ``chat_template``, rendered in a sandbox.
    """
    match template:
        case "vicuna_v1.1":
            segments = _vicuna(conversation, VICUNA_SYSTEM)
        case "vicuna_short":
            segments = _vicuna(conversation, "")
        case "plain":
            segments = [Segment(turn.text, special=False) for turn in conversation]
        case "own":
            if not chat_template:
                remedy = "name one: vicuna_v1.1, vicuna_short, plain"
                raise UserError("the tokenizer has no chat template", remedy=remedy)
            segments = _render_jinja(conversation, chat_template)
        case _:
            raise UserError(f"unknown chat template {template!r}", remedy="use vicuna_v1.1, vicuna_short, plain or own")
    return [segment for segment in segments if segment.text]


def _vicuna(conversation: Sequence[Turn], system: str) -> list[Segment]:
    segments: list[Segment] = []
    if conversation and conversation[0].role == "system":
        segments, conversation = [Segment(conversation[0].text, special=False)], conversation[1:]
    elif system:
        segments = [Segment(system, special=True)]
    for turn in conversation:
        space = " " if segments and segments[-1] != END else ""
        name = "USER" if turn.role == "user" else "ASSISTANT"
        segments += [Segment(f"{space}{name}: ", special=True), Segment(turn.text, special=False)]
        if turn.role == "assistant":
            segments.append(END)
    return [*segments, Segment(" ASSISTANT:", special=True)]


def _render_jinja(conversation: Sequence[Turn], template: str) -> list[Segment]:
    # The template renders marks in place of the texts: everything else in its output is text of the template.
    # A mark has mixed case and a bracket, so that a template that changes texts (upper, escape, tojson) is noticed.
    marks = {f"\ue000<mArk>{index}\ue001": turn.text for index, turn in enumerate(conversation)}
    messages = [{"role": turn.role, "content": mark} for turn, mark in zip(conversation, marks, strict=True)]
    remedy = "use vicuna_v1.1, vicuna_short or plain"
    # {% generation %} marks the model's text for training; here it is a block like any other.
    template = re.sub(r"(\{%[-+]?\s*)generation\b", r"\1if true", template)
    template = re.sub(r"(\{%[-+]?\s*)endgeneration\b", r"\1endif", template)
    try:
        compiled = _environment().from_string(template)
        text = compiled.render(messages=messages, add_generation_prompt=True, bos_token="", eos_token="</s>")
    except Exception as error:  # it is a program: it may raise anything
        raise UserError(f"the chat template fails: {error}", remedy=remedy) from None
    if any(text.count(mark) != 1 for mark in marks):
        raise UserError("the chat template leaves a message out, repeats it or changes it", remedy=remedy)
    pieces = re.split("(\ue000<mArk>\\d+\ue001)", text)
    return [Segment(marks.get(piece, piece), special=piece not in marks) for piece in pieces]


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
