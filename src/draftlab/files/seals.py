"""Seals: recorded digests of a run's outputs and inputs, so that a damaged or changed file is noticed when it is read and made again.

``sealed.json`` in a folder records SHA-256, size and time of the files written with it, and ``NAME.sealed.json`` of a single file. A
reader compares size and time, and reads the bytes only if they differ.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from draftlab.errors import UserError, printable
from draftlab.files.atomic import SEAL, write_text
from draftlab.files.digests import sha256

Entry = tuple[str, int, int]
"""SHA-256, size in bytes, and modification time in ns."""

OUTPUTS = ("*/models/*", "*/answers/*", "*/pairs", "data/*", "cells/*/*")
"""Patterns for the folders of a run that may be sealed, besides those of the drafts that a cell keeps."""
TABLES = "*.csv."
"""The pattern for the tables of a run, before the name of a seal."""
KEPT = "cells/*/*/*"
"""The pattern for the drafts that a cell keeps. Where one is damaged, the rows of the cell are made again too."""

RACY = 2_000_000_000
"""Nanoseconds: a file younger than this when its digest is taken could change again without a change of its time."""


def seal(folder: Path, names: Iterable[str] | None = None) -> None:
    """Write ``sealed.json`` into a finished folder, for its files ``names`` or for all of them."""
    if names is None:
        files = {path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")}
        names = files - {SEAL}
    known = _entries(folder / SEAL)
    _write(folder / SEAL, {name: _entry(folder / name, known.get(name)) for name in sorted(names)})


def unseal_file(path: Path) -> None:
    """Remove the seal of a file that is about to be written again: another run that starts meanwhile would take it for damaged."""
    _beside(path).unlink(missing_ok=True)


def seal_file(path: Path) -> None:
    """Write ``NAME.sealed.json`` beside a file in a folder that several jobs write to."""
    _write(_beside(path), {path.name: _entry(path, None)})


def verify(path: Path | str) -> Path:
    """Check a file against its seal, and return its path; a file without a seal passes.

    **Raises:** ``UserError`` if the file changed or was damaged after it was sealed.
    """
    path = Path(path)
    if _differs(path):
        raise UserError(
            "its content is not what was written here: the file was damaged or changed",
            file=path,
            remedy="run the same command again: it remakes what a run wrote; in a folder of your own, remove sealed.json if the change was meant",
        )
    return path


def sealed_digest(path: Path) -> str | None:
    """The SHA-256 of a sealed file, without reading it if size and time are unchanged; None for a file without a seal."""
    entry = _sealed_entry(verify(path))
    return entry[0] if entry else None


def remove_damaged(run: Path) -> Iterator[Path]:
    """Remove all outputs of each job with a damaged or missing file, so that the next run remakes them; yield that file.

    A table or a cell takes the report with it: Snakemake remakes what is missing only for a job that runs.
    """
    for pattern in (TABLES, *OUTPUTS, KEPT):
        for record in sorted(run.glob(f"{pattern}{SEAL}" if pattern == TABLES else f"{pattern}/*{SEAL}")):
            names = [record.parent / name for name in _entries(record)]
            damaged = [path for path in names if not path.exists() or _differs(path)]
            if damaged:
                yield damaged[0]
                rows = [record.parents[1] / "rows.csv"] if pattern == KEPT else []
                report = [run / "report.html"] if pattern == TABLES or pattern.startswith("cells/") else []
                for path in [*names, *rows, *report, record]:
                    path.unlink(missing_ok=True)


def content_digest(path: Path | str, weights: bool = True, remembered: Path | None = None) -> str:
    """Compute the digest of a file, or of the files in a folder with or without its weights; '' if there is nothing.

    Hidden files in a folder do not count: no model is read from them, and macOS writes one where somebody looks.
    ``remembered``: a file that caches digests by path, inode, size and times, so that gigabytes are read only once.
    """
    path = Path(path)
    # Transformers keeps the chat template for requests with tools in a folder of its own.
    files = [path] if path.is_file() else sorted([*path.glob("[!.]*"), *path.glob("additional_chat_templates/[!.]*")])
    parts = [
        f"{file.name} {_remembered(file.resolve(), remembered)}"
        for file in files
        if file.is_file() and file.name != SEAL and (weights or file.suffix != ".safetensors")
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def check_content(path: Path | str, expected: str, weights: bool = True) -> None:
    """Raise ``UserError`` if a file or folder changed since the run began; with ``expected`` '' nothing is checked."""
    if expected and content_digest(path, weights) != expected:
        raise UserError(
            "changed while the run was under way",
            file=path,
            remedy="run the same command again: it starts from the current file",
        )


def _remembered(file: Path, remembered: Path | None) -> str:
    """The SHA-256 of a file, from the cache ``remembered`` if its inode, size and times are unchanged."""
    stat = file.stat()
    stamp = [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]
    known = _read(remembered) if remembered else {}
    entry = known.get(str(file))
    if isinstance(entry, list) and entry[:-1] == stamp:
        return str(entry[-1])
    digest = sha256(file)
    if remembered and time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > RACY:
        with contextlib.suppress(OSError, UserError):  # without a cache, the file is read again next time
            write_text(remembered, json.dumps(known | {str(file): [*stamp, digest]}, indent=1) + "\n")
    return digest


def _entry(path: Path, known: Entry | None) -> Entry:
    """The entry of a file as it is now; ``known`` if its size and time still match."""
    stat = path.stat()
    if known and known[1:] == (stat.st_size, stat.st_mtime_ns):
        return known
    return sha256(path), stat.st_size, stat.st_mtime_ns


def _differs(path: Path) -> bool:
    """Whether a sealed file exists whose content differs from what was sealed."""
    entry = _sealed_entry(path)
    return entry is not None and path.exists() and _entry(path, entry)[0] != entry[0]


def _sealed_entry(path: Path) -> Entry | None:
    """The sealed entry of a file, from its own seal or its folder's; None if it has none."""
    for record in (_beside(path), path.parent / SEAL):
        if entry := _entries(record).get(path.name):
            return entry
    return None


def _beside(path: Path) -> Path:
    """The path of the seal of a single file."""
    return path.with_name(f"{path.name}.{SEAL}")


def _entries(record: Path) -> dict[str, Entry]:
    """The entries of a seal by file name; empty if it is missing or damaged."""
    try:
        return _parsed(record, record.stat().st_mtime_ns)
    except OSError:
        return {}


@functools.lru_cache(maxsize=256)
def _parsed(record: Path, _: int) -> dict[str, Entry]:
    try:
        return {str(name): (str(sha), int(size), int(when)) for name, (sha, size, when) in _read(record).items()}
    except (TypeError, ValueError):
        return {}


def _read(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if it is missing or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _write(record: Path, entries: dict[str, Entry]) -> None:
    write_text(record, json.dumps(entries, indent=1) + "\n")


def remove_and_report_damaged(run: Path) -> None:
    """Remove damaged outputs and print which."""
    for path in remove_damaged(run):
        print(
            f"{printable(str(path))}: missing, damaged, or changed since it was written; it is made again when a job needs it",
            file=sys.stderr,
        )
