"""Files that lie beside a raw file and belong to its rows: PIQA's labels, Spider's schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftlab.data.readers import RawRow, read_rows
from draftlab.data.registry import Dataset
from draftlab.errors import UserError


def joined(file: Path, dataset: Dataset) -> Iterator[RawRow]:
    """The rows of ``file`` with what its companion says about each."""
    rows = read_rows(file, dataset.columns.split())
    match dataset.name:
        case "piqa":
            return _with_labels(file, rows)
        case "spider_schema":
            return _with_schemas(file.with_name("tables.json"), rows)
    return rows


def beside(file: Path, dataset: Dataset) -> list[Path]:
    """The files that ``joined`` reads besides ``file``."""
    names = {"piqa": f"{file.name.split('.', 1)[0]}-labels.lst", "spider_schema": "tables.json"}
    found = file.with_name(names[dataset.name]) if dataset.name in names else file
    return [found] if found != file and found.is_file() else []


def _with_labels(file: Path, rows: Iterator[RawRow]) -> Iterator[RawRow]:
    """Add ``label`` from ``train-labels.lst`` beside ``train.jsonl``: one line per row, each 0, 1 or -1 (unknown)."""
    beside = file.with_name(f"{file.name.split('.', 1)[0]}-labels.lst")
    if not beside.is_file():
        yield from rows
        return
    remedy = "fetch the labels of these rows, or remove the file to do without labels"
    labels = []
    for line in read_rows(beside):
        label = "" if line.problem else line.row["text"].strip()
        if label not in ("0", "1", "-1"):
            raise UserError("a label is neither 0 nor 1", file=beside, line=line.line, remedy=remedy)
        labels.append(int(label))
    count = sum(1 for _ in read_rows(file))
    if len(labels) != count:
        raise UserError(f"{len(labels)} labels for {count} rows of {file.name}", file=beside, remedy=remedy)
    for raw, known in zip(rows, labels, strict=True):
        yield replace(raw, row=raw.row | {"label": known}) if isinstance(raw.row, dict) else raw


def _with_schemas(tables: Path, rows: Iterator[RawRow]) -> Iterator[RawRow]:
    """Add ``db_schema`` from ``tables.json``, as ``table(column, ...); ...``."""
    if not tables.is_file():
        raise UserError("no tables.json", file=tables.parent, remedy="put it there, or use the dataset spider")
    schemas = {}
    for found in read_rows(tables):
        if found.problem is None and isinstance(found.row.get("db_id"), str):
            try:
                schemas[found.row["db_id"]] = _schema(found.row)
            except (KeyError, TypeError, ValueError):
                raise UserError(
                    "a database without table_names_original and column_names_original",
                    file=tables,
                    line=found.line,
                    remedy="fetch Spider's tables.json again",
                ) from None
    for raw in rows:
        name = raw.row.get("db_id") if isinstance(raw.row, Mapping) else None
        known = isinstance(name, str) and name in schemas
        yield replace(raw, row=raw.row | {"db_schema": schemas[name]}) if known else raw


def _schema(row: Mapping[str, Any]) -> str:
    columns = row["column_names_original"]
    shown = [
        f"{table}({', '.join(name for owner, name in columns if owner == index)})"
        for index, table in enumerate(row["table_names_original"])
    ]
    return "; ".join(shown)
