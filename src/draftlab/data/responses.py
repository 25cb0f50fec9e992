"""What a model answered, in the responses that logs keep beside a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from draftlab.data.fields import Row
from draftlab.data.messages import ROLES, THOUGHTS, in_common_form, kind_of, texts_of


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
    output = answer.get("output")
    if isinstance(output, Mapping) and isinstance(output.get("outputBodyJson"), Mapping):  # Bedrock's log
        return answered({"response": output["outputBodyJson"]})
    return next(filter(None, map(_said, _messages(answer, row))), None)


def _messages(answer: Row, row: Row) -> Iterator[Row]:
    """The objects in an answer that may hold its text; the ``row`` itself is none, because it may hold the request."""
    choices, output = answer.get("choices", answer.get("candidates")), answer.get("output")
    first = choices[0] if isinstance(choices, list) and choices else {}
    inside = [
        place.get(name)
        for place in (first, output, answer)
        if isinstance(place, Mapping) and place is not row
        for name in ("message", "content")
    ]
    if answer is row and isinstance(said := row.get("message"), Mapping) and "role" in said:
        inside.append(said)
    items = output if isinstance(output, list) else []
    for message in (first, *inside, output, answer, *items):
        if isinstance(message, Mapping) and message is not row and kind_of(message) not in THOUGHTS:
            yield message


def _said(message: Row) -> str:
    """The text of an assistant's message; empty for that of another role."""
    message = in_common_form(message)
    if ROLES.get(str(message.get("role") or "assistant").lower()) != "assistant":
        return ""
    content = next(
        (message[name] for name in ("content", "text", "generated_text", "response") if name in message), None
    )
    parts = [part for part in content if kind_of(part) not in THOUGHTS] if isinstance(content, list) else content
    return "\n".join(text for text in texts_of(parts) if isinstance(text, str)).strip()
