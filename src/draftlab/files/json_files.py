"""Reads and writes JSON files and JSON Lines; a broken file raises an error that names the line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path, write_text
from draftlab.files.seals import verify

T = TypeVar("T")
ABSENT = "check the path, or run the step that makes it"


def write_json(path: Path | str, value: Any) -> None:
    """Write one JSON value, indented, with keys in the given order."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_text(path: Path | str) -> str:
    """Read a text file, without a byte order mark; a missing file, a folder, or bytes that are not UTF-8 raise ``UserError``."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy=ABSENT) from None
    except IsADirectoryError:
        raise UserError("a folder, not a file", file=path, remedy="name a file in it") from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8: {error.reason}", file=path, remedy="convert the file to UTF-8") from None


def read_json(path: Path | str) -> Any:
    """Read one JSON value; a missing or broken file raises ``UserError``."""
    text = read_text(path)
    line: int | None = None
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        what, line = f"not JSON: {error.msg}", error.lineno
    except RecursionError:
        what = "JSON that is nested too deeply"
    except ValueError:
        what = "a number with too many digits"
    raise UserError(what, file=path, line=line, remedy="repair the file")


def read_object(path: Path | str) -> dict[str, Any]:
    """Read one JSON object; anything else raises ``UserError``."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError("not a JSON object", file=path, remedy="fetch the file again, or run the step that makes it")
    return value


def object_in(text: str, flag: str, example: str) -> dict[str, Any]:
    """The JSON object that is given as a ``flag``; anything else raises ``UserError``."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise UserError(f"{flag} is {text!r}, no JSON object", remedy=f"give one, such as '{example}'")
    return value


def write_jsonl(path: Path | str, records: Iterable[Any]) -> int:
    """Write dataclasses (or dicts), one per line; return how many."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for record in records:
            value = dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record  # type: ignore[arg-type]
            file.write(json.dumps(value, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_jsonl(path: Path | str, kind: type[T]) -> Iterator[T]:
    """Read dataclasses of ``kind``, one per line; a broken line raises ``UserError``.

    This is for files that draftlab wrote. ``data.readers`` reads raw datasets, and keeps their good rows.
    """
    repair = "repair the line, or run the step that makes the file again; for a file of your own, run draftlab data make first"
    try:
        with verify(path).open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                try:
                    row = kind(**json.loads(line))
                except (TypeError, ValueError, RecursionError) as error:
                    what = f"not a {kind.__name__}: {str(error).removeprefix(f'{kind.__name__}.__init__() ')}"
                    raise UserError(what, file=path, line=number, remedy=repair) from None
                yield row
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy=ABSENT) from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8: {error.reason}", file=path, remedy=repair) from None
