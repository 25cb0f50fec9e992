"""A row of a raw file with its place and what is wrong with it, and the lines of a file, none too long for memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from draftlab.errors import printable

EXCERPT = 200
LONGEST = 16 << 20
"""The longest line in bytes, or row of an array in characters, that is held in memory."""
TOO_LONG = f"a row of more than {LONGEST >> 20} MB"
LONE = "not UTF-8, or a lone surrogate"


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


def bad_row(name: str, line: int, problem: str, text: str = "", detail: str = "") -> RawRow:
    """A row that cannot be read: ``problem`` is the same text for all rows with this fault, ``detail`` is of this row."""
    return RawRow(name, line, excerpt(": ".join(filter(None, (detail, text)))), problem)


def bounded_lines(file: IO[bytes]) -> Iterator[bytes | None]:
    """Yield the lines of a file, and None for a line of more than ``LONGEST`` bytes, which is never held in memory."""
    while line := file.readline(LONGEST + 1):
        if len(line) <= LONGEST:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(LONGEST)
        yield None


def text_lines(file: IO[bytes], name: str, first_line: int = 1) -> Iterator[RawRow]:
    """Yield each line that is not blank, as text."""
    for number, line in enumerate(bounded_lines(file), first_line):
        if line is None:
            yield bad_row(name, number, TOO_LONG)
            continue
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            yield bad_row(name, number, "not UTF-8", repr(line[:EXCERPT]), f"byte {error.start}")
            continue
        if text.strip():
            yield RawRow(name, number, text)
