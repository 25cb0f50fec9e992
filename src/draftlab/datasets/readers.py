"""Raw files to rows: JSON, JSON lines, CSV, TSV, Parquet and text, plain or gzipped, good rows kept and bad ones named.

Python's own readers throughout: the readers of ``datasets`` stop at the first byte that is not UTF-8.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from draftlab.errors import UserError, printable

EXCERPT = 200
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class RawRow:
    """A row as a file holds it, and where; with ``problem`` set it could not be read and ``row`` is an excerpt."""

    file: str
    line: int
    row: Any
    problem: str | None = None


def excerpt(text: str) -> str:
    """``text`` for a terminal or a log, cut to an excerpt."""
    return printable(text if len(text) <= EXCERPT else text[:EXCERPT] + "…")


def well_formed(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8, that is, holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Json:
    """A strict JSON decoder that tells duplicate keys and non-finite numbers without losing its place."""

    def __init__(self) -> None:
        self._faults: list[str] = []
        self._decoder = json.JSONDecoder(object_pairs_hook=self._pairs, parse_constant=self._constant)

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self._faults.append(f"duplicate key {twice!r}")
        return row

    def _constant(self, name: str) -> None:
        self._faults.append(f"{name} is not JSON")

    def value(self, text: str, start: int) -> tuple[Any, int, str | None]:
        """The value at ``start``, where it ends, and what is wrong with it; broken JSON is a ``ValueError``."""
        self._faults.clear()
        try:
            value, end = self._decoder.raw_decode(text, start)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        part = text[start:end]
        if not well_formed(part) or ("\\u" in part and not well_formed(json.dumps(value, ensure_ascii=False))):
            self._faults.append("not UTF-8, or a lone surrogate")
        return value, end, self._faults[0] if self._faults else None


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _json_lines(file: IO[bytes], name: str, first_line: int = 1) -> Iterator[RawRow]:
    decoder = _Json()
    for number, line in enumerate(file, first_line):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            yield RawRow(name, number, excerpt(repr(line)), f"not UTF-8 at byte {error.start}")
            continue
        if not text:
            continue
        try:
            value, end, problem = decoder.value(text, 0)
        except ValueError as error:
            yield RawRow(name, number, excerpt(text), f"broken JSON: {getattr(error, 'msg', error)}")
            continue
        if end < len(text):
            problem = "more than one JSON value in a line"
        elif not isinstance(value, dict):
            problem = f"a JSON {type(value).__name__}, not an object"
        yield RawRow(name, number, excerpt(text) if problem else value, problem)


def _json_array(file: IO[bytes], name: str) -> Iterator[RawRow]:
    # Bytes that are not UTF-8 become lone surrogates, so that only the rows that hold them are turned down.
    text, decoder = file.read().decode("utf-8-sig", "surrogateescape"), _Json()
    at, line = _after_space(text, 0) + 1, 1
    counted = 0
    while (at := _after_space(text, at)) < len(text) and text[at] != "]":
        line += text.count("\n", counted, at)
        counted = at
        try:
            value, end, problem = decoder.value(text, at)
        except ValueError as error:
            what = f"broken JSON: {getattr(error, 'msg', error)}; the rest of the file is unread"
            yield RawRow(name, line, excerpt(text[at : at + EXCERPT]), what)
            return
        if not problem and not isinstance(value, dict):
            problem = f"a JSON {type(value).__name__}, not an object"
        yield RawRow(name, line, excerpt(text[at:end]) if problem else value, problem)
        at = _after_space(text, end)
        if at < len(text) and text[at] == ",":
            at += 1
    if at >= len(text):
        yield RawRow(name, text.count("\n") + 1, "", "the array is not closed: the file is cut off")
        return
    start = _after_space(text, at + 1)  # whatever follows the array is read as lines
    rest = text[start:].encode("utf-8", "surrogateescape")
    yield from _json_lines(io.BytesIO(rest), name, text.count("\n", 0, start) + 1)


def _table(file: IO[bytes], name: str, separator: str, columns: Sequence[str]) -> Iterator[RawRow]:
    csv.field_size_limit(sys.maxsize)
    lines = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    if separator == "\t":
        reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
    else:
        reader = csv.reader(lines, strict=True)
    header = list(columns)
    while True:
        try:
            cells = next(reader, None)
        except csv.Error as error:
            yield RawRow(name, reader.line_num, "", f"broken CSV: {error}")
            continue
        if cells is None:
            return
        if not any(cells):
            continue
        if not header and all(cell.strip().isidentifier() for cell in cells):
            header = [cell.strip() for cell in cells]
            continue
        if not header:  # no header: the usual two columns
            header = ["prompt", "answer", *(f"column_{i}" for i in range(3, len(cells) + 1))][: len(cells)]
        if reader.line_num == 1 and [cell.strip().lower() for cell in cells] == header:
            continue
        if len(cells) != len(header):
            text = excerpt(separator.join(cells))
            yield RawRow(name, reader.line_num, text, f"{len(cells)} columns, not {len(header)}")
        elif not all(map(well_formed, cells)):
            yield RawRow(name, reader.line_num, excerpt(separator.join(cells)), "not UTF-8")
        else:
            yield RawRow(name, reader.line_num, dict(zip(header, cells, strict=True)))


def _text(file: IO[bytes], name: str) -> Iterator[RawRow]:
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8").strip("\r\n")
        except UnicodeDecodeError as error:
            yield RawRow(name, number, excerpt(repr(line)), f"not UTF-8 at byte {error.start}")
            continue
        if text.strip():
            yield RawRow(name, number, {"text": text})


def _parquet(path: Path, name: str) -> Iterator[RawRow]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield RawRow(name, number, row)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        yield RawRow(name, number + 1, "", f"broken Parquet: {excerpt(str(error))}; the rest of the file is unread")


def _parse(file: io.BufferedReader, name: str, suffixes: Sequence[str], columns: Sequence[str]) -> Iterator[RawRow]:
    start = file.peek(4096).removeprefix(b"\xef\xbb\xbf")
    if start.startswith(UTF16):
        raise UserError("the file is UTF-16", file=name, remedy="convert it to UTF-8")
    opening, kind = start.lstrip()[:1], next((s for s in reversed(suffixes) if s != ".gz"), "")
    if kind in (".csv", ".tsv"):
        yield from _table(file, name, "," if kind == ".csv" else "\t", columns)
    elif opening == b"[":
        yield from _json_array(file, name)
    elif kind in (".json", ".jsonl", ".ndjson") or opening == b"{":
        yield from _json_lines(file, name)
    else:
        yield from _text(file, name)


def read_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[RawRow]:
    """The rows of a raw file in order, its format told by content first and by suffix second.

    ``columns`` names the columns of a CSV or TSV without a header; without it, a first line of plain names is the
    header, and else the columns are ``prompt`` and ``answer``. A row that cannot be read comes with its
    ``problem``; a file that cannot be opened at all is a ``UserError``.
    """
    name, suffixes = str(path), [s.lower() for s in path.suffixes]
    number = 0
    try:
        with path.open("rb") as file:
            magic = file.peek(4)[:4]
            if magic == PARQUET:
                yield from _parquet(path, name)
                return
            if not magic.startswith(GZIP):
                yield from _parse(file, name, suffixes, columns)
                return
            with gzip.open(file, "rb") as unzipped:
                for row in _parse(io.BufferedReader(unzipped), name, suffixes, columns):
                    number = row.line
                    yield row
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield RawRow(name, number + 1, "", f"broken gzip: {error}; the rest of the file is unread")
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="check the path") from None
    except IsADirectoryError:
        raise UserError("a folder, not a file", file=path, remedy="name a file in it") from None
