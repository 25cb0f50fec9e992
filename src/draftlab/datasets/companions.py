"""Files that lie beside a raw file and belong to its rows: PIQA's labels, Spider's schemas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftlab.datasets.readers import RawRow, read_rows
from draftlab.datasets.registry import Dataset
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


def _with_labels(file: Path, rows: Iterator[RawRow]) -> Iterator[RawRow]:
    """``label`` from ``train-labels.lst`` beside ``train.jsonl``; a file of another length labels nothing."""
    beside = file.with_name(f"{file.name.split('.', 1)[0]}-labels.lst")
    if not beside.is_file():
        yield from rows
        return
    labels = [line.row["text"].strip() if line.problem is None else "" for line in read_rows(beside)]
    count = sum(1 for _ in read_rows(file))
    if len(labels) != count:
        what = f"{len(labels)} labels for {count} rows: no row has a label"
        yield RawRow(str(beside), min(len(labels), count) + 1, "", what)
        yield from rows
        return
    for raw, label in zip(rows, labels, strict=True):
        known = label in ("0", "1") and isinstance(raw.row, dict)
        yield replace(raw, row=raw.row | {"label": int(label)}) if known else raw


def _with_schemas(tables: Path, rows: Iterator[RawRow]) -> Iterator[RawRow]:
    """``db_schema`` from ``tables.json``: ``table(column, ...); ...``."""
    if not tables.is_file():
        raise UserError("no tables.json", file=tables.parent, remedy="put it there, or use the dataset spider")
    schemas = {
        row.row["db_id"]: _schema(row.row)
        for row in read_rows(tables)
        if row.problem is None and isinstance(row.row.get("db_id"), str)
    }
    for raw in rows:
        name = raw.row.get("db_id") if isinstance(raw.row, Mapping) else None
        yield replace(raw, row=raw.row | {"db_schema": schemas[name]}) if name in schemas else raw


def _schema(row: Mapping[str, Any]) -> str:
    columns = row["column_names_original"]
    shown = [
        f"{table}({', '.join(name for owner, name in columns if owner == index)})"
        for index, table in enumerate(row["table_names_original"])
    ]
    return "; ".join(shown)
