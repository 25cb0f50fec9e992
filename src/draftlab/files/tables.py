"""Tables on disk: CSV files with one row per observation, compressed (``.csv.gz``) when published."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.files.seals import seal_file, unseal_file, verify

if TYPE_CHECKING:
    import pandas as pd


REMEDY = "run the step that makes it, or restore it from the repository"
CLAIMS = "claims"
"""The stem of the ledger, which is in the same folder as the tables of experiments."""
LEDGERS = (CLAIMS, f"{CLAIMS}_related")
"""The ledger, and that of other papers."""


def tables_in(folder: Path) -> dict[str, Path]:
    """The path of every experiment's table in ``folder`` by name, compressed or not; the ledger and hidden files are left out."""
    paths = sorted([*folder.glob("[!.]*.csv"), *folder.glob("[!.]*.csv.gz")])
    return {path.name.split(".")[0]: path for path in paths if path.name.split(".")[0] not in LEDGERS}


def table_bytes(path: Path | str) -> bytes:
    """The content of a table, decompressed if need be; a missing or damaged file raises ``UserError``."""
    try:
        content = verify(path).read_bytes()
        return gzip.decompress(content) if Path(path).suffix == ".gz" else content
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy=REMEDY) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"not a table: {error}", file=path, remedy=REMEDY) from None


def publish_table(table: Path, folder: Path) -> None:
    """Write a CSV file compressed to ``folder``; the same table always gives the same bytes."""
    with atomic_path(folder / f"{table.name}.gz") as temporary:
        temporary.write_bytes(gzip.compress(table.read_bytes(), 9, mtime=0))


def _rows(text: str, path: Path | str) -> Iterator[list[str]]:
    """Yield the rows of a table, header first; a row of another length or an unfinished last line raises ``UserError``."""
    rows = csv.reader(io.StringIO(text))
    header = next(rows, [])
    yield header
    for row in rows:
        if row and len(row) != len(header):
            what = f"{len(row)} fields, the header has {len(header)}"
            raise UserError(what, file=path, line=rows.line_num, remedy=REMEDY)
        yield row
    if text and not text.endswith("\n"):  # the last field may be incomplete
        raise UserError("cut short: no end of line", file=path, line=rows.line_num, remedy=REMEDY)


def quoting_of(cells: Iterable[object]) -> Literal[0, 2]:
    """How ``csv`` must quote these cells: by itself it leaves a carriage return, such as the token of one, bare, and cannot read it again."""
    has_return = any("\r" in cell for cell in cells if isinstance(cell, str))
    return csv.QUOTE_NONNUMERIC if has_return else csv.QUOTE_MINIMAL


def count_rows(path: Path | str) -> int:
    """The number of rows of a table, compressed or not; the text of a cell may have several lines."""
    return sum(1 for row in _rows(table_bytes(path).decode("utf-8"), path) if row) - 1


def read_table(path: Path | str, **options: Any) -> pd.DataFrame:
    """Read a CSV file with ``pandas.read_csv`` and its ``options``; a missing, empty, broken or truncated file raises ``UserError``.

    Only an empty cell has no value: a topic may be called None or NA, and a token null.
    """
    import pandas as pd

    options = {"keep_default_na": False, "na_values": [""], **options}
    try:
        text = table_bytes(path).decode("utf-8")
        for _ in _rows(text, path):
            pass
        return pd.DataFrame(pd.read_csv(io.StringIO(text), **options))
    except (ValueError, csv.Error) as error:
        raise UserError(f"not a table: {error}", file=path, remedy=REMEDY) from None


def read_texts(path: Path | str) -> pd.DataFrame:
    """Read a CSV file as ``read_table`` does, but every cell as text, an empty one too."""
    return read_table(path, dtype=str, na_filter=False)


def join_tables(rows: tuple[Path, ...], out: Path) -> None:
    """Join the cells of an experiment into one tidy table that has the columns of all cells.

    **Arguments:**
    - `rows`: the rows.csv of each cell
    - `out`: the table to write, as CSV
    """  # without pandas, whose import takes a second
    if not rows:
        raise UserError("no rows to collect", remedy="name at least one file with --rows")
    tables = []
    for path in rows:
        try:
            header, *lines = _rows(table_bytes(path).decode("utf-8"), path)
        except (ValueError, csv.Error) as error:
            raise UserError(f"not a table: {error}", file=path, remedy=REMEDY) from None
        if not lines:
            raise UserError("no rows", file=path, remedy=REMEDY)
        tables.append((header, lines))
    columns = list(dict.fromkeys(name for header, _ in tables for name in header))
    unseal_file(out)
    with atomic_path(out) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writers = {
            quoting: csv.DictWriter(file, columns, lineterminator="\n", quoting=quoting)
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC)
        }
        writers[csv.QUOTE_MINIMAL].writeheader()
        for header, lines in tables:
            for line in filter(None, lines):
                writers[quoting_of(line)].writerow(dict(zip(header, line, strict=True)))
    seal_file(out)
