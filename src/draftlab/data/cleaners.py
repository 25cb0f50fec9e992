"""Raw rows to prompts: one function per dataset, for generated and real raw rows alike.

A cleaner takes a row and returns what it says, or raises ``BadRow`` with the reason; ``clean`` turns that into a
``Prompt`` or a ``Rejection``. Prompts follow OSD's ``data/collector.py`` where it has the dataset.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from draftlab.data.conversations import answered, first_request
from draftlab.data.fields import BadRow, Cleaned, Row, as_text, items_of, labels, mapping_of, maybe_text, text_of
from draftlab.data.formats import ANSWER_FIELDS, CONVERSATION_FIELDS, DETECT, PROMPT_FIELDS, RETRIEVED, detect
from draftlab.data.prompts import Prompt, Rejection
from draftlab.data.readers import RawRow, excerpt

# --- the four datasets of OSD ------------------------------------------------------------------------------------

SPIDER_INSTRUCTION = (
    "Could you translate the following question into SQL. "
    "Please only generate SQL, don't include explanation in the answer. "
)


def spider(row: Row) -> Cleaned:
    """The repository's instruction and the question, without the schema."""
    return Cleaned(SPIDER_INSTRUCTION + text_of(row, "question"), maybe_text(row, "query"))


def spider_schema(row: Row) -> Cleaned:
    """As ``spider``, with the tables and columns of the database."""
    plain = spider(row)
    return Cleaned(f"{plain.text}\nTables: {text_of(row, 'db_schema')}", plain.reference)


def gsm8k(row: Row) -> Cleaned:
    """The question."""
    return Cleaned(text_of(row, "question"), maybe_text(row, "answer"))


def code_search_net(row: Row) -> Cleaned:
    """The repository's instruction and the docstring, from the hub's or from the raw files' field names."""
    doc = text_of(row, "func_documentation_string", "docstring")
    code = maybe_text(row, "func_code_string", "code")
    return Cleaned(f"Please generate code based on the following doc:\n{doc}", code)


def alpaca(row: Row) -> Cleaned:
    """The instruction, then the input where there is one."""
    return Cleaned(_lines(text_of(row, "instruction"), maybe_text(row, "input")), maybe_text(row, "output"))


def _lines(text: str, given: str | None) -> str:
    return f"{text}\n{given}" if given else text


def finance_alpaca_osd(row: Row) -> Cleaned:
    """The instruction alone, as OSD's repository has it."""
    return Cleaned(text_of(row, "instruction"), maybe_text(row, "output"))


# --- other tasks -------------------------------------------------------------------------------------------------


def piqa(row: Row) -> Cleaned:
    """The goal; the reference is the right one of the two solutions, where the label is known."""
    label = row.get("label")
    known = isinstance(label, int) and not isinstance(label, bool) and label in (0, 1)
    return Cleaned(text_of(row, "goal"), maybe_text(row, f"sol{label + 1}") if known else None)  # type: ignore[operator]


PIECE = re.compile(r"\s*\S+")


def starcoder(row: Row) -> Cleaned:
    """Words 100 to 150 of the file; the rest is the reference. (OSD counts tokens of a tokenizer that is not public.)"""
    pieces = PIECE.findall(text_of(row, "content"))
    if len(pieces) <= 150:
        raise BadRow("no more than 150 words")
    return Cleaned("".join(pieces[100:150]).strip(), "".join(pieces[150:]).strip())


def cnn_dailymail(row: Row) -> Cleaned:
    """T5's prefix and the article."""
    return Cleaned(f"summarize: {text_of(row, 'article')}", maybe_text(row, "highlights"))


def xsum(row: Row) -> Cleaned:
    """T5's prefix and the document."""
    return Cleaned(f"summarize: {text_of(row, 'document')}", maybe_text(row, "summary"))


def wmt16(row: Row) -> Cleaned:
    """T5's prefix and the English side."""
    pair = mapping_of(row.get("translation"), "translation")
    return Cleaned(f"translate English to German: {text_of(pair, 'en')}", maybe_text(pair, "de"))


def humaneval(row: Row) -> Cleaned:
    """The head of the function with the newlines around it; the body keeps the indentation of its first line."""
    body = maybe_text(row, "canonical_solution")
    text_of(row, "prompt")
    return Cleaned(row["prompt"], body and row["canonical_solution"].strip("\r\n").rstrip())


def mbpp(row: Row) -> Cleaned:
    """The task in one sentence; ``prompt`` in the sanitized configuration, ``text`` in the full one."""
    return Cleaned(text_of(row, "text", "prompt"), maybe_text(row, "code"))


def mgsm(row: Row) -> Cleaned:
    """The question."""
    return Cleaned(text_of(row, "question"), maybe_text(row, "answer_number", "answer"), labels(row))


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


# --- chats and instructions --------------------------------------------------------------------------------------


def arena(row: Row) -> Cleaned:
    """What the user says first; language, time and model come along."""
    request = first_request(row.get("conversation", row.get("conversation_a")))
    return Cleaned(request.text, request.reference, {**request.meta, **labels(row)})


def sharegpt(row: Row) -> Cleaned:
    """What the user says first, in ``from``/``value`` or ``role``/``content``."""
    request = first_request(row.get("conversations", row.get("messages", row.get("conversation"))))
    return Cleaned(request.text, request.reference, {**request.meta, **labels(row)})


def dolly(row: Row) -> Cleaned:
    """The instruction, then the context where there is one."""
    text = _lines(text_of(row, "instruction"), maybe_text(row, "context"))
    return Cleaned(text, maybe_text(row, "response"), labels(row))


def mt_bench(row: Row) -> Cleaned:
    """The first turn; the category is the topic."""
    turns = items_of(row, "turns", "prompt")
    answer = row.get("reference")
    while isinstance(answer, list):  # Spec-Bench nests them
        answer = answer[0] if answer else None
    text = as_text(answer, "reference") if isinstance(answer, str) and answer.strip() else None
    return Cleaned(as_text(turns[0], "the first turn"), text, {"turns": len(turns), **labels(row)})


def oasst(row: Row) -> Cleaned:
    """A message that opens a conversation, or the tree below one; replies are rejected, the first one below it is the reference."""
    row = row["prompt"] if isinstance(row.get("prompt"), Mapping) else row
    if row.get("parent_id") is not None or row.get("role") not in (None, "prompter"):
        raise BadRow("a reply, not the start of a conversation")
    replies = row.get("replies")
    reply = replies[0] if isinstance(replies, list) and replies and isinstance(replies[0], Mapping) else {}
    return Cleaned(text_of(row, "text"), maybe_text(reply, "text"), labels(row))


def arena_hard(row: Row) -> Cleaned:
    """The prompt; the cluster is the topic."""
    found = labels(row)
    cluster = maybe_text(row, "cluster")
    return Cleaned(text_of(row, "prompt"), None, {**found, "topic": cluster} if cluster else found)


def self_instruct(row: Row) -> Cleaned:
    """The instruction with the first instance's input."""
    instance = mapping_of(items_of(row, "instances")[0], "an instance")
    return alpaca({**instance, "instruction": row.get("instruction")})


def prompts(row: Row) -> Cleaned:
    """A user's own traffic: a prompt under a usual name, a list of turns, a conversation, or a server's log of requests."""
    row = {**row, **next((row[name] for name in ("request", "body") if isinstance(row.get(name), Mapping)), {})}
    for name in CONVERSATION_FIELDS:
        if row.get(name):
            request = first_request(row[name])
            return Cleaned(request.text, request.reference or answered(row), {**request.meta, **labels(row)})
    for name in ("turns", *PROMPT_FIELDS):
        if isinstance(row.get(name), list):
            return Cleaned(as_text(items_of(row, name)[0], name), None, labels(row))
    text = text_of(row, *PROMPT_FIELDS)
    given = maybe_text(row, "input", "context") if "instruction" in row else None
    if found := next((row[name] for name in RETRIEVED if row.get(name)), None):
        text = f"{_passages(found)}\n\n{text}"
    answer = next(
        (a for name in ANSWER_FIELDS if isinstance(row.get(name), str) and (a := maybe_text(row, name))), None
    )
    return Cleaned(_lines(text, given), answer, labels(row))


def _passages(found: object) -> str:
    """The passages retrieved for a question: a text, a list of texts, or a list of objects with a text."""
    items = found if isinstance(found, list) else [found]
    texts = [
        text_of(item, "text", "contents", "content", "passage") if isinstance(item, Mapping) else item for item in items
    ]
    return "\n\n".join(as_text(text, "a retrieved passage") for text in texts)


Cleaner = Callable[[Row], Cleaned]
CLEANERS: dict[str, Cleaner] = {
    "spider": spider,
    "spider_schema": spider_schema,
    "gsm8k": gsm8k,
    "code_search_net": code_search_net,
    "finance_alpaca": alpaca,
    "piqa": piqa,
    "starcoder": starcoder,
    "arena": arena,
    "lmsys_chat_1m": arena,
    "cnn_dailymail": cnn_dailymail,
    "xsum": xsum,
    "sharegpt": sharegpt,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "mbpp_sanitized": mbpp,
    "wmt16": wmt16,
    "dolly": dolly,
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
OSD_REPO_CLEANERS = CLEANERS | {"finance_alpaca": finance_alpaca_osd}


def clean(
    dataset: str, split: str, rows: Iterable[RawRow], *, cleaner: Cleaner, max_chars: int
) -> Iterator[Prompt | Rejection]:
    """A ``Prompt`` or a ``Rejection`` for each row, in order; ``gsm8k/train/00017`` is the row at index 17.

    The cleaner ``prompts`` makes way for the one of what each file is taken for. A prompt of more than ``max_chars``
    characters is rejected; 0 sets no limit.
    """
    pairs = _detected(rows) if cleaner is prompts else zip(rows, itertools.repeat(cleaner))
    for index, (raw, clean_row) in enumerate(pairs):
        try:
            if raw.problem is not None:
                raise BadRow(raw.problem)
            cleaned = clean_row(mapping_of(raw.row, "the row"))
            if 0 < max_chars < len(cleaned.text):
                raise BadRow(f"the prompt is longer than {max_chars} characters")
        except BadRow as reason:
            row = raw.row if isinstance(raw.row, str) else json.dumps(raw.row, default=repr)
            shown = f"{reason.detail}: {row}" if reason.detail else row
            yield Rejection(raw.file, raw.line, excerpt(str(reason)), excerpt(shown))
            continue
        yield Prompt(f"{dataset}/{split}/{index:05d}", dataset, split, cleaned.text, cleaned.reference, cleaned.meta)


def _detected(rows: Iterable[RawRow]) -> Iterator[tuple[RawRow, Cleaner]]:
    """Apply to the rows of a file the cleaner of the format that the file was detected to have."""
    for _, of_file in itertools.groupby(rows, key=lambda raw: raw.file):
        first = list(itertools.islice(of_file, DETECT))
        cleaner = CLEANERS[detect(first)]
        yield from ((raw, cleaner) for raw in itertools.chain(first, of_file))
