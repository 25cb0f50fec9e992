"""Formats: the fields by which the rows of a file are known."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftlab.data.readers import RawRow

DETECT = 200  # rows from which the format is detected

FORMATS: dict[str, tuple[str, ...]] = {
    "spider": ("db_id", "question", "query"),
    "tatqa": ("table", "paragraphs", "questions"),
    "piqa": ("goal", "sol1", "sol2"),
    "starcoder": ("content", "max_stars_repo_name"),
    "humaneval": ("prompt", "canonical_solution"),
    "mbpp_sanitized": ("prompt", "code", "test_list"),
    "mbpp": ("text", "code", "test_list"),
    "cnn_dailymail": ("article", "highlights"),
    "xsum": ("document", "summary"),
    "wmt16": ("translation",),
    "arena": ("conversation_a",),
    "lmsys_chat_1m": ("conversation", "model"),
    "sharegpt": ("conversations",),
    "oasst": ("message_id", "text", "role"),
    "arena_hard": ("uid", "cluster", "prompt"),
    "self_instruct": ("instruction", "instances"),
    "dolly": ("instruction", "context", "response"),
    "alpaca": ("instruction", "input", "output"),
    "mt_bench": ("category", "turns"),
    "gsm8k": ("question", "answer"),
    "prompts": (),
}
PROMPT_FIELDS = ("prompt", "text", "question", "instruction", "query", "goal", "input", "content")
ANSWER_FIELDS = ("answer", "response", "output", "completion", "reference")
CONVERSATION_FIELDS = ("conversation", "conversations", "messages", "conversation_a")
SAID_IN = {*PROMPT_FIELDS, *CONVERSATION_FIELDS, "turns", "article", "document", "translation", "docstring",
           "func_documentation_string"}  # fmt: skip
"""Every field that a prompt is read from: a table must have one."""
RETRIEVED = ("docs", "documents", "passages", "contexts", "ctxs")
"""Fields that hold what was retrieved for a question: its rows are prompts of one's own, whatever else is in them."""
FURTHER = (
    *(("prompts", (name,)) for name in RETRIEVED),
    ("code_search_net", ("func_documentation_string",)),
    ("code_search_net", ("docstring", "code")),
    ("oasst", ("message_tree_id", "prompt")),
)
"""Formats by other fields than those of ``FORMATS``, which come after them."""


def detect(rows: Iterable[RawRow]) -> str:
    """The format that most of the first rows fit, the most specific first; ``prompts`` when none does.

    A number or null under a field's name is something else of the user's own.
    """
    first = itertools.islice(rows, DETECT)
    found = [raw.row for raw in first if raw.problem is None and isinstance(raw.row, Mapping)]
    candidates = [*FURTHER, *FORMATS.items()]
    fits = [
        sum(all(not isinstance(row.get(name), int | float | None) for name in fields) for row in found)
        for _, fields in candidates[:-1]
    ]
    best = max(range(len(fits)), key=lambda i: (fits[i], -i))
    return candidates[best][0] if found and 2 * fits[best] > len(found) else "prompts"
