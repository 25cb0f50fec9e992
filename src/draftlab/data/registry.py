"""The table of known datasets, ``workflow/datasets.csv``."""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW

TABLE = WORKFLOW / "datasets.csv"
Split = Literal["train", "eval"]


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

    @property
    def place(self) -> str:
        """What decides which rows the dataset has; an edit of what is said about them changes nothing."""
        fields = (self.hub_id, self.config, self.train, self.eval, self.revision, self.raw_train, self.raw_eval)
        return repr((self.name, *fields, self.columns))

    def files_in(self, folder: Path, split: Split) -> list[list[Path]]:
        """The raw files of a split by pattern, without patterns that match none. Hidden files are none of the dataset's (macOS writes them)."""
        patterns = (self.raw_train if split == "train" else self.raw_eval).split()
        found = ([file for file in folder.glob(pattern) if not file.name.startswith(".")] for pattern in patterns)
        return [sorted(files) for files in found if files]


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
    """The dataset of this name; a ``UserError`` lists the known ones."""
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
