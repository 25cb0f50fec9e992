"""Companions: files next to a raw file with labels (PIQA) or schemas (Spider) of its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftlab.data.raw_rows import RawRow
from draftlab.data.readers import read_rows
from draftlab.data.registry import Dataset
from draftlab.errors import UserError


def companion(file: Path, dataset: Dataset) -> Path | None:
    """The path of the companion of a raw file, which may not exist: ``train-labels.lst`` of PIQA's ``train.jsonl``."""
    match dataset.name:
        case "piqa":
            return file.with_name(f"{file.name.split('.', 1)[0]}-labels.lst")
        case "spider_schema":
            return file.with_name("tables.json")
    return None


def joined(file: Path, dataset: Dataset) -> Iterator[RawRow]:
    """The rows of a raw file, with the labels or schemas from its companion."""
    rows, beside = read_rows(file, dataset.columns.split()), companion(file, dataset)
    if beside is None:
        return rows
    return _with_labels(file, beside, rows) if dataset.name == "piqa" else _with_schemas(beside, rows)


def _with_labels(file: Path, beside: Path, rows: Iterator[RawRow]) -> Iterator[RawRow]:
    """Add ``label`` from a file with one line per row, each 0, 1 or -1 (unknown); without the file, rows stay as they are."""
    if not beside.is_file():
        yield from rows
        return
    remedy = "fetch the labels of these rows, or remove the file to do without labels"
    labels: list[int] = []
    for line in read_rows(beside):
        text = "" if line.problem else line.row["text"].strip()
        if text not in ("0", "1", "-1"):
            raise UserError("a label is neither 0 nor 1", file=beside, line=line.line, remedy=remedy)
        labels.append(int(text))
    count = sum(1 for _ in read_rows(file))
    if len(labels) != count:
        raise UserError(f"{len(labels)} labels for {count} rows of {file.name}", file=beside, remedy=remedy)
    for raw, label in zip(rows, labels, strict=True):
        yield replace(raw, row=raw.row | {"label": label}) if isinstance(raw.row, dict) else raw


def _with_schemas(tables: Path, rows: Iterator[RawRow]) -> Iterator[RawRow]:
    """Add ``db_schema`` from ``tables.json``, as ``table(column, ...); ...``."""
    if not tables.is_file():
        raise UserError("no tables.json", file=tables.parent, remedy="put it there, or use the dataset spider")
    schemas = {}
    for database in read_rows(tables):
        if database.problem is None and isinstance(database.row.get("db_id"), str):
            try:
                schemas[database.row["db_id"]] = _schema(database.row)
            except (KeyError, TypeError, ValueError):
                raise UserError(
                    "a database without table_names_original and column_names_original",
                    file=tables,
                    line=database.line,
                    remedy="fetch Spider's tables.json again",
                ) from None
    for raw in rows:
        name = raw.row.get("db_id") if isinstance(raw.row, Mapping) else None
        known = isinstance(name, str) and name in schemas
        yield replace(raw, row=raw.row | {"db_schema": schemas[name]}) if known else raw


def _schema(row: Mapping[str, Any]) -> str:
    columns = row["column_names_original"]
    return "; ".join(
        f"{table}({', '.join(name for owner, name in columns if owner == index)})"
        for index, table in enumerate(row["table_names_original"])
    )
