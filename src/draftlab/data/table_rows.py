"""Reads the rows of tables: CSV with the separator that its header shows, and TSV, whose cells some programs quote."""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, Literal

from draftlab.data import raw_rows
from draftlab.data.formats import NO_TEXTS, PROMPT_COLUMNS, are_lengths
from draftlab.data.raw_rows import TOO_LONG, RawRow, bad_row, bounded_lines, excerpt, well_formed
from draftlab.errors import UserError

ANNOUNCED = re.compile(rb'"?sep=([,;|:~^\t])"?\r?\n', re.IGNORECASE)
"""A first line that names the separator, as Excel reads it."""
SEPARATORS = ",;\t"
"""Of ``.csv``: spreadsheets in many countries write semicolons."""
QUOTED = re.compile(r'"(?:[^"]|"")*|"(?:[^"]|"")*""(?:[^"]|"")*"')
"""The part up to a tab or the end of a line of a cell in quotes that holds a tab, a line break or a quote."""


def table_rows(file: IO[bytes], name: str, kind: str, opening: bytes, columns: Sequence[str]) -> Iterator[RawRow]:
    """Yield the rows of a table of this ``kind``, ``.csv`` or ``.tsv``; ``columns`` are its names where it has no header."""
    csv.field_size_limit(raw_rows.LONGEST)
    is_quoted = kind == ".csv" or (not columns and _is_quoted(file))
    lines = _CsvLines(file)
    reader, separator = _reader(lines, kind, opening, is_quoted)
    header: list[str] = []
    while True:
        start = lines.read + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            unclosed = "end of data" in str(error)
            what = "a quote in this row is not closed; the rest of the file is unread" if unclosed else str(error)
            yield bad_row(name, start, f"broken CSV: {what}", detail=f"lines {start} to {lines.read}")
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
            yield bad_row(name, start, "more or fewer columns than the header", separator.join(cells), detail)
        elif not all(map(well_formed, cells)):
            yield bad_row(name, start, "not UTF-8", separator.join(cells))
        else:
            yield RawRow(name, start, dict(zip(header, cells, strict=True)))


def _is_quoted(file: IO[bytes]) -> bool:
    """Whether cells of a TSV file are in quotes, as pandas and Excel write them: one is, all quotes fit, and no more rows have a wrong length."""

    def wrong(quoting: Literal[0, 3]) -> int:
        file.seek(0)
        lengths = [
            len(cells) for cells in csv.reader(_CsvLines(file), "excel-tab", quoting=quoting, strict=True) if cells
        ]
        return sum(length != lengths[0] for length in lengths)

    try:
        is_quoted = wrong(csv.QUOTE_MINIMAL) <= wrong(csv.QUOTE_NONE)
        file.seek(0)
        return is_quoted and any(
            QUOTED.fullmatch(cell) for line in _CsvLines(file) for cell in line.rstrip("\r\n").split("\t")
        )
    except (csv.Error, OSError, EOFError, zlib.error):  # or a gzipped file that is cut off
        return False
    finally:
        file.seek(0)


def _reader(lines: _CsvLines, kind: str, opening: bytes, is_quoted: bool) -> tuple[Iterator[list[str]], str]:
    """A reader of the cells of each row, and the separator between them; a line that announces the separator is skipped."""
    if kind == ".tsv":
        if not is_quoted:
            return csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE), "\t"
        return csv.reader(lines, delimiter="\t", strict=True), "\t"
    announced = ANNOUNCED.match(opening)
    if announced:
        next(lines)
    separator = announced[1].decode() if announced else _separator(opening)
    return csv.reader(lines, delimiter=separator, strict=True), separator


def _separator(opening: bytes) -> str:
    """The separator of a ``.csv`` by its header: one by which a column has a known name, and of several the most frequent."""
    header = re.split(rb"[\r\n]", opening.lstrip(b"\r\n"))[0].decode("utf-8", "replace")

    def fits(separator: str) -> tuple[bool, int]:
        names = {cell.strip().lower() for cell in next(csv.reader([header], delimiter=separator), [])}
        return not PROMPT_COLUMNS.isdisjoint(names), header.count(separator)

    return max(SEPARATORS, key=fits)


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
