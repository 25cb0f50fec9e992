"""Turns raw rows into prompts, with one cleaner per dataset, for generated and real rows alike.

A cleaner takes a row and returns its prompt, or raises ``BadRow`` with the reason; ``clean`` makes a ``Prompt`` or a
``Rejection`` of it. Prompts follow OSD's ``data/collector.py`` where it has the dataset.
"""

from __future__ import annotations

import itertools
import json
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from draftlab.core.settings import Template
from draftlab.data.conversations import first_request
from draftlab.data.fields import BadRow, Cleaned, Row, as_text, items_of, labels, mapping_of, maybe_text, text_of
from draftlab.data.formats import DETECT, detect
from draftlab.data.own_prompts import prompts
from draftlab.data.prompts import Prompt, Rejection
from draftlab.data.raw_rows import RawRow, excerpt
from draftlab.errors import UserError, first_line
from draftlab.files.registries import find, is_own

Cleaner = Callable[[Row], Cleaned]
SPIDER = (
    "Could you translate the following question into SQL. "
    "Please only generate SQL, don't include explanation in the answer. "
)
CODE = "Please generate code based on the following doc:\n"


def clean(
    dataset: str, split: str, rows: Iterable[RawRow], *, cleaner: Cleaner, max_chars: int
) -> Iterator[Prompt | Rejection]:
    """Yield a ``Prompt`` or a ``Rejection`` for each row, in order; ``gsm8k/train/00017`` is the row at index 17.

    The cleaner ``prompts`` is replaced by that of the format detected in each file. A prompt of more than ``max_chars``
    characters is rejected; 0 sets no limit.
    """
    pairs = _detected(rows) if cleaner is prompts else zip(rows, itertools.repeat(cleaner))
    for index, (raw, clean_row) in enumerate(pairs):
        try:
            if raw.problem is not None:
                raise BadRow(raw.problem)
            cleaned = clean_row(mapping_of(raw.row, "the row"))
            if not isinstance(cleaned, Cleaned):
                raise TypeError(f"it returned {type(cleaned).__name__}, not Cleaned")
            if not isinstance(cleaned.reference, str | None):
                raise TypeError(f"its reference is {type(cleaned.reference).__name__}, not text")
            prompt = Prompt(f"{dataset}/{split}/{index:05d}", dataset, split, **vars(cleaned))
            if 0 < max_chars < len(prompt.whole):
                raise BadRow(f"the prompt is longer than {max_chars} characters")
        except BadRow as reason:
            row = raw.row if isinstance(raw.row, str) else json.dumps(raw.row, default=repr)
            shown = f"{reason.detail}: {row}" if reason.detail else row
            yield Rejection(raw.file, raw.line, excerpt(str(reason)), excerpt(shown))
            continue
        except (UserError, MemoryError):
            raise
        except Exception as error:  # of a new cleaner
            place = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__}: {first_line(error)}"
            what = f"the cleaner of {dataset} failed on {raw.file}:{raw.line}: {fault}"
            remedy = "repair it, or raise BadRow to reject the row"
            raise UserError(what, file=place.filename, line=place.lineno, remedy=remedy) from error
        yield prompt


def _detected(rows: Iterable[RawRow]) -> Iterator[tuple[RawRow, Cleaner]]:
    """Pair each row with the cleaner of the format detected in its file."""
    for _, of_file in itertools.groupby(rows, key=lambda raw: raw.file):
        first = list(itertools.islice(of_file, DETECT))
        cleaner = CLEANERS[detect(first)]
        yield from ((raw, cleaner) for raw in itertools.chain(first, of_file))


def are_rendered(rows: Iterable[RawRow], template: Template) -> bool:
    """Whether most of a user's first prompts are in a chat template already, and ``template`` would change what the model reads.

    ``plain`` changes nothing where that has no special tokens.
    """
    first = itertools.islice(rows, DETECT)
    found = [
        record.has_special_template if template == "plain" else record.is_rendered
        for record in clean("prompts", "train", first, cleaner=prompts, max_chars=0)
        if isinstance(record, Prompt)
    ]
    return 2 * sum(found) > len(found)


def from_fields(prompt: str, reference: str, *, prefix: str = "", context: str = "", labelled: bool = False) -> Cleaner:
    """A cleaner for rows that hold prompt and reference as text.

    ``prompt`` and ``reference`` are field names, separated by spaces; the first that a row has is read. ``prefix`` precedes
    the prompt, and the field ``context``, if it is not empty, follows it. ``labelled`` rows may have labels for a stream.
    """

    def cleaner(row: Row) -> Cleaned:
        text = prefix + text_of(row, *prompt.split())
        given = maybe_text(row, context) if context else None
        return Cleaned(
            f"{text}\n{given}" if given else text, maybe_text(row, *reference.split()), labels(row) if labelled else {}
        )

    return cleaner


spider = from_fields("question", "query", prefix=SPIDER)
alpaca = from_fields("instruction", "output", context="input")
mbpp = from_fields("text prompt", "code")  # the full configuration has ``text``, the sanitized one ``prompt``


def spider_schema(row: Row) -> Cleaned:
    """As ``spider``, with the tables and columns of the database."""
    plain = spider(row)
    return Cleaned(f"{plain.text}\nTables: {text_of(row, 'db_schema')}", plain.reference)


def mgsm(row: Row) -> Cleaned:
    """The question; the reference is the number of the answer, which is text in the original files and a number on the hub."""
    number = row.get("answer_number")
    if isinstance(number, int | float) and not isinstance(number, bool):
        row = {**row, "answer_number": str(number)}
    return from_fields("question", "answer_number answer", labelled=True)(row)


def piqa(row: Row) -> Cleaned:
    """The goal; the reference is the right one of the two solutions, if the row has a label."""
    label = row.get("label")
    known = isinstance(label, int) and not isinstance(label, bool) and label in (0, 1)
    return Cleaned(text_of(row, "goal"), maybe_text(row, f"sol{label + 1}") if known else None)  # type: ignore[operator]


PIECE = re.compile(r"\s*\S+")


def starcoder(row: Row) -> Cleaned:
    """Words 100 to 150 of a file; the rest is the reference. OSD counts tokens of a tokenizer that is not public."""
    pieces = PIECE.findall(text_of(row, "content"))
    if len(pieces) <= 150:
        raise BadRow("no more than 150 words")
    return Cleaned("".join(pieces[100:150]).strip(), "".join(pieces[150:]).strip())


def wmt16(row: Row) -> Cleaned:
    """T5's prefix and the English side."""
    pair = mapping_of(row.get("translation"), "translation")
    return Cleaned(f"translate English to German: {text_of(pair, 'en')}", maybe_text(pair, "de"))


def humaneval(row: Row) -> Cleaned:
    """The head of the function with the newlines around it; the body keeps the indentation of its first line."""
    body = maybe_text(row, "canonical_solution")
    text_of(row, "prompt")
    return Cleaned(row["prompt"], body and row["canonical_solution"].strip("\r\n").rstrip())


def tatqa(row: Row) -> Cleaned:
    """The table, the paragraphs and the first question."""
    table = items_of(mapping_of(row.get("table"), "table"), "table")
    if not all(isinstance(line, list) for line in table):
        raise BadRow("a line of the table is not a list")
    lines = [" | ".join(cell if isinstance(cell, str) else str(cell) for cell in line) for line in table]
    paragraphs = [text_of(mapping_of(p, "a paragraph"), "text") for p in items_of(row, "paragraphs")]
    asked = mapping_of(items_of(row, "questions")[0], "a question")
    answer = asked.get("answer")
    shown = ", ".join(map(str, answer)) if isinstance(answer, list) else str(answer)
    context = as_text("\n".join([*lines, *paragraphs]), "table")
    return Cleaned(f"{context}\n{text_of(asked, 'question')}", as_text(shown, "answer") if answer else None)


def arena(row: Row) -> Cleaned:
    """The first request of a conversation, with the row's labels."""
    return _first_request(row, "conversation", "conversation_a")


LATER = re.compile(r"[A-Za-z0-9]{7}_[1-9][0-9]*")
"""The id of a row of ShareGPT that goes on with a conversation: the conversation's, and the number of the row's first message in it."""


def sharegpt(row: Row) -> Cleaned:
    """As ``arena``, under the field names of ShareGPT, whose long conversations were cut into several rows: only the first has the first request."""
    name = row.get("id")
    if isinstance(name, str) and LATER.fullmatch(name):
        raise BadRow("a later part of a conversation")
    return _sharegpt(row)


def _sharegpt(row: Row) -> Cleaned:
    return _first_request(row, "conversations", "messages", "conversation")


def _first_request(row: Row, *names: str) -> Cleaned:
    request = first_request(next((row[name] for name in names if name in row), None))
    return replace(request, meta={**request.meta, **labels(row)})


def mt_bench(row: Row) -> Cleaned:
    """The first turn; the category is the topic."""
    turns = items_of(row, "turns", "prompt")
    answer = row.get("reference")
    while isinstance(answer, list):  # Spec-Bench nests them
        answer = answer[0] if answer else None
    text = as_text(answer, "reference") if isinstance(answer, str) and answer.strip() else None
    return Cleaned(as_text(turns[0], "the first turn"), text, {"turns": len(turns), **labels(row)})


def oasst(row: Row) -> Cleaned:
    """The message that opens a conversation, alone or with the replies below it; the first reply is the reference."""
    row = row["prompt"] if isinstance(row.get("prompt"), Mapping) else row
    if row.get("parent_id") is not None or row.get("role") not in (None, "prompter"):
        raise BadRow("a reply, not the start of a conversation")
    replies = row.get("replies")
    reply = replies[0] if isinstance(replies, list) and replies and isinstance(replies[0], Mapping) else {}
    return Cleaned(text_of(row, "text"), maybe_text(reply, "text"), labels(row))


def arena_hard(row: Row) -> Cleaned:
    """The prompt; the cluster is the topic."""
    cluster = maybe_text(row, "cluster")
    return Cleaned(text_of(row, "prompt"), None, labels(row) | ({"topic": cluster} if cluster else {}))


def self_instruct(row: Row) -> Cleaned:
    """The instruction with the first instance's input."""
    instance = mapping_of(items_of(row, "instances")[0], "an instance")
    return alpaca({**instance, "instruction": row.get("instruction")})


CLEANERS: dict[str, Cleaner] = {
    "spider": spider,
    "spider_schema": spider_schema,
    "gsm8k": from_fields("question", "answer"),
    "code_search_net": from_fields("func_documentation_string docstring", "func_code_string code", prefix=CODE),
    "finance_alpaca": alpaca,
    "piqa": piqa,
    "starcoder": starcoder,
    "arena": arena,
    "lmsys_chat_1m": arena,
    "cnn_dailymail": from_fields("article", "highlights", prefix="summarize: "),  # T5's prefix
    "xsum": from_fields("document", "summary", prefix="summarize: "),
    "sharegpt": sharegpt,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "mbpp_sanitized": mbpp,
    "wmt16": wmt16,
    "dolly": from_fields("instruction", "response", context="context", labelled=True),
    "alpaca": alpaca,
    "mt_bench": mt_bench,
    "spec_bench": mt_bench,
    "oasst": oasst,
    "arena_hard": arena_hard,
    "mgsm": mgsm,
    "self_instruct": self_instruct,
    "tatqa": tatqa,
    "prompts": prompts,
}
OSD_REPO_CLEANERS = CLEANERS | {"finance_alpaca": from_fields("instruction", "output"), "sharegpt": _sharegpt}


def cleaner_of(name: str, known: Mapping[str, Cleaner] = CLEANERS) -> Cleaner:
    """The cleaner of a dataset, or the user's own ``FILE.py:OBJECT``."""
    if name not in known and not is_own(name):
        raise UserError(f"no cleaner for the dataset {name}", remedy="add its line to CLEANERS in data/cleaners.py")
    return find(name, known, ("row",))
