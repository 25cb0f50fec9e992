"""The cleaner of a user's own traffic: prompts, lists of turns and conversations, as files and logs hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from draftlab.data.conversations import CUT, last_request
from draftlab.data.fields import BadRow, Cleaned, Row, as_text, items_of, labels, mapping_of, maybe_text, text_of
from draftlab.data.formats import (
    ANSWER_FIELDS,
    CONVERSATION_FIELDS,
    NO_TEXTS,
    PROMPT_COLUMNS,
    PROMPT_FIELDS,
    RETRIEVED,
    are_lengths,
)
from draftlab.data.logged import request_of
from draftlab.data.messages import ROLES, texts_of
from draftlab.data.raw_rows import well_formed
from draftlab.data.responses import answered
from draftlab.data.strict_json import decoded
from draftlab.data.tools import offered_in, places_in


def prompts(row: Row) -> Cleaned:
    """A user's traffic: a prompt under a usual name, a list of turns, or a conversation, also within a request in a log.

    Of a conversation, the request is the last turn of the user or of a tool, and the model reads all of it up to there.
    """
    row = request_of(row)
    return replace(_request(row), tools=offered_in(row), template_options=_template_options(row))


def _request(row: Row) -> Cleaned:
    """What the model reads, without tools, and the answer."""
    if row.get("images"):  # Ollama's, beside a prompt
        raise BadRow("a picture where text is expected")
    if any(place.get("previous_response_id") for place in (row, row.get("response")) if isinstance(place, Mapping)):
        raise BadRow("previous_response_id: the rest of the conversation is not in the row")
    system = _system(row)
    if (conversation := _conversation(row)) is not None:
        request = last_request(conversation, system, answered(row))
        return replace(request, meta={**request.meta, **labels(row)})
    if isinstance(row.get("turns"), list):
        return Cleaned(as_text(items_of(row, "turns")[0], "turns"), None, labels(row))
    field = next((name for name in PROMPT_FIELDS if isinstance(row.get(name), str | list)), None)
    if field and isinstance(row[field], list):
        if len(row[field]) > 1 and isinstance(row[field][0], str):
            raise BadRow(f"several prompts in a row: {field} is a list of them")
        return Cleaned(as_text(items_of(row, field)[0], field), None, labels(row))
    asked = {"role": "user", "content": _text(row, field)}
    texts = (maybe_text(row, name) for name in ANSWER_FIELDS if isinstance(row.get(name), str))
    answer = next(filter(None, texts), None) or answered(row)
    before = _history(row)
    request = last_request([*(before[:-1] if before[-1:] == [asked] else before), asked], system)
    if CUT in request.meta:
        raise BadRow("a turn of the history cannot be read")
    return Cleaned(request.text, answer, labels(row), request.conversation)


def _text(row: Row, field: str | None) -> str:
    """The prompt in ``field``, after the passages retrieved for it, and before the input that an instruction is about."""
    if field is None and PROMPT_COLUMNS.isdisjoint(row) and are_lengths(row):
        raise BadRow(NO_TEXTS)
    text = text_of(row, *([field] if field else PROMPT_FIELDS))
    text = row[field] if field else text  # with the space around it, which the model reads
    places = (*RETRIEVED, "context") if "instruction" not in row and _is_passage(row.get("context")) else RETRIEVED
    if retrieved := next((row[name] for name in places if row.get(name)), None):
        text = f"{_passages(retrieved)}\n\n{text}"
    if "instruction" in row and (context := maybe_text(row, "input", "context")):
        text = f"{text}\n{context}"
    return text


def _conversation(row: Row) -> object:
    """The conversation in a row: a list in one of the usual fields, or what stands there if no field holds a prompt; None without one."""
    for name in (*CONVERSATION_FIELDS, "turns", *PROMPT_FIELDS):
        value = row.get(name)
        if isinstance(value, list) and value and (name in CONVERSATION_FIELDS or isinstance(value[0], Mapping)):
            return value
    if any(row.get(name) for name in ("turns", *PROMPT_FIELDS)):
        return None
    return next((row[name] for name in CONVERSATION_FIELDS if row.get(name)), None)


def _system(row: Row) -> str | None:
    """The system prompt beside a request: a text (OpenAI's ``instructions``), a list of parts (Anthropic's ``system``), or messages."""
    value = next((row[name] for name in ("system", "system_prompt", "instructions") if row.get(name)), None)
    if isinstance(value, Mapping):
        value = value.get("parts")  # Gemini's
    if isinstance(value, list):
        said = (part.get("text", part.get("content")) if isinstance(part, Mapping) else part for part in value)
        parts = (text for content in said for text in texts_of(content))
        value = "\n".join(part for part in parts if isinstance(part, str))
    return as_text(value, "system") if isinstance(value, str) and value.strip() else None


def _template_options(row: Row) -> dict[str, Any]:
    """What a request gives the chat template beside messages and tools: ``chat_template_kwargs`` of vLLM, SGLang and llama.cpp's server.

    OpenAI's client sends it in an ``extra_body``, which LiteLLM logs among the parameters. Tables hold it as text, or
    with null for an option that other rows have.
    """
    found = (place.get("chat_template_kwargs") for outer in places_in(row) for place in places_in(outer))
    objects = (decoded(value) if isinstance(value, str) else value for value in found)
    options = next((value for value in objects if isinstance(value, Mapping)), {})
    if not well_formed(json.dumps(options, ensure_ascii=False)):
        raise BadRow("chat_template_kwargs holds a lone surrogate")
    return {name: value for name, value in options.items() if value is not None}


def _history(row: Row) -> list[Mapping[str, object]]:
    """The turns before a prompt: messages, or pairs of what the user and the assistant said (null: nothing), or of a role and a text.

    **Raises:** ``BadRow`` for a history that is text or an object: who said what is not guessed.
    """
    value = next((row[name] for name in ("history", "chat_history") if row.get(name)), None)
    if isinstance(value, Mapping) or (isinstance(value, str) and value.strip()):
        raise BadRow(f"the history is {type(value).__name__}, not a list")
    turns = value if isinstance(value, list) else []
    pairs = [turn for turn in turns if isinstance(turn, list) and len(turn) == 2]
    if len(pairs) == len(turns) > 1 and all(str(who).lower() in ROLES for who, _ in pairs):  # LangChain's
        return [{"role": who, "content": text} for who, text in pairs]
    said: list[Mapping[str, object]] = []
    for turn in turns:
        if isinstance(turn, list) and len(turn) == 2:
            pair = zip(("user", "assistant"), turn, strict=True)
            said += [{"role": role, "content": text} for role, text in pair if text is not None]
        else:
            said.append(mapping_of(turn, "a turn of the history"))
    return said


PASSAGE = ("text", "contents", "content", "passage")
"""Fields that may hold the text of a passage."""


def _is_passage(value: object) -> bool:
    """Whether ``context`` holds passages; other logs use the name for other things."""
    items = value if isinstance(value, list) else [value]
    return all(isinstance(item, str) or (isinstance(item, Mapping) and item.keys() & PASSAGE) for item in items)


def _passages(retrieved: object) -> str:
    """Join the passages retrieved for a question: one text, a list of texts, or a list of objects with a text."""
    items = retrieved if isinstance(retrieved, list) else [retrieved]
    texts = [text_of(item, *PASSAGE) if isinstance(item, Mapping) else item for item in items]
    return "\n\n".join(as_text(text, "a retrieved passage") for text in texts)
