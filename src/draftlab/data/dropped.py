"""What a run left out of its data: rows that gave no prompt, prompts met before, prompts that no model has room for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from draftlab.data.prompts import Rejection
from draftlab.errors import printable
from draftlab.files.json_files import read_jsonl, read_object


def lines(run: Path) -> Iterator[str]:
    """One line for each dataset of a run that something was left out of, with counts and reasons; one that says so where nothing was."""
    none, summaries = True, sorted(run.glob("data/*/summary.json"))
    for summary in summaries:
        parts = [part for split in ("train", "eval") if (part := _of_split(read_object(summary), split))]
        parts += _too_long(run, summary.parent.name)
        if parts:
            none = False
            yield printable(
                f"Dropped  {summary.parent.name}: {'; '.join(parts)} ({summary.with_name('rejected.jsonl')})"
            )
    if none and summaries:
        yield "Dropped  nothing: every row gave a prompt, and every prompt fits the context"


def _of_split(summary: dict[str, Any], split: str) -> str:
    counts = summary["counts"][split]
    reasons = Counter(counts["rejected"])
    parts = []
    if reasons:
        listed = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        parts.append(f"{reasons.total()} rejected: {listed}")
    if summary["profile"] == "clean":  # the other one keeps them
        parts += [f"{counts['duplicates']} duplicates"] if counts["duplicates"] else []
        parts += [f"{counts['overlap']} also in the other split"] if counts["overlap"] else []
    return f"of {counts['read']} rows of {split} {', '.join(parts)}" if parts else ""


def too_long(run: Path, pair: str = "main") -> int:
    """Prompts of a run that the target of a pair has no room for."""
    files = (run / pair / "answers").glob("*/rejected.jsonl")
    return len({rejection.row for file in files for rejection in read_jsonl(file, Rejection)})


def _too_long(run: Path, dataset: str) -> Iterator[str]:
    """The prompts that are too long for a pair's target, at any temperature."""
    for answers in sorted(run.glob("*/answers")):
        files = answers.glob(f"{dataset}.*/rejected.jsonl")
        ids = {rejection.row for file in files for rejection in read_jsonl(file, Rejection)}
        if ids:
            yield f"{len(ids)} prompts too long for the target of {answers.parent.name}"
