"""Traces a figure to its table, the runs behind the table, their models and answers, and the raw data.

A run's figure is traced through the run's folder, a published one through the record that was written when it was published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tyro

from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.cells import split_common
from draftlab.files.digests import sha256
from draftlab.files.json_files import read_json, read_text, write_json
from draftlab.files.tables import count_rows, publish_table, table_bytes, tables_in
from draftlab.plan import times

RECORD = "provenance.json"
DIGESTED = ("tables", "pairs", "models")
"""Kinds of inputs for which the digest is all that is recorded."""


def trace(figure: Path) -> Iterator[str]:
    """Yield the provenance of a figure or table in ``results/<run>/figures`` or ``paper_figures/<run>``, one line per item.

    The rows behind them work too: ``results/<run>/<experiment>.csv`` and ``paper_figures/<run>/data/<experiment>.csv.gz``.
    """
    experiment = figure.name.partition(".")[0]
    if not figure.exists():
        remedy = "check the path; a run draws its figures into results/RUN/figures"
        raise UserError("no such figure", file=figure, remedy=remedy)
    data = next((place for place in (figure.parent / "data", figure.parent) if (place / RECORD).exists()), None)
    if data:
        known = read_json(data / RECORD)
        if experiment not in known:
            raise UserError(f"no record of {experiment}", file=data / RECORD, remedy="publish it again")
        table, record = data / f"{experiment}.csv.gz", known[experiment]
        if record["table"]["sha256"] != hashlib.sha256(table_bytes(table)).hexdigest():
            raise UserError("the table is not the one that was published", file=table, remedy="publish it again")
    else:
        folder = figure.parent.resolve()  # the parent of "." or ".." is another folder
        is_rows = not (folder.parent / f"{experiment}.csv").exists() and figure.name == f"{experiment}.csv"
        run = folder if is_rows else folder.parent
        table = run / f"{experiment}.csv"
        record = describe(run, experiment)
    if figure.resolve() != table.resolve():
        yield f"figure   {figure}  sha256 {sha256(figure)[:16]}"
    yield from _lines(record, table)


def describe(run: Path, experiment: str) -> dict[str, Any]:
    """Collect the provenance of one table of a run as plain values, ready for JSON."""
    table = run / f"{experiment}.csv"
    if not table.exists():
        raise UserError(
            "no such table",
            file=table,
            remedy="run the experiment, or name a figure or table in results/RUN/figures",
        )
    cells = cells_of(run, experiment)
    inputs: dict[str, dict[str, str | None]] = {kind: {} for kind in ("models", "tables", "pairs", "answers", "data")}
    read = [cell.pop("inputs", {}) for cell in cells.values()]
    pairs = {name: None for files in read for name in files.get("pairs", {})}
    for files in [*read, *(read_json((run / name).with_suffix(".json")) for name in pairs)]:
        for kind, digests in files.items():
            inputs[kind].update(digests)
    answered = [Path(name).parent for name in sorted(inputs["answers"])]
    datasets = {folder.name.split(".")[0] for folder in answered} | {Path(name).parts[1] for name in inputs["data"]}
    common, varied = split_common([{"cell": cell} | flatten(facts) for cell, facts in cells.items()])
    return {
        "table": {"sha256": sha256(table), "rows": count_rows(table)},
        "common": common,
        "cells": varied,
        **{kind: dict(sorted(inputs[kind].items())) for kind in DIGESTED},
        "answers": {str(folder): read_json(run / folder / "pass.json") for folder in answered},
        "data": {name: read_json(run / "data" / name / "summary.json")["provenance"] for name in sorted(datasets)},
    }


def cells_of(run: Path, experiment: str) -> dict[str, Any]:
    """The run records of the cells that a table was joined from, by cell; none for a run without cells of this experiment."""
    folder = run / "cells" / experiment
    names = read_text(folder.with_name(f"{experiment}.txt")).split() if folder.exists() else []
    return {name: read_json(folder / name / "run.json") for name in sorted(names)}


def publish(results: Path, tables: tuple[str, ...], out: Path) -> None:
    """Compress the tables of a run into a folder from which published figures are drawn, with each table's provenance and the times of jobs.

    **Arguments:**
    - `results`: the folder of the run
    - `tables`: the names of the tables, without .csv
    - `out`: the folder of published tables: paper_figures/SCALE/data
    """
    if not tables:
        raise UserError("no tables to publish", remedy="name at least one with --tables")
    records = {name: describe(results, name) for name in tables}  # a missing table is found before the first copy
    for name in tables:
        publish_table(results / f"{name}.csv", out)
    known = read_json(out / RECORD) if (out / RECORD).exists() else {}
    kept = {name: known[name] for name in known.keys() & tables_in(out).keys()}
    write_json(out / RECORD, dict(sorted((kept | records).items())))
    if took := times.read_times([out / times.FILE, results / "logs" / times.FILE]):
        write_text(out / times.FILE, "".join(f"{name}\t{took[name]:.2f}\n" for name in sorted(took)))


def _lines(record: Mapping[str, Any], table: Path) -> Iterator[str]:
    """The provenance of one table as lines of text, from the table down to the raw data."""
    yield f"table    {table}  sha256 {record['table']['sha256'][:16]}, {record['table']['rows']} rows"
    for key, value in record["common"].items():
        yield f"         {_facts({key: value})}"
    for cell in record["cells"]:
        yield f"run      {cell['cell']}  {_facts(cell, 'cell')}".rstrip()
    for kind in DIGESTED:
        for name, digest in record[kind].items():
            yield f"{kind.removesuffix('s'):8} {name}  " + (f"sha256 {digest[:16]}" if digest else "random weights")
    for name, answers in record["answers"].items():
        yield f"answers  {name}  {_facts(flatten(answers))}"
    for dataset, splits in record["data"].items():
        for raw in splits.values():
            yield f"raw data {dataset}  {_facts(raw, 'dataset')}"


def _facts(values: Mapping[str, Any], without: str = "") -> str:
    """``key = value`` for every key but one."""
    return "  ".join(f"{key} = {_describe(value)}" for key, value in values.items() if key != without)


def flatten(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into one, with keys joined by dots; a list that holds a single mapping counts as that mapping."""
    flat: dict[str, Any] = {}
    for key, item in value.items():
        if isinstance(item, list) and len(item) == 1 and isinstance(item[0], Mapping):
            item = item[0]
        flat |= flatten(item, f"{prefix}{key}.") if isinstance(item, Mapping) else {f"{prefix}{key}": item}
    return flat


def _describe(value: Any) -> str:
    """A value as text: lists joined by commas, SHA-256 digests shortened."""
    if isinstance(value, list):
        return ",".join(map(_describe, value))
    return str(value)[:16] if isinstance(value, str) and len(value) == 64 else str(value)


def show(figure: tyro.conf.Positional[Path]) -> None:
    """Print where a figure comes from: its table, runs, models, answers and raw data.

    **Arguments:**
    - `figure`: a figure or its table, in a run's folder or in paper_figures/
    """
    print(*trace(figure), sep="\n")
