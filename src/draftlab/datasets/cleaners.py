"""Raw rows to prompts: one function per dataset, for generated and real raw rows alike.

A cleaner takes a row and returns what it says, or raises ``BadRow`` with the reason; ``clean`` turns that into a
``Prompt`` or a ``Rejection``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from draftlab.datasets.readers import RawRow, printable, well_formed
from draftlab.records import Prompt, Rejection

Row = Mapping[str, Any]


class BadRow(Exception):
    """A row that gives no prompt, with the reason."""


@dataclass(frozen=True)
class Cleaned:
    """What a row says: the prompt, the dataset's own answer if it has one, and what a stream may sort by."""

    text: str
    reference: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


def _get(row: Row, names: tuple[str, ...]) -> tuple[str, Any]:
    for name in names:
        if name in row:
            return name, row[name]
    return names[0], None


def text_of(row: Row, *names: str) -> str:
    """The text of the first of these fields that the row has, stripped; missing, empty or no text is a ``BadRow``."""
    name, value = _get(row, names)
    if value is None:
        raise BadRow(f"no {name}" if name not in row else f"{name} is null")
    if not isinstance(value, str):
        raise BadRow(f"{name} is {type(value).__name__}, not text")
    if not well_formed(value):
        raise BadRow(f"{name} holds a lone surrogate")
    if not value.strip():
        raise BadRow(f"{name} is empty")
    return value.strip()


def maybe_text(row: Row, *names: str) -> str | None:
    """As ``text_of``, but ``None`` when the field is missing, null or empty; a value that is no text is a ``BadRow``."""
    _, value = _get(row, names)
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    return text_of(row, *names)


SPIDER_INSTRUCTION = (
    "Could you translate the following question into SQL. "
    "Please only generate SQL, don't include explanation in the answer. "
)


def spider(row: Row) -> Cleaned:
    """The repository's instruction and the question, without the schema (OSD, ``data/collector.py``)."""
    return Cleaned(SPIDER_INSTRUCTION + text_of(row, "question"), maybe_text(row, "query"), _labels(row, "db_id"))


def gsm8k(row: Row) -> Cleaned:
    """The question."""
    return Cleaned(text_of(row, "question"), maybe_text(row, "answer"))


def code_search_net(row: Row) -> Cleaned:
    """The repository's instruction and the docstring, from the hub's or from the raw files' field names."""
    doc = text_of(row, "func_documentation_string", "docstring")
    code = maybe_text(row, "func_code_string", "code")
    return Cleaned(f"Please generate code based on the following doc:\n{doc}", code, _labels(row, "func_name"))


def finance_alpaca(row: Row) -> Cleaned:
    """The instruction, then the input where there is one."""
    return alpaca(row)


def finance_alpaca_osd(row: Row) -> Cleaned:
    """The instruction alone, as OSD's repository has it."""
    return Cleaned(text_of(row, "instruction"), maybe_text(row, "output"))


def alpaca(row: Row) -> Cleaned:
    """The instruction, then the input where there is one."""
    given = maybe_text(row, "input")
    instruction = text_of(row, "instruction")
    return Cleaned(f"{instruction}\n{given}" if given else instruction, maybe_text(row, "output"))


def _labels(row: Row, *names: str) -> dict[str, Any]:
    return {name: text for name in names if isinstance(text := row.get(name), str) and well_formed(text)}


Cleaner = Callable[[Row], Cleaned]
CLEANERS: dict[str, Cleaner] = {
    "spider": spider,
    "gsm8k": gsm8k,
    "code_search_net": code_search_net,
    "finance_alpaca": finance_alpaca,
}
OSD_REPO_CLEANERS = CLEANERS | {"finance_alpaca": finance_alpaca_osd}


def clean(
    dataset: str, split: str, rows: Iterable[RawRow], *, cleaner: Cleaner, max_chars: int
) -> Iterator[Prompt | Rejection]:
    """A ``Prompt`` or a ``Rejection`` for each row, in order; ``gsm8k/train/00017`` is the row at index 17.

    A prompt of more than ``max_chars`` characters is rejected; 0 sets no limit.
    """
    for index, raw in enumerate(rows):
        try:
            if raw.problem is not None:
                raise BadRow(raw.problem)
            if not isinstance(raw.row, Mapping):
                raise BadRow(f"the row is {type(raw.row).__name__}, not an object")
            said = cleaner(raw.row)
            if 0 < max_chars < len(said.text):
                raise BadRow(f"the prompt is longer than {max_chars} characters")
        except BadRow as reason:
            row = raw.row if isinstance(raw.row, str) else json.dumps(raw.row, default=repr)
            yield Rejection(raw.file, raw.line, str(reason), printable(row))
            continue
        yield Prompt(f"{dataset}/{split}/{index:05d}", dataset, split, said.text, said.reference, said.meta)
