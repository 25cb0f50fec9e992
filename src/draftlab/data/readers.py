"""Reads the rows of raw files: JSON, JSON lines, CSV, TSV, Parquet and text, plain or gzipped. A bad row loses no good one.

This uses Python's readers, because those of ``datasets`` stop at the first byte that is not UTF-8.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, TypeVar

from draftlab.data.json_rows import json_rows
from draftlab.data.log_rows import is_log, log_rows
from draftlab.data.raw_rows import RawRow, bad_row, text_lines, well_formed
from draftlab.data.table_rows import check_distinct, table_rows
from draftlab.errors import UserError

if TYPE_CHECKING:
    import pyarrow

GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
BARE_UTF16 = re.compile(rb"(?:[^\0]\0){4}|(?:\0[^\0]){4}")
"""How UTF-16 begins without its mark, if the text begins with ASCII."""


def read_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[RawRow]:
    """Yield the rows of a raw file; a row that cannot be read has a ``problem``.

    Tables and text are known by the file's suffix, JSON, Parquet and gzip by the content. ``columns`` names the columns of
    a table without a header.

    **Raises:** ``UserError`` for a file that cannot be opened, has a name that is not UTF-8, is a pipe, is neither text nor
    Parquet, or is a table without a known column for prompts.
    """
    name, suffixes = str(path), [s.lower() for s in path.suffixes]
    if not well_formed(name):  # no file of a run could name it
        raise UserError("the name of the file is not UTF-8", file=path, remedy="rename the file or folder")
    if path.is_fifo():
        what = "a pipe, which can be read only once"
        raise UserError(what, file=path, remedy="write it to a file and name that; a gzipped file is read as it is")
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
                for row in _parse(io.BufferedReader(_Unzipped(unzipped)), name, suffixes, columns):
                    number = row.line
                    yield row
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        yield bad_row(name, number + 1, "broken gzip; the rest of the file is unread", detail=str(error))
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="check the path") from None
    except IsADirectoryError:
        raise UserError("a folder, not a file", file=path, remedy="name a file in it") from None
    except OSError as error:
        # Of reading: it has no name, and a file that is being written from these rows would give its own.
        error.filename = error.filename or name
        raise


def _parse(file: io.BufferedReader, name: str, suffixes: Sequence[str], columns: Sequence[str]) -> Iterator[RawRow]:
    """Yield the rows of a file that is neither Parquet nor gzipped, by its suffix and how it begins."""
    start = file.peek(4096).removeprefix(b"\xef\xbb\xbf")
    if start.startswith(UTF16) or BARE_UTF16.match(start):
        raise UserError("the file is UTF-16", file=name, remedy="convert it to UTF-8")
    if b"\r" in start and b"\n" not in start:
        file, start = io.BufferedReader(_UnixLines(file)), start.replace(b"\r", b"\n")
    opening, kind = start.lstrip()[:1], next((s for s in reversed(suffixes) if s != ".gz"), "")
    if kind in (".csv", ".tsv"):
        yield from table_rows(file, name, kind, start, columns)
    elif is_log(start):
        yield from log_rows(file, name)
    elif kind in (".txt", ".lst"):
        yield from _text(file, name)
    elif kind in (".json", ".jsonl", ".ndjson") or opening in (b"{", b"["):
        yield from json_rows(file, name, start)
    elif b"\0" in start:
        remedy = "give JSON, JSON lines, CSV, TSV, Parquet or text, plain or gzipped"
        raise UserError("neither text nor Parquet", file=name, remedy=remedy)
    else:
        yield from _text(file, name)


File = TypeVar("File", bound=io.BufferedIOBase)


class _Changed(io.RawIOBase, Generic[File]):
    """A file that is read in a way of its own: ``part`` gives the next bytes, at most ``size``."""

    def __init__(self, file: File) -> None:
        self.file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()

    def readinto(self, buffer: Any) -> int:
        part = self.part(len(buffer))
        buffer[: len(part)] = part
        return len(part)

    def part(self, size: int) -> bytes:
        raise NotImplementedError


class _Unzipped(_Changed[gzip.GzipFile]):
    """A gzipped file that gives all it has before it fails; ``GzipFile`` loses what it unpacked in the same read."""

    def part(self, size: int) -> bytes:
        return self.file.read1(size)


class _UnixLines(_Changed[io.BufferedReader]):
    """A file whose lines end with a lone carriage return, as old Macs wrote them, with line feeds in their place."""

    def part(self, size: int) -> bytes:
        return self.file.read(size).replace(b"\r", b"\n")


def _text(file: IO[bytes], name: str) -> Iterator[RawRow]:
    for line in text_lines(file, name):
        yield line if line.problem else replace(line, row={"text": line.row.strip("\r\n")})


def _parquet(path: Path, name: str) -> Iterator[RawRow]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            check_distinct(file.schema_arrow.names, name)
            for batch in file.iter_batches(batch_size=1024):
                for row in _values(batch):
                    number += 1
                    if isinstance(row, Exception):
                        problem = "not UTF-8" if isinstance(row, UnicodeDecodeError) else "a value that cannot be read"
                        yield bad_row(name, number, problem, detail=str(row))
                    else:
                        yield RawRow(name, number, plain(row))
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        yield bad_row(name, number + 1, "broken Parquet; the rest of the file is unread", detail=str(error))


def _values(batch: pyarrow.RecordBatch) -> list[dict[str, Any] | Exception]:
    """The rows of a batch; in place of one that Python cannot hold, the error."""
    try:
        return list(batch.to_pylist())
    except (ValueError, OverflowError) as error:
        if batch.num_rows == 1:
            return [error]
        return [row for number in range(batch.num_rows) for row in _values(batch.slice(number, 1))]


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """``row`` in JSON's types: dates, decimals and bytes become text, and bytes that are not UTF-8 become null.

    Columns of Arrow give all objects the same fields, with null for what one has not: the argument of another tool, say. They are left out.
    """

    def as_text(value: Any) -> str | None:
        if not isinstance(value, bytes):
            return str(value)
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None

    def given(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value is not None}

    found: dict[str, Any] = json.loads(json.dumps(row, default=as_text), object_hook=given)
    return dict.fromkeys(row) | found
