"""The table of known datasets, ``workflow/datasets.csv``."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path

from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW

TABLE = WORKFLOW / "datasets.csv"


@dataclass(frozen=True)
class Dataset:
    """One row of the table.

    ``train`` and ``eval`` name the hub's splits; without ``eval``, rows are held out of ``train``. ``raw_train`` and
    ``raw_eval`` are glob patterns below a raw folder, separated by spaces; the first that matches is used. ``columns`` names
    the columns of a file without a header.
    """

    name: str
    hub_id: str
    config: str
    train: str
    eval: str
    revision: str
    gated: str
    licence: str
    prompt: str
    reference: str
    raw_train: str
    raw_eval: str
    columns: str
    citation: str
    notes: str

    def lies_in(self, folder: Path) -> bool:
        """Whether a folder has raw files of the dataset."""
        found = (file.name for pattern in self.raw_train.split() for file in folder.glob(pattern))
        return any(not name.startswith(".") for name in found)


@functools.cache
def load() -> dict[str, Dataset]:
    """All datasets by name, in the table's order."""
    if not TABLE.is_file():
        raise UserError(
            "the table of datasets is missing", file=TABLE, remedy="run draftlab from a checkout: pip install -e ."
        )
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = [Dataset(**row) for row in csv.DictReader(file)]
    return {row.name: row for row in rows}


def find(name: str) -> Dataset:
    table = load()
    if name not in table:
        raise UserError(
            f"unknown dataset {name!r}",
            remedy=f"use one of {', '.join(table)}; a file of prompts is the dataset prompts",
        )
    return table[name]


def table_markdown() -> str:
    """The table of datasets on the documentation's page."""
    shown = ("name", "hub_id", "config", "train", "eval", "licence", "gated", "prompt", "reference")
    lines = ["| " + " | ".join(shown) + " |", "|" + "---|" * len(shown)]
    for row in load().values():
        lines.append("| " + " | ".join(str(getattr(row, name)).replace("|", "\\|") for name in shown) + " |")
    return "\n".join(lines) + "\n"
