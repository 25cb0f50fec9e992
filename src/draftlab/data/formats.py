"""Formats: detects a file's dataset by the fields of its rows."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from draftlab.data.raw_rows import RawRow

DETECT = 200  # rows from which the format is detected

RETRIEVED = ("docs", "documents", "passages", "contexts", "ctxs")
"""Fields that hold what was retrieved for a question: rows with one are the user's traffic, whatever their other fields."""

CONTEXT = (
    "system",
    "system_prompt",
    "instructions",
    "messages",
    "conversations",
    "history",
    "chat_history",
    "tools",
    "functions",
    "images",
    "chat_template_kwargs",
)
"""Fields that hold more of what a model reads than a dataset's row does; a file with a row in which one is not empty is the user's traffic."""

FORMATS: tuple[tuple[str, tuple[str, ...]], ...] = (
    *(("prompts", (name,)) for name in RETRIEVED),
    ("code_search_net", ("func_documentation_string",)),
    ("code_search_net", ("docstring", "code")),
    ("oasst", ("message_tree_id", "prompt")),
    ("spider", ("db_id", "question", "query")),
    ("tatqa", ("table", "paragraphs", "questions")),
    ("piqa", ("goal", "sol1", "sol2")),
    ("starcoder", ("content", "max_stars_repo_name")),
    ("humaneval", ("prompt", "canonical_solution")),
    ("mbpp_sanitized", ("prompt", "code", "test_list")),
    ("mbpp", ("text", "code", "test_list")),
    ("cnn_dailymail", ("article", "highlights")),
    ("xsum", ("document", "summary")),
    ("wmt16", ("translation",)),
    ("oasst", ("message_id", "text", "role")),
    ("arena_hard", ("uid", "cluster", "prompt")),
    ("self_instruct", ("instruction", "instances")),
    ("dolly", ("instruction", "context", "response")),
    ("alpaca", ("instruction", "input", "output")),
    ("mt_bench", ("category", "turns")),
    ("mt_bench", ("category", "prompt", "reference")),
    ("gsm8k", ("question", "answer")),
)
"""Datasets and the fields of their rows, the most specific first."""

PROMPT_FIELDS = ("prompt", "text", "question", "instruction", "query", "goal", "input", "content", "inputs")
ANSWER_FIELDS = ("answer", "response", "output", "completion", "reference", "generated_text")
CONVERSATION_FIELDS = ("conversation", "conversations", "messages", "conversation_a")
PROMPT_COLUMNS = {*PROMPT_FIELDS, *CONVERSATION_FIELDS, "turns", "article", "document", "translation", "docstring",
                  "func_documentation_string"}  # fmt: skip
"""Every field that a prompt is read from. A table must have one of them."""


LENGTHS = {
    "contexttokens", "request tokens", "input_length", "input_toks", "num_prefill_tokens", "prompt_tokens",
}  # fmt: skip
"""Fields of traces of arrivals, in lower case: how long a prompt is."""
NO_TEXTS = "lengths of requests without their texts: --traffic needs the prompts, --trace takes this file"


def are_lengths(fields: Iterable[str]) -> bool:
    """Whether a row without a prompt is that of a trace of arrivals."""
    return not LENGTHS.isdisjoint(field.strip().lower() for field in fields)


def _are_texts(value: object) -> bool:
    """Whether a field holds a list of texts, as MT-Bench's turns are."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def detect(rows: Iterable[RawRow]) -> str:
    """The first of ``FORMATS`` that fits most of the first rows; ``prompts`` if none fits more than half of them.

    A field that holds a number or null does not count: it is a field of the user's with the same name. Nor is a file a dataset's if one row
    holds more than the dataset's do: of questions and answers, of which some have a ``history``, the cleaner of GSM8K would lose it.
    """
    read = [raw.row for raw in itertools.islice(rows, DETECT) if raw.problem is None and isinstance(raw.row, Mapping)]

    def fitting(name: str, fields: tuple[str, ...]) -> int:
        more = () if fields[0] in RETRIEVED else (*CONTEXT, *({"context"} - set(fields)))
        if any(row.get(field) for row in read for field in more):
            return 0
        return sum(
            all(not isinstance(row.get(field), int | float | None) for field in fields)
            and (name != "mt_bench" or _are_texts(row[fields[1]]))
            for row in read
        )

    name, fields = max(FORMATS, key=lambda known: fitting(*known))
    return name if 2 * fitting(name, fields) > len(read) else "prompts"
