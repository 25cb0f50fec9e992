"""Reads the rows of raw files: JSON, JSON lines, CSV, TSV, Parquet and text, plain or gzipped. A bad row loses no good one.

This uses Python's readers, because those of ``datasets`` stop at the first byte that is not UTF-8.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from draftlab.data.formats import NO_TEXTS, PROMPT_COLUMNS, are_lengths
from draftlab.errors import UserError, printable

EXCERPT = 200
LONGEST = 16 << 20
"""The longest line in bytes, or row of an array in characters, that is held in memory."""
TOO_LONG = f"a row of more than {LONGEST >> 20} MB"
LONE = "not UTF-8, or a lone surrogate"
CHUNK = 1 << 20
DEEPEST = 100  # levels of nesting: Python's json gives up at a few hundred
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class RawRow:
    """A row of a file and its place. If ``problem`` is set, it could not be read, and ``row`` is an excerpt."""

    file: str
    line: int
    row: Any
    problem: str | None = None


def excerpt(text: str) -> str:
    """The beginning of ``text``, for a terminal or a log."""
    return printable(text if len(text) <= EXCERPT else text[:EXCERPT] + "…")


def well_formed(text: str) -> bool:
    """Whether ``text`` can be written as UTF-8, that is, holds no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def plain(row: Any) -> Any:
    """``row`` in JSON's types: dates, decimals and bytes become text, and bytes that are not UTF-8 become null."""

    def as_text(value: Any) -> str | None:
        if not isinstance(value, bytes):
            return str(value)
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None

    return json.loads(json.dumps(row, default=as_text))


def _bad(name: str, line: int, problem: str, text: str = "", detail: str = "") -> RawRow:
    """A row that cannot be read: ``problem`` is the same text for all rows with this fault, ``detail`` is of this row."""
    return RawRow(name, line, excerpt(": ".join(filter(None, (detail, text)))), problem)


def _too_deep(value: Any) -> bool:
    """Whether lists and objects in ``value`` are nested more than ``DEEPEST`` levels deep."""
    inside = [value]
    for _ in range(DEEPEST):
        inside = [v for i in inside for v in (i.values() if isinstance(i, dict) else i) if isinstance(v, dict | list)]
    return bool(inside)


class _Decoder:
    """A strict JSON decoder: after duplicate keys or a number that is not finite, the text can still be read on."""

    def __init__(self) -> None:
        self._faults: list[tuple[str, str]] = []
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._pairs, parse_constant=self._constant, parse_float=self._float
        )

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        row = dict(pairs)
        if len(row) < len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            self._faults.append(("duplicate key", repr(twice)))
        return row

    def _float(self, digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), -float("inf")):
            self._faults.append(("a number that no float holds", digits[:EXCERPT]))
        return value

    def _constant(self, name: str) -> None:
        self._faults.append((f"{name} is not JSON", ""))

    def value(self, text: str, start: int) -> tuple[Any, int, str | None, str]:
        """The value at ``start``, where it ends, what is wrong with it if anything, and a detail; ``ValueError`` if it is broken."""
        self._faults.clear()
        try:
            value, end = self._decoder.raw_decode(text, start)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        except json.JSONDecodeError as error:
            raise ValueError(error.msg) from None
        except ValueError:
            raise ValueError("a number with too many digits") from None
        if not isinstance(value, dict):
            return value, end, f"a JSON {type(value).__name__}, not an object", ""
        part = text[start:end]
        if part.count("[") + part.count("{") > DEEPEST and _too_deep(value):
            self._faults.append(("nested too deeply", ""))
        elif not well_formed(part) or ("\\u" in part and not well_formed(json.dumps(value, ensure_ascii=False))):
            self._faults.append((LONE, ""))
        return value, end, *(self._faults[0] if self._faults else (None, ""))


def decoded(text: str) -> Any:
    """The JSON value that ``text`` holds, or ``text`` itself if it is none, or one that no row may hold."""
    row = f'{{"value": {text}}}'
    try:
        value, end, problem, _ = _Decoder().value(row, 0)
    except ValueError:
        return text
    return value["value"] if problem is None and end == len(row) and value.keys() == {"value"} else text


def bounded_lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """Yield the lines of a file, and None for a line of more than ``LONGEST`` bytes, which is never held in memory."""
    while line := file.readline(LONGEST + 1):
        if len(line) <= LONGEST:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST)
        yield None


def _lines(file: IO[bytes], name: str, first_line: int = 1) -> Iterator[RawRow]:
    """Yield each line that is not blank, as text."""
    for number, line in enumerate(bounded_lines(file), first_line):
        if line is None:
            yield _bad(name, number, TOO_LONG)
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield _bad(name, number, "not UTF-8", repr(line[:EXCERPT]), f"byte {error.start}")
            continue
        if text.strip():
            yield RawRow(name, number, text)


def _json_lines(file: IO[bytes], name: str, first_line: int = 1) -> Iterator[RawRow]:
    decoder = _Decoder()
    for line in _lines(file, name, first_line):
        if line.problem:
            yield line
            continue
        text = line.row.strip()
        try:
            value, end, problem, detail = decoder.value(text, 0)
        except ValueError as error:
            yield _bad(name, line.line, f"broken JSON: {error}", text)
            continue
        if end < len(text):
            problem, detail = "more than one JSON value in a line", ""
        yield _bad(name, line.line, problem, text, detail) if problem else replace(line, row=value)


class _Window:
    """A part of a text file that is read on demand; the text before position ``at`` is dropped."""

    def __init__(self, file: IO[bytes]) -> None:
        # Bytes that are not UTF-8 become lone surrogates, so that only their rows are rejected.
        self.file = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
        self.text, self.at, self.line, self.counted, self.ended = "", 0, 1, 0, False

    def more(self) -> bool:
        """Double the part in memory, so that a long value is parsed only a few times; return whether the file had more."""
        new = "" if self.ended else self.file.read(max(CHUNK, len(self.text) - self.at))
        self.here()
        self.text, self.at, self.counted, self.ended = self.text[self.at :] + new, 0, 0, not new
        return bool(new)

    def skip(self, further: int = 0) -> str:
        """Skip characters and the white space after them; return the next character, '' at the end."""
        self.at += further
        while self.at < len(self.text) or self.more():
            if self.text[self.at] not in " \t\r\n":
                return self.text[self.at]
            self.at += 1
        return ""

    def here(self) -> int:
        """The number of the current line; what was counted once is not counted again."""
        self.line, self.counted = self.line + self.text.count("\n", self.counted, self.at), self.at
        return self.line


class _Rest(io.RawIOBase):
    """The bytes of a window's file from its position on."""

    def __init__(self, window: _Window) -> None:
        self.file, self.pending = window.file, window.text[window.at :].encode("utf-8", "surrogateescape")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.pending = self.pending or self.file.read(CHUNK).encode("utf-8", "surrogateescape")
        count = min(len(buffer), len(self.pending))
        buffer[:count], self.pending = self.pending[:count], self.pending[count:]
        return count


def _values(window: _Window, name: str, close: str) -> Generator[RawRow, None, bool]:
    """Yield JSON values, with commas between them or not, up to ``close`` or the end; return whether all could be read."""
    decoder, char = _Decoder(), window.skip()
    while char and char != close:
        try:
            value, end, problem, detail = decoder.value(window.text, window.at)
        except ValueError as error:
            if len(window.text) - window.at <= LONGEST and window.more():
                continue
            what = TOO_LONG if len(window.text) - window.at > LONGEST else f"broken JSON: {error}"
            start = window.text[window.at : window.at + EXCERPT]
            yield _bad(name, window.here(), f"{what}; the rest of the file is unread", start)
            return False
        if end == len(window.text) and window.more():  # a number may go on
            continue
        line, part = window.here(), window.text[window.at : end]
        yield _bad(name, line, problem, part, detail) if problem else RawRow(name, line, value)
        char = window.skip(end - window.at)
        if close and char == ",":
            char = window.skip(1)
    return True


def _json_array(file: IO[bytes], name: str) -> Iterator[RawRow]:
    window = _Window(file)
    window.skip()
    window.at += 1
    if not (yield from _values(window, name, "]")):
        return
    if not window.skip():
        yield RawRow(name, window.here(), "", "the array is not closed: the file is cut off")
    elif window.skip(1):  # text after the array is read as lines
        yield from _json_lines(io.BufferedReader(_Rest(window)), name, window.here())


SOLID = re.compile(r"[^ \t\r\n]")
WRAPPERS = ("data", "rows", "examples", "records", "requests")
"""Fields that hold the rows of a file that is one object."""


def _rows_inside(file: IO[bytes], first: RawRow) -> Iterator[RawRow]:
    """The rows of a file that is one object which holds a list of them, where some are bad or all together are too long to hold.

    Nothing if it holds no list, or a prompt of its own.
    """
    file.seek(0)
    start = file.read(LONGEST)
    text = start.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    lists, fields, broken = dict[str, int](), set[str](), False

    def skip(at: int) -> int:
        """The position of the next character that is no white space."""
        if found := SOLID.search(text, at):
            return found.start()
        raise ValueError("the text ends")

    try:
        decode, at = json.JSONDecoder().raw_decode, skip(0)
        while text[at] in "{,":
            field, at = decode(text, skip(at + 1))
            fields.add(field)
            at = skip(skip(at) + 1)  # after the colon
            if field in WRAPPERS and text[at] == "[":
                lists[field] = at + 1
            at = skip(decode(text, at)[1])
    except (ValueError, IndexError, RecursionError, TypeError):
        broken = len(start) < LONGEST
    begin = next((lists[name] for name in WRAPPERS if name in lists), None)
    if begin is None or PROMPT_COLUMNS & fields:
        return
    file.seek(len(start) - len(text[begin:].encode("utf-8", "surrogateescape")))
    window = _Window(file)
    window.line += text.count("\n", 0, begin)
    if (yield from _values(window, first.file, "]")) and broken:
        yield first


def _unwrapped(rows: Iterator[RawRow], file: IO[bytes]) -> Iterator[RawRow]:
    """The rows of a file, or those in its only row, if that is an object which holds a list of rows and nothing else to read."""
    first, second = next(rows, None), next(rows, None)
    if first is not None and second is None and first.problem:
        again = _rows_inside(file, first)
        yield next(again, first)
        yield from again
        return
    if first is not None and second is None and isinstance(first.row, dict) and not PROMPT_COLUMNS & first.row.keys():
        inside = next((first.row[name] for name in WRAPPERS if isinstance(first.row.get(name), list)), None)
        if inside is not None:
            for row in inside:
                is_row = isinstance(row, dict)
                yield replace(first, row=row, problem=None if is_row else f"a JSON {type(row).__name__}, not an object")
            return
    yield from (row for row in (first, second) if row is not None)
    yield from rows


class _UnixLines(io.RawIOBase):
    """A file whose lines end with a lone carriage return, as old Macs wrote them, with line feeds in their place."""

    def __init__(self, file: io.BufferedReader) -> None:
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
        part = self.file.read(len(buffer)).replace(b"\r", b"\n")
        buffer[: len(part)] = part
        return len(part)


def _spans_lines(start: bytes) -> bool:
    """Whether a file begins with an object over several lines: its first line only opens it, and the second is no object of its own."""
    first, _, rest = start.lstrip().partition(b"\n")
    first, second = first.strip(), rest.lstrip()[:1]
    return (first == b"{" and second != b"{") or (first[:1] == b"{" and first[-1:] == b"[")


def _has_an_array_a_line(start: bytes) -> bool:
    """Whether the first line of a file is a whole array, and the second begins another."""
    first, _, rest = start.lstrip().partition(b"\n")
    return first.startswith(b"[") and first.rstrip().endswith(b"]") and rest.lstrip().startswith(b"[")


class _CsvLines:
    """Lines for ``csv.reader``, as an iterator that goes on after an error (a generator would end). ``read`` counts them, also those too long."""

    def __init__(self, file: IO[bytes]) -> None:
        self.lines, self.encoding, self.read = bounded_lines(file), "utf-8-sig", 0

    def __iter__(self) -> _CsvLines:
        return self

    def __next__(self) -> str:
        line, encoding = next(self.lines), self.encoding
        self.encoding = "utf-8"
        self.read += 1
        if line is None:
            raise csv.Error(TOO_LONG)
        return line.decode(encoding, "surrogateescape")


ANNOUNCED = re.compile(rb'"?sep=([,;|:~^\t])"?\r?\n', re.IGNORECASE)
"""A first line that names the separator, as Excel reads it."""
SEPARATORS = ",;\t"
"""Of ``.csv``: spreadsheets in many countries write semicolons."""


def _separator(opening: bytes) -> str:
    """The separator of a ``.csv`` by its header: one by which a column has a known name, and of several the most frequent."""
    header = re.split(rb"[\r\n]", opening.lstrip(b"\r\n"))[0].decode("utf-8", "replace")

    def fits(separator: str) -> tuple[bool, int]:
        names = {cell.strip().lower() for cell in next(csv.reader([header], delimiter=separator), [])}
        return not PROMPT_COLUMNS.isdisjoint(names), header.count(separator)

    return max(SEPARATORS, key=fits)


def _table(file: IO[bytes], name: str, kind: str, opening: bytes, columns: Sequence[str]) -> Iterator[RawRow]:
    csv.field_size_limit(LONGEST)
    lines = _CsvLines(file)
    if kind == ".tsv":
        separator = "\t"
        reader = csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE)
    else:
        announced = ANNOUNCED.match(opening)
        if announced:
            next(lines)
        separator = announced[1].decode() if announced else _separator(opening)
        reader = csv.reader(lines, delimiter=separator, strict=True)
    header: list[str] = []
    while True:
        start = lines.read + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            unclosed = "end of data" in str(error)
            what = "a quote in this row is not closed; the rest of the file is unread" if unclosed else str(error)
            yield _bad(name, start, f"broken CSV: {what}", detail=f"lines {start} to {lines.read}")
            continue
        if cells is None:
            return
        if not any(cells):
            continue
        if not header:
            header = list(columns) or _header(cells, name, start)
            if [cell.strip().lower() for cell in cells] == header:
                continue
        if len(cells) != len(header):
            detail = f"{len(cells)} columns, not {len(header)}"
            yield _bad(name, start, "more or fewer columns than the header", separator.join(cells), detail)
        elif not all(map(well_formed, cells)):
            yield _bad(name, start, "not UTF-8", separator.join(cells))
        else:
            yield RawRow(name, start, dict(zip(header, cells, strict=True)))


def _header(cells: Sequence[str], name: str, line: int) -> list[str]:
    """The column names in a table's first row, in lower case; ``UserError`` without a known column for prompts."""
    names = [cell.strip().lower() for cell in cells]
    if not all(map(well_formed, names)):
        what = "the names of the columns are not UTF-8"
        raise UserError(what, file=name, line=line, remedy="convert the file to UTF-8")
    if not PROMPT_COLUMNS.intersection(names):
        if are_lengths(names):
            raise UserError(NO_TEXTS, file=name, line=line, remedy="give a file with a column prompt")
        raise UserError(
            f"no column is called prompt, or has another known name: {excerpt(', '.join(cells))}",
            file=name,
            line=line,
            remedy="name the columns in the first line: prompt, and answer if there is one, with commas, semicolons or tabs between "
            "them (.tsv: tabs); if the files of a known dataset have no such line, name the dataset: --dataset mgsm",
        )
    check_distinct(names, name, line)
    return names


def check_distinct(columns: Sequence[str], name: str, line: int | None = None) -> None:
    """Raise ``UserError`` if two columns of a table have one name: which of them is meant is not guessed."""
    if twice := next((column for column in columns if column and columns.count(column) > 1), None):
        raise UserError(f"two columns are called {twice!r}", file=name, line=line, remedy="rename one")


LEVEL = "TRACE|DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL"
TIME = r"(?:[A-Z][a-z]{2} +\d{1,2} |\d[\d/.-]*[T ,]*)?\d\d:\d\d:\d\d"
ACCESS = r"\S+ \S+ \S+ \[\d\d/\w{3}/\d{4}:\d\d:"
LOG = re.compile(rf"[\s\[(]*(?:\w[\w =]*\) *)?(?:(?:{LEVEL})(?:\]|\t|:\s\s|:?\s+[\[\d])|{TIME})|{ACCESS}".encode())
"""A line of a log begins with a level and a number, or with a time, or it is a web server's."""
WRITTEN = r"""None|'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*\""""
VLLM = re.compile(rf"equest \S+(?: details)?: prompt: ({WRITTEN}), ")
"""A request in vLLM's log, with the prompt as Python writes it."""


def _is_log(start: bytes) -> bool:
    """Whether most lines of a file's beginning are a log's."""
    lines = [line for line in start.splitlines() if line.strip()]
    return 2 * sum(LOG.match(line) is not None for line in lines) > len(lines)


def _log(file: IO[bytes], name: str) -> Iterator[RawRow]:
    """Yield the prompts in vLLM's log; ``UserError`` for a log without them."""
    found = False
    for line in _lines(file, name):
        if line.problem:
            yield line
        elif request := VLLM.search(line.row):
            found = True
            try:
                prompt = ast.literal_eval(request[1])
            except (SyntaxError, ValueError):
                yield _bad(name, line.line, "a prompt that is not as Python writes it", line.row)
                continue
            if prompt is None or well_formed(prompt):
                yield replace(line, row={"prompt": prompt})
            else:
                yield _bad(name, line.line, LONE, line.row)
    if not found:
        remedy = "give the requests as JSON lines, or the prompts alone, one per line; vLLM's lines are read if they hold the prompt"
        raise UserError("a log without prompts: most lines begin with a time or a level", file=name, remedy=remedy)


def _text(file: IO[bytes], name: str) -> Iterator[RawRow]:
    for line in _lines(file, name):
        yield line if line.problem else replace(line, row={"text": line.row.strip("\r\n")})


def _parquet(path: Path, name: str) -> Iterator[RawRow]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            check_distinct(file.schema_arrow.names, name)
            for batch in file.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield RawRow(name, number, plain(row))
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        yield _bad(name, number + 1, "broken Parquet; the rest of the file is unread", detail=str(error))


def _parse(file: io.BufferedReader, name: str, suffixes: Sequence[str], columns: Sequence[str]) -> Iterator[RawRow]:
    start = file.peek(4096).removeprefix(b"\xef\xbb\xbf")
    if start.startswith(UTF16):
        raise UserError("the file is UTF-16", file=name, remedy="convert it to UTF-8")
    if b"\r" in start and b"\n" not in start:
        file, start = io.BufferedReader(_UnixLines(file)), start.replace(b"\r", b"\n")
    opening, kind = start.lstrip()[:1], next((s for s in reversed(suffixes) if s != ".gz"), "")
    if kind in (".csv", ".tsv"):
        yield from _table(file, name, kind, start, columns)
    elif _is_log(start):
        yield from _log(file, name)
    elif kind in (".txt", ".lst"):
        yield from _text(file, name)
    elif opening == b"[" and not _has_an_array_a_line(start):
        yield from _json_array(file, name)
    elif _spans_lines(start):
        window = _Window(file)  # kept, because it would close the file at its end
        yield from _unwrapped(_values(window, name, ""), file)
    elif kind in (".json", ".jsonl", ".ndjson") or opening in (b"{", b"["):
        yield from _unwrapped(_json_lines(file, name), file)
    elif b"\0" in start:
        remedy = "give JSON, JSON lines, CSV, TSV, Parquet or text, plain or gzipped"
        raise UserError("neither text nor Parquet", file=name, remedy=remedy)
    else:
        yield from _text(file, name)


def read_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[RawRow]:
    """Yield the rows of a raw file; a row that cannot be read has a ``problem``.

    Tables and text are known by the file's suffix, JSON, Parquet and gzip by the content. ``columns`` names the columns of
    a table without a header.

    **Raises:** ``UserError`` for a file that cannot be opened, is neither text nor Parquet, or is a table without a known
    column for prompts.
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
        yield _bad(name, number + 1, "broken gzip; the rest of the file is unread", detail=str(error))
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="check the path") from None
    except IsADirectoryError:
        raise UserError("a folder, not a file", file=path, remedy="name a file in it") from None
