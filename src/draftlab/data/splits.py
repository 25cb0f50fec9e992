"""Makes train and eval prompts from a dataset's raw rows, and counts the rows that are left out."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import heapq
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from draftlab.core.settings import Flat
from draftlab.data import cleaners, registry
from draftlab.data.continuations import requests_in
from draftlab.data.prompts import Prompt, Rejection
from draftlab.data.raw_rows import RawRow
from draftlab.data.sources import DatasetSource, SourceName, open_source
from draftlab.errors import UserError
from draftlab.files.atomic import SEAL, atomic_path
from draftlab.files.json_files import object_in, read_jsonl, write_json, write_jsonl
from draftlab.files.seals import seal

Profile = Literal["clean", "osd_repo_2024"]
OnBadRow = Literal["keep", "stop"]
OSD_LIMIT = 10_000  # OSD's collector reads back the first 10,000 rows of a split


@dataclass(frozen=True)
class Options:
    """Which prompts are kept. The comments are the help of the flags."""

    train: int = 0  # most prompts of the stream; 0: all
    eval: int = 200  # most held-out prompts, at most half of the train split if there is no other; 0: all
    seed: int = 0  # seed of the generator, and of the choice of held-out prompts
    # clean: no duplicates, and no conversation in both splits; osd_repo_2024: the first rows, as OSD's repository takes them
    profile: Profile = "clean"
    on_bad_row: OnBadRow = "keep"  # keep: keep the good rows and list the bad ones; stop: stop at the first bad one
    max_chars: int = 100_000  # most characters of a prompt; a longer one is rejected; 0: any length
    # JSON: variables for the target's chat template, such as {"enable_thinking": false}; those of a request prevail
    template_options: str = "{}"
    cleaner: str = ""  # your own cleaner, FILE.py:OBJECT, in place of the dataset's

    def __post_init__(self) -> None:
        if min(self.train, self.eval, self.max_chars) < 0:
            raise UserError(
                f"train {self.train}, eval {self.eval} or max_chars {self.max_chars} is less than 0",
                remedy="give 0 (all) or more",
            )


@dataclass
class SplitCounts:
    """Counts of one split. Duplicates and overlap are left out, or kept in ``osd_repo_2024``.

    ``held_out`` rows of train became eval prompts; their duplicates and rejections count under train.
    """

    read: int = 0
    kept: int = 0
    held_out: int = 0
    duplicates: int = 0
    overlap: int = 0
    rejected: dict[str, int] = field(default_factory=dict)


def make(dataset: str, source: DatasetSource, out: Path, options: Options) -> dict[str, Any]:
    """Write ``prompts.jsonl``, ``eval.jsonl``, ``rejected.jsonl`` and ``summary.json`` into ``out``; return the summary.

    ``clean``: no prompt occurs twice, no conversation is in both splits, and the eval prompts are a random sample by seed.
    ``osd_repo_2024``: the first 10,000 rows of a split, with duplicates and leaks; eval is a sample, or the first rows.
    Without an eval split, eval prompts are held out of train, at most half of its prompts. Only the eval prompts and a digest
    of each train prompt are held in memory.
    """
    clean = options.profile == "clean"
    cleaner = cleaners.cleaner_of(
        options.cleaner or dataset, cleaners.CLEANERS if clean else cleaners.OSD_REPO_CLEANERS
    )
    given = object_in(options.template_options, "template_options", '{"enable_thinking": false}')
    single = next(source.rows("eval"), None) is None
    train, evaluation = SplitCounts(), SplitCounts()
    with contextlib.ExitStack() as stack:
        names = ("prompts.jsonl", "eval.jsonl", "rejected.jsonl")
        prompts_file, eval_file, rejected_file = (stack.enter_context(atomic_path(out / n)) for n in names)
        sink = stack.enter_context(rejected_file.open("w", encoding="utf-8"))

        def prompts(split: str, rows: Iterator[RawRow], counts: SplitCounts, known: int = 0) -> Iterator[Prompt]:
            limited = itertools.islice(rows, None if clean else OSD_LIMIT)
            cleaned = cleaners.clean(dataset, split, limited, cleaner=cleaner, max_chars=options.max_chars)
            kept = _kept(cleaned, counts, options.on_bad_row, sink, known)
            return (dataclasses.replace(prompt, template_options=given | prompt.template_options) for prompt in kept)

        candidates = prompts("eval", source.rows("train" if single else "eval"), evaluation)
        chosen = _choose(_distinct(candidates, evaluation, [], clean), evaluation, single, options)
        known = evaluation.read if single else 0
        evaluation = SplitCounts(kept=len(chosen)) if single else dataclasses.replace(evaluation, kept=len(chosen))
        held_out = {_index(prompt) for prompt in chosen} if single else set()
        rest = _without(prompts("train", source.rows("train"), train, known), held_out, train)
        distinct = _distinct(rest, train, chosen, clean)
        write_jsonl(prompts_file, itertools.islice(distinct, options.train or None))
        write_jsonl(eval_file, chosen)
        sink.flush()
        if not train.kept or (options.eval and not chosen):
            raise _too_few(dataset, train, len(chosen), rejected_file)
        (out / SEAL).unlink(missing_ok=True)  # another run that starts now would take the new files for damaged
    summary = {
        "dataset": dataset,
        **dataclasses.asdict(options),
        "counts": {"train": dataclasses.asdict(train), "eval": dataclasses.asdict(evaluation)},
        "provenance": {"train": source.provenance("train"), "eval": source.provenance("eval")},
    }
    write_json(out / "summary.json", summary)
    seal(out, ["prompts.jsonl", "eval.jsonl", "rejected.jsonl", "summary.json"])
    return summary


def _too_few(dataset: str, train: SplitCounts, chosen: int, rejected: Path) -> UserError:
    """The error for a dataset with too few prompts: the number of its rows, and the first rejection."""
    first = next(read_jsonl(rejected, Rejection), None)
    usable = train.kept + train.held_out + train.overlap
    others = f", {train.overlap} more are of the same conversations" if train.overlap else ""
    what = f"{usable} usable rows of {train.read} in {dataset}, {chosen} of them held out{others}: a run needs one to learn from and one to measure"
    if first is None:
        return UserError(what, remedy="give more rows, or eval 0")
    why = f"the first rejected row: {first.reason}: {first.row}"
    return UserError(f"{what}; {why}", file=first.file, line=first.line, remedy="see all: draftlab data check FILE")


def make_from(
    dataset: str, source: SourceName = "generator", *, raw: Path | None = None, out: Path, options: Flat[Options]
) -> dict[str, Any]:
    """Write a dataset's prompts, held-out prompts, rejected rows and a summary; a generator draws as many rows as are requested.

    **Arguments:**
    - `dataset`: the name of the dataset, as in workflow/datasets.csv
    - `source`: where rows come from. generator: written from templates; raw: files of the dataset below --raw; hub: the Hugging Face hub;
      fetched: files that draftlab data fetch wrote below --raw
    - `raw`: the folder for the sources raw and fetched
    - `out`: the folder to write
    """
    train_rows = options.train if registry.find(dataset).eval else options.train + options.eval
    opened = open_source(dataset, source, raw=raw, train_rows=train_rows, eval_rows=options.eval, seed=options.seed)
    summary = make(dataset, opened, out, options)
    for split, counts in summary["counts"].items():
        origin = f"of {counts['read']} rows" if counts["read"] else "held out of train"
        rejected = sum(counts["rejected"].values())
        print(
            f"{dataset} {split}: {counts['kept']} prompts {origin}, {rejected} rejected, "
            f"{counts['duplicates']} duplicates, {counts['overlap']} in both splits"
        )
    return summary


def digest(text: str) -> int:
    """A digest of a text in eight bytes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def identity(prompt: Prompt) -> int:
    """The digest by which prompts are the same; space around them does not count, because many chat templates remove it."""
    return digest(prompt.whole.strip())


def _index(prompt: Prompt) -> int:
    """The index of a prompt's row in its split."""
    return int(prompt.id.rsplit("/", 1)[1])


def _choose(candidates: Iterable[Prompt], counts: SplitCounts, single: bool, options: Options) -> list[Prompt]:
    """Choose the eval prompts, in the order of their rows: the smallest digests, or the first rows as in OSD's script."""
    clean = options.profile == "clean"
    if single and not clean:
        first = list(itertools.islice(candidates, 2 * options.eval or None))
        return first[: min(options.eval or len(first), len(first) // 2)]

    def rank(prompt: Prompt) -> tuple[int, ...]:
        def drawn(text: str) -> int:
            return digest(f"{options.seed}/{text}")

        if not clean:
            return (drawn(prompt.id),)
        # A conversation's requests stay together. The first comes last: train could continue it, because it excludes nothing.
        return drawn(prompt.opening), len(requests_in(prompt.messages)) == 1, drawn(prompt.whole)

    ranked = heapq.nsmallest(options.eval, candidates, key=rank) if options.eval else sorted(candidates, key=rank)
    return sorted(ranked[: counts.kept // 2] if single else ranked, key=_index)


def _kept(
    cleaned: Iterable[Prompt | Rejection], counts: SplitCounts, on_bad_row: OnBadRow, sink: IO[str], known: int
) -> Iterator[Prompt]:
    """Yield the prompts; count rejections, and write all but those of the first ``known`` rows."""
    for record in cleaned:
        counts.read += 1
        if isinstance(record, Prompt):
            yield record
            continue
        if on_bad_row == "stop":
            what = ": ".join(filter(None, (record.reason, record.row)))
            raise UserError(what, file=record.file, line=record.line, remedy="repair the row, or set on_bad_row: keep")
        counts.rejected[record.reason] = counts.rejected.get(record.reason, 0) + 1
        if counts.read > known:
            sink.write(json.dumps(dataclasses.asdict(record)) + "\n")


def _without(prompts: Iterable[Prompt], held_out: set[int], counts: SplitCounts) -> Iterator[Prompt]:
    for prompt in prompts:
        if _index(prompt) in held_out:
            counts.held_out += 1
        else:
            yield prompt


def _distinct(prompts: Iterable[Prompt], counts: SplitCounts, others: Sequence[Prompt], drop: bool) -> Iterator[Prompt]:
    """Yield the prompts; count those that occurred before or belong to a conversation of ``others``, and leave them out if ``drop`` is set."""
    requests = [requests_in(prompt.messages) for prompt in others]
    # A first request alone may begin many conversations.
    ends = {found[-1] for found in requests if len(found) > 1}
    within = set(itertools.chain.from_iterable(requests))
    seen: set[int] = set()
    for prompt in prompts:
        value = identity(prompt)
        found = requests_in(prompt.messages) if others else []
        taken = bool(found) and (found[-1] in within or not ends.isdisjoint(found))
        counts.overlap += taken
        counts.duplicates += value in seen and not taken
        if not (drop and (taken or value in seen)):
            counts.kept += 1
            yield prompt
        seen.add(value)
