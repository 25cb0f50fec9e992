"""Reads the rows of JSON: an array, an object in each line or over several, or one object that holds the rows."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import IO, Any

from draftlab.data import raw_rows
from draftlab.data.formats import PROMPT_COLUMNS
from draftlab.data.raw_rows import EXCERPT, TOO_LONG, RawRow, bad_row, text_lines
from draftlab.data.strict_json import Decoder

CHUNK = 1 << 20
SOLID = re.compile(r"[^ \t\r\n]")
WRAPPERS = ("data", "rows", "examples", "records", "requests")
"""Fields that hold the rows of a file that is one object."""


def json_rows(file: io.BufferedReader, name: str, start: bytes) -> Iterator[RawRow]:
    """The rows of a JSON file that begins with ``start``."""
    if start.lstrip().startswith(b"[") and not _has_an_array_a_line(start):
        yield from _array(file, name)
    elif _spans_lines(start):
        window = _Window(file)  # kept, because it would close the file at its end
        yield from _unwrapped(_values(window, name, ""), file)
    else:
        yield from _unwrapped(_lines(file, name), file)


def _spans_lines(start: bytes) -> bool:
    """Whether a file begins with an object over several lines: its first line only opens it, and the second is no object of its own."""
    first, _, rest = start.lstrip().partition(b"\n")
    first, second = first.strip(), rest.lstrip()[:1]
    return (first == b"{" and second != b"{") or (first[:1] == b"{" and first[-1:] == b"[")


def _has_an_array_a_line(start: bytes) -> bool:
    """Whether the first line of a file is a whole array, and the second begins another."""
    first, _, rest = start.lstrip().partition(b"\n")
    return first.startswith(b"[") and first.rstrip().endswith(b"]") and rest.lstrip().startswith(b"[")


def _lines(file: IO[bytes], name: str, first_line: int = 1) -> Iterator[RawRow]:
    decoder = Decoder()
    for line in text_lines(file, name, first_line):
        if line.problem:
            yield line
            continue
        text = line.row.strip()
        try:
            value, end, problem, detail = decoder.value(text, 0)
        except ValueError as error:
            yield bad_row(name, line.line, f"broken JSON: {error}", text)
            continue
        if end < len(text):
            problem, detail = "more than one JSON value in a line", ""
        yield bad_row(name, line.line, problem, text, detail) if problem else replace(line, row=value)


def _array(file: IO[bytes], name: str) -> Iterator[RawRow]:
    window = _Window(file)
    window.skip()
    window.at += 1
    if not (yield from _values(window, name, "]")):
        return
    if not window.skip():
        yield RawRow(name, window.here(), "", "the array is not closed: the file is cut off")
    elif window.skip(1):  # text after the array is read as lines
        yield from _lines(io.BufferedReader(_Rest(window)), name, window.here())


def _values(window: _Window, name: str, close: str) -> Generator[RawRow, None, bool]:
    """Yield JSON values, with commas between them or not, up to ``close`` or the end; return whether all could be read."""
    decoder, char = Decoder(), window.skip()
    while char and char != close:
        try:
            value, end, problem, detail = decoder.value(window.text, window.at)
        except ValueError as error:
            if len(window.text) - window.at <= raw_rows.LONGEST and window.more():
                continue
            what = TOO_LONG if len(window.text) - window.at > raw_rows.LONGEST else f"broken JSON: {error}"
            start = window.text[window.at : window.at + EXCERPT]
            yield bad_row(name, window.here(), f"{what}; the rest of the file is unread", start)
            return False
        if end == len(window.text) and window.more():  # a number may go on
            continue
        line, part = window.here(), window.text[window.at : end]
        yield bad_row(name, line, problem, part, detail) if problem else RawRow(name, line, value)
        char = window.skip(end - window.at)
        if close and char == ",":
            char = window.skip(1)
    return True


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


def _rows_inside(file: IO[bytes], first: RawRow) -> Iterator[RawRow]:
    """The rows of a file that is one object which holds a list of them, where some are bad or all together are too long to hold.

    Nothing if it holds no list, or a prompt of its own.
    """
    file.seek(0)
    start = file.read(raw_rows.LONGEST)
    text = start.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
    lists, fields, is_whole = _lists_in(text)
    begin = next((lists[name] for name in WRAPPERS if name in lists), None)
    if begin is None or PROMPT_COLUMNS & fields:
        return
    file.seek(len(start) - len(text[begin:].encode("utf-8", "surrogateescape")))
    window = _Window(file)
    window.line += text.count("\n", 0, begin)
    is_broken = not is_whole and len(start) < raw_rows.LONGEST
    if (yield from _values(window, first.file, "]")) and is_broken:
        yield first


def _lists_in(text: str) -> tuple[dict[str, int], set[str], bool]:
    """Where the lists of rows begin in an object, its fields, and whether all of it could be read."""
    lists, fields = dict[str, int](), set[str]()

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
        return lists, fields, False
    return lists, fields, True
