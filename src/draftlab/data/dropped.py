"""Counts what a run left out of its data: files of another kind, rows beyond its limit, rejected rows, repeated prompts, and unreadable ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftlab.data.prompts import Rejection
from draftlab.errors import printable
from draftlab.files.json_files import read_jsonl, read_object

UNREAD = "too long for {}, refused by its chat template, or without a token"


def lines(run: Path) -> Iterator[str]:
    """Yield a line with counts and reasons for each dataset of which something was left out, or one line if nothing was."""
    complete, summaries = True, sorted(run.glob("data/*/summary.json"))
    for summary in summaries:
        dataset = summary.parent.name
        parts = [part for split in ("train", "eval") if (part := _of_split(read_object(summary), split))]
        for answers in sorted(run.glob("*/answers")):
            if count := _unread(answers, f"{dataset}.*"):
                parts.append(f"{count} prompts {UNREAD.format(f'the target of {answers.parent.name}')}")
        if parts:
            complete = False
            rejected = summary.with_name("rejected.jsonl")
            kept = f" ({rejected})" if rejected.stat().st_size else ""
            yield printable(f"Dropped  {dataset}: {'; '.join(parts)}{kept}")
    if complete and summaries:
        yield "Dropped  nothing: every row gave a prompt, and the target can read every prompt"


def _of_split(summary: dict[str, Any], split: str) -> str:
    """What was left out of a split: files, rows that were not read, and rows that were; empty if nothing was."""
    counts, fetched = summary["counts"][split], summary["provenance"][split]
    parts = []
    if ignored := fetched.get("ignored"):
        parts.append(f"files of another kind ({len(ignored)}, such as {ignored[0]})")
    if fetched.get("more"):
        limit = "raw_rows of the scale; raise it with sizes=FILE"
        parts.append(f"only the first {fetched['rows']} rows of {split} were read ({limit})")
    rows = []
    if reasons := Counter(counts["rejected"]):
        listed = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        rows.append(f"{reasons.total()} rejected: {listed}")
    if summary["profile"] == "clean":  # the other profile keeps them
        rows += [f"{counts['duplicates']} duplicates"] if counts["duplicates"] else []
        rows += [f"{counts['overlap']} also in the other split"] if counts["overlap"] else []
    if rows:
        parts.append(f"of {counts['read']} rows of {split} {', '.join(rows)}")
    return "; ".join(parts)


def unread(run: Path) -> int:
    """The number of prompts of a run that the target of the main pair cannot read."""
    return _unread(run / "main" / "answers", "*")


def _unread(answers: Path, folders: str) -> int:
    """The number of prompts that have no answer at any temperature."""
    files = answers.glob(f"{folders}/rejected.jsonl")
    return len({rejection.row for file in files for rejection in read_jsonl(file, Rejection)})
