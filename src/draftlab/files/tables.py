"""Tables on disk: CSV files with one row per observation."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.errors import UserError

if TYPE_CHECKING:
    import pandas as pd


def read_table(path: Path | str, **options: Any) -> pd.DataFrame:
    """Read a CSV file as ``pandas.read_csv`` does with ``options``; a missing, empty, broken or cut file is a ``UserError``."""
    import pandas as pd

    remedy = "run the step that makes it, or restore it from the repository"
    try:
        text = Path(path).read_text(encoding="utf-8")
        rows = csv.reader(io.StringIO(text))
        header = next(rows, [])
        for row in rows:
            if row and len(row) != len(header):
                found = f"{len(row)} fields, the header has {len(header)}"
                raise UserError(found, file=path, line=rows.line_num, remedy=remedy)
        if text and not text.endswith("\n"):  # its last field may have lost digits
            raise UserError("cut short: no end of line", file=path, line=rows.line_num, remedy=remedy)
        return pd.DataFrame(pd.read_csv(io.StringIO(text), **options))
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy=remedy) from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"not a table: {error}", file=path, remedy=remedy) from None
