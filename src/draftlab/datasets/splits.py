"""A dataset's train and eval prompts from its raw rows, with every row that was left out counted."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import heapq
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from draftlab import records
from draftlab.datasets import cleaners, registry
from draftlab.datasets.readers import RawRow
from draftlab.datasets.sources import DatasetSource, SourceName, open_source
from draftlab.errors import UserError
from draftlab.records import Prompt, Rejection

Profile = Literal["clean", "osd_repo_2024"]
OnBadRow = Literal["keep", "stop"]
OSD_LIMIT = 10_000  # OSD's collector reads back the first 10,000 rows of a split


@dataclass(frozen=True)
class Options:
    """How to split: ``train`` and ``eval`` bound the numbers of prompts (0: all), ``max_chars`` a prompt's length.

    ``on_bad_row``: ``keep`` the good rows and list the bad ones, or ``stop`` at the first bad one.
    """

    train: int = 0
    eval: int = 200
    seed: int = 0
    profile: Profile = "clean"
    on_bad_row: OnBadRow = "keep"
    max_chars: int = 100_000


@dataclass
class Counts:
    """What became of the rows of one split; duplicates and overlap are left out, or kept in ``osd_repo_2024``."""

    read: int = 0
    kept: int = 0
    held_out: int = 0
    duplicates: int = 0
    overlap: int = 0
    rejected: Counter[str] = field(default_factory=Counter)


def make(dataset: str, source: DatasetSource, out: Path, options: Options) -> dict[str, Any]:
    """Write ``prompts.jsonl``, ``eval.jsonl``, ``rejected.jsonl`` and ``summary.json`` into ``out``; return the summary.

    ``clean``: no prompt twice, none on both sides; the eval prompts are a random sample that the seed fixes.
    ``osd_repo_2024``: the first 10,000 rows of a split, duplicates and leaks kept; a sample for eval, or the first rows.
    A dataset without an eval split has its eval prompts held out of train. Memory holds the eval prompts and a digest
    of each train prompt.
    """
    clean = options.profile == "clean"
    single = next(source.rows("eval"), None) is None
    counts = {"train": Counts(), "eval": Counts()}
    with contextlib.ExitStack() as stack:
        files = {
            n: stack.enter_context(records.atomic_path(out / f"{n}.jsonl")) for n in ("prompts", "eval", "rejected")
        }
        sink = stack.enter_context(files["rejected"].open("w", encoding="utf-8"))

        def prompts(split: str, rows: Iterator[RawRow], sink: IO[str] | None) -> Iterator[Prompt]:
            limited = itertools.islice(rows, None if clean else OSD_LIMIT)
            table = cleaners.CLEANERS if clean else cleaners.OSD_REPO_CLEANERS
            cleaned = cleaners.clean(dataset, split, limited, cleaner=table[dataset], max_chars=options.max_chars)
            return _kept(cleaned, counts[split], sink, options.on_bad_row)

        candidates = _distinct(
            prompts("eval", source.rows("train" if single else "eval"), sink), counts["eval"], set(), clean
        )
        if single and not clean:
            chosen = list(itertools.islice(candidates, options.eval or None))
        else:
            chosen = _sample(candidates, options.eval, lambda p: f"{options.seed}/{p.text if clean else p.id}")
        held_out = {_index(p) for p in chosen} if single else set()

        # A single split was read, and its bad rows listed, when the eval prompts were chosen.
        train = prompts("train", source.rows("train"), None if single else sink)
        rest = _without(train, held_out, counts["train"])
        taken = {digest(p.text) for p in chosen}
        distinct = _distinct(rest, counts["train"], taken, clean)
        counts["train"].kept = records.write_jsonl(files["prompts"], itertools.islice(distinct, options.train or None))
        counts["eval"].kept = records.write_jsonl(files["eval"], chosen)
        if not counts["train"].kept:
            raise UserError(f"no usable row in {dataset}", remedy="see what was read: draftlab data check FILE")
    summary = {
        "dataset": dataset,
        **dataclasses.asdict(options),
        "counts": {split: dataclasses.asdict(count) for split, count in counts.items()},
        "provenance": {split: source.provenance(split) for split in ("train", "eval")},
    }
    records.write_json(out / "summary.json", summary)
    return summary


def make_from(dataset: str, source: SourceName, *, raw: Path | None, out: Path, options: Options) -> dict[str, Any]:
    """``make`` from a source by name; a generator draws as many rows as ``options`` asks for."""
    train_rows = options.train if registry.find(dataset).eval else options.train + options.eval
    opened = open_source(dataset, source, raw=raw, train_rows=train_rows, eval_rows=options.eval, seed=options.seed)
    return make(dataset, opened, out, options)


def digest(text: str) -> int:
    """Eight bytes that stand for a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _index(prompt: Prompt) -> int:
    return int(prompt.id.rsplit("/", 1)[1])


def _kept(
    cleaned: Iterable[Prompt | Rejection], counts: Counts, sink: IO[str] | None, on_bad_row: OnBadRow
) -> Iterator[Prompt]:
    for record in cleaned:
        counts.read += 1
        if isinstance(record, Prompt):
            yield record
            continue
        if on_bad_row == "stop":
            raise UserError(record.reason, file=record.file, line=record.line, remedy="repair it, or on_bad_row: keep")
        counts.rejected[record.reason] += 1
        if sink is not None:
            sink.write(json.dumps(dataclasses.asdict(record)) + "\n")


def _without(prompts: Iterable[Prompt], held_out: set[int], counts: Counts) -> Iterator[Prompt]:
    for prompt in prompts:
        if _index(prompt) in held_out:
            counts.held_out += 1
        else:
            yield prompt


def _distinct(prompts: Iterable[Prompt], counts: Counts, taken: set[int], drop: bool) -> Iterator[Prompt]:
    """Count prompts seen before and prompts in ``taken``, and leave them out when ``drop``."""
    seen: set[int] = set()
    for prompt in prompts:
        value = digest(prompt.text)
        counts.overlap += value in taken
        counts.duplicates += value in seen
        if not (drop and (value in taken or value in seen)):
            yield prompt
        seen.add(value)


def _sample(prompts: Iterable[Prompt], n: int, label: Any) -> list[Prompt]:
    """``n`` prompts drawn without replacement in one pass: those of the smallest digests; 0 keeps all."""
    if not n:
        return list(prompts)
    return sorted(heapq.nsmallest(n, prompts, key=lambda p: digest(label(p))), key=_index)
