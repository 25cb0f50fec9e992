"""Checks a user's file before a run on it: ``draftlab data check FILE``."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro
from tokenizers import pre_tokenizers

from draftlab.data import classify, cleaners, companions, formats, registry
from draftlab.data.cleaners import cleaner_of
from draftlab.data.conversations import CUT
from draftlab.data.prompts import Prompt, Rejection
from draftlab.data.raw_rows import excerpt
from draftlab.data.readers import read_rows
from draftlab.data.splits import Options, identity
from draftlab.errors import UserError
from draftlab.files.json_files import write_json
from draftlab.models.tokenizer import load_tokenizer

SAMPLE = 2000  # prompts whose language is detected
RENDERED = "template=rendered encodes them as they are; if most are, a run needs it"
SPECIALS = ("<s>", "</s>", "<pad>", "<unk>", "<|", "[INST]", "USER:", "ASSISTANT:")


@dataclass(frozen=True)
class Lengths:
    """Order statistics of a length."""

    smallest: int
    median: int
    p90: int
    largest: int


COUNTED: dict[str, Callable[[Prompt], bool]] = {
    "conversations": lambda prompt: len(prompt.messages) > 1,
    "cut": lambda prompt: CUT in prompt.meta,
    "results": lambda prompt: bool(prompt.messages[-1]["role"] == "tool"),
    "with_reasoning": lambda prompt: any("reasoning_content" in message for message in prompt.messages),
    "with_tools": lambda prompt: bool(prompt.tools),
    "with_template_options": lambda prompt: bool(prompt.template_options),
    "rendered": lambda prompt: prompt.is_rendered,
    "special_strings": lambda prompt: any(mark in prompt.whole for mark in SPECIALS),
}
"""What is counted of the prompts, by the name of its field in ``FileSummary``."""


@dataclass(frozen=True)
class FileSummary:
    """The contents of a file. ``conversations`` are prompts with messages before them, which the model reads too.

    Of all prompts, ``cut`` come before a message that cannot be read, ``results`` are the result of a tool, ``with_reasoning`` hold an assistant's
    reasoning, ``with_tools`` offer tools, and ``with_template_options`` set variables of the chat template. ``rendered`` prompts are in a chat template already.
    """

    file: str
    format: str
    read: int
    kept: int
    rejected: dict[str, int]
    first_rejected: dict[str, str]
    first_prompt: str
    conversations: int
    cut: int
    results: int
    with_reasoning: int
    with_tools: int
    with_template_options: int
    duplicates: int
    overlap: int | None
    references: int
    length_unit: str
    prompt_lengths: Lengths | None
    reference_lengths: Lengths | None
    special_strings: int
    rendered: int
    languages: dict[str, int]

    @property
    def usable(self) -> bool:
        """Whether a run can use the file: it needs one prompt to learn from and one to measure."""
        return self.kept - self.duplicates > 1


def check(
    file: Path,
    *,
    dataset: str | None = None,
    cleaner: str = "",
    tokenizer: Path | None = None,
    against: Path | None = None,
    max_chars: int = Options.max_chars,
) -> FileSummary:
    """Read a file once, in bounded memory, and count its prompts, and those that also are in the file ``against``.

    Without ``dataset``, or with ``prompts``, the format is detected, as in a run, unless there is a ``cleaner`` of the user's own,
    ``FILE.py:OBJECT``, which also reads ``against``. ``tokenizer`` is a model folder; without
    one, lengths are counted in the words and marks that GPT-2 splits text into.
    """
    if not (file.is_file() or file.is_fifo()):  # read_rows refuses a pipe
        what = "a folder, not a file" if file.is_dir() else "no such file"
        raise UserError(what, file=file, remedy="name a file of prompts")
    if max_chars < 0:
        raise UserError(f"--max-chars is {max_chars}", remedy="give 0 (any length) or more")
    detects = not cleaner and dataset in (None, "prompts")
    name = formats.detect(read_rows(file)) if detects else dataset or "prompts"
    others = _digests(against, cleaner, max_chars) if against else None
    unit, count = _counter(tokenizer)
    seen: set[int] = set()
    rejected: Counter[str] = Counter()
    first: dict[str, str] = {}
    first_prompt = ""
    read = duplicates = overlap = 0
    counts = dict.fromkeys(COUNTED, 0)
    lengths, reference_lengths, sample = array("I"), array("I"), list[str]()
    for record in _records(file, name, cleaner, max_chars):
        read += 1
        if isinstance(record, Rejection):
            rejected[record.reason] += 1
            first.setdefault(record.reason, f"line {record.line}: {record.row}")
            continue
        first_prompt = first_prompt or excerpt(record.text)
        for what, holds in COUNTED.items():
            counts[what] += holds(record)
        value = identity(record)
        duplicates += value in seen
        seen.add(value)
        overlap += others is not None and value in others
        lengths.append(count(record.whole))
        if record.reference is not None:
            reference_lengths.append(count(record.reference))
        if len(sample) < SAMPLE:
            sample.append(record.text)
    return FileSummary(
        file=str(file),
        format=cleaner or name,
        read=read,
        kept=len(lengths),
        rejected=dict(rejected),
        first_rejected=first,
        first_prompt=first_prompt,
        **counts,
        duplicates=duplicates,
        overlap=overlap if others is not None else None,
        references=len(reference_lengths),
        length_unit=unit,
        prompt_lengths=_lengths(lengths),
        reference_lengths=_lengths(reference_lengths),
        languages=dict(Counter(sorted(classify.languages(sample))).most_common()),
    )


def _records(file: Path, name: str, cleaner: str, max_chars: int) -> Iterator[Prompt | Rejection]:
    rows = companions.joined(file, registry.find(name))
    return cleaners.clean(name, "train", rows, cleaner=cleaner_of(cleaner or name), max_chars=max_chars)


def _digests(file: Path, cleaner: str, max_chars: int) -> set[int]:
    """The digests of the prompts in another file, in the format detected there, or as the user's own ``cleaner`` reads them."""
    name = "prompts" if cleaner else formats.detect(read_rows(file))
    records = _records(file, name, cleaner, max_chars)
    digests = {identity(record) for record in records if isinstance(record, Prompt)}
    if not digests:
        raise UserError("no prompt in the file to compare with", file=file, remedy="see why: draftlab data check FILE")
    return digests


def _counter(tokenizer: Path | None) -> tuple[str, Callable[[str], int]]:
    if tokenizer is None:
        split = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
        return "words and marks", lambda text: len(split(text))
    encode = load_tokenizer(tokenizer).encode
    return "tokens", lambda text: len(encode(text))


def _lengths(values: array[int]) -> Lengths | None:
    if not values:
        return None
    ordered = sorted(values)
    last = len(ordered) - 1
    return Lengths(ordered[0], ordered[last // 2], ordered[round(last * 0.9)], ordered[last])


def table(report: FileSummary) -> str:
    """The report as text, safe for a terminal."""

    def spread(lengths: Lengths | None) -> str:
        if lengths is None:
            return "none"
        return f"min {lengths.smallest}, median {lengths.median}, 90 % {lengths.p90}, max {lengths.largest}"

    of_conversations = {
        "after other messages": report.conversations,
        "before a message that cannot be read": report.cut,
        "the result of a tool": report.results,
        "with an assistant's reasoning": report.with_reasoning,
        "with tools to call": report.with_tools,
        "with options of the chat template": report.with_template_options,
    }
    lines: list[tuple[str, Any]] = [
        ("file", report.file),
        ("format", report.format),
        ("rows", report.read),
        ("prompts kept", report.kept),
        ("first prompt", report.first_prompt or "none"),
        *((name, count) for name, count in of_conversations.items() if count),
        ("with a reference", report.references or "0 (a run cannot train a target on them: give it target=MODEL)"),
        ("duplicates", report.duplicates),
        ("also in the other file", "not asked" if report.overlap is None else report.overlap),
        (f"prompt, {report.length_unit}", spread(report.prompt_lengths)),
        (f"reference, {report.length_unit}", spread(report.reference_lengths)),
        ("with special strings", f"{report.special_strings} (they stay text)"),
        *([("in a chat template already", f"{report.rendered} ({RENDERED})")] if report.rendered else []),
        (
            f"languages of the first {SAMPLE:,}" if report.kept > SAMPLE else "languages",
            ", ".join(f"{name} {count}" for name, count in report.languages.items()) or "none",
        ),
        ("rejected", sum(report.rejected.values())),
    ]
    lines += [
        (f"  {count} x", f"{reason}; {report.first_rejected[reason]}") for reason, count in report.rejected.items()
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {excerpt(str(value))}" for name, value in lines)


def check_file(
    file: tyro.conf.Positional[Path],
    *,
    dataset: str | None = None,
    cleaner: str = "",
    tokenizer: Path | None = None,
    against: Path | None = None,
    max_chars: int = Options.max_chars,
    out: Path | None = None,
) -> None:
    """Report a prompt file's format, and count rejected rows by reason, with an example of each; exit code 0 if the file can be used.

    **Arguments:**
    - `file`: the file of prompts
    - `dataset`: read the file in the format of this dataset, instead of detecting the format
    - `cleaner`: your own function of a row, FILE.py:OBJECT, in place of the format's
    - `tokenizer`: the folder of a model or tokenizer, to give lengths in tokens
    - `against`: another file of prompts: count the prompts that are in both
    - `max_chars`: most characters of a prompt; a longer one is rejected; 0: any length
    - `out`: a JSON file that gets the report too
    """
    report = check(file, dataset=dataset, cleaner=cleaner, tokenizer=tokenizer, against=against, max_chars=max_chars)
    print(table(report))
    if out is not None:
        write_json(out, {**asdict(report), "usable": report.usable})
    if not report.read:
        raise UserError("it has no rows", file=file, remedy="name a file of prompts")
    if not report.usable:
        remedy = "see the counts above" if report.kept else "see above; for a format of yours: --cleaner FILE.py:OBJECT"
        raise UserError("it has fewer than two different prompts", file=file, remedy=remedy)
