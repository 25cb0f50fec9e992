"""Runs the variants of a cell, checks their table against the stage's ``Row``, and writes table and record."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import tyro
from pydantic import ValidationError

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path, is_first_process
from draftlab.files.cells import digests, split_common, write_cell
from draftlab.files.digests import code_digest
from draftlab.files.json_files import read_object, write_json
from draftlab.files.parts import open_parts
from draftlab.files.registries import is_own
from draftlab.stages import STAGES
from draftlab.stages._stage import Bench, Facts, NoInputs, Stage, Variant, own_code_of

IDENTITY = ["stream_index", "request_id", "split"]
"""The columns that identify a row come first."""
KINDS = {int: "iu", float: "fiu", str: "OUT", bool: "b"}
"""The kinds of numpy that a column of a type may have; an empty text column reads as numbers."""


def run_file(cell: tyro.conf.Positional[Path]) -> None:
    """Run one cell of an experiment; its table and record go into the folder of its file.

    **Arguments:**
    - `cell`: the cell.json that the workflow wrote
    """
    content = read_object(cell)
    try:
        stage = STAGES[content["stage"]]
        variants = [
            Variant(variant["labels"], stage.settings.model_validate(variant["settings"]))
            for variant in content["variants"]
        ]
        inputs = stage.inputs.model_validate(content["inputs"])
    except (KeyError, ValidationError) as error:
        if isinstance(error, KeyError):
            what = f"no {error} in it"
        else:
            first = error.errors()[0]
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UserError(what, file=cell, remedy="run the workflow again: it rewrites this file") from None
    run(stage, variants, inputs, cell.parent)


def run(stage: Stage, variants: Sequence[Variant], inputs: NoInputs, out: Path) -> None:
    """Run every variant in turn and write ``out/rows.csv`` and ``out/run.json``.

    The record has the settings that all variants share once, and for each variant its labels, its other settings, and its facts. What a
    killed job need not do again is kept below ``out/.parts`` until all variants are finished: what a stage keeps there, and, except where
    time is measured, finished variants.
    """
    frames: list[pd.DataFrame] = []
    runs: list[dict[str, Any]] = []
    kept: dict[object, object] = {}
    reads = inputs.reads([variant.settings for variant in variants])
    code, own = code_digest(f"draftlab.stages.{stage.name}"), own_code_of(variants)
    parts = open_parts(out / ".parts", f"{variants!r} {inputs!r} {digests(out, **reads)} {code} {own}")
    for number, variant in enumerate(variants):
        bench = Bench(out, variant.labels, number, kept, parts)
        if len(variants) == 1 or stage.exclusive:
            rows, facts = _run(stage, variant, inputs, bench)
        else:
            rows, facts = _run_once(stage, variant, inputs, bench)
        frames.append((rows.assign(split=stage.split) if stage.split else rows).assign(**variant.labels))
        runs.append({**variant.labels, **facts})
    if is_first_process():
        labels = {name for variant in variants for name in variant.labels}
        table = _with_integers(stage, pd.concat(frames, ignore_index=True), labels)
        table = table[[name for name in IDENTITY if name in table] + [n for n in table if n not in IDENTITY]]
        _check(stage, table, labels)
        shared, changed = split_common([variant.settings.model_dump(mode="json") for variant in variants])
        runs = [settings | facts for settings, facts in zip(changed, runs, strict=True)]
        facts = {"stage": stage.name, **({"own_code": own} if own else {}), "settings": shared, "runs": runs}
        write_cell(out, table, facts, **reads)
        shutil.rmtree(out / ".parts", ignore_errors=True)


def _run(stage: Stage, variant: Variant, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Run a variant; refuse what is not a table with facts."""
    match returned := stage.run(variant.settings, inputs, bench):
        case (pd.DataFrame(), dict()):
            return returned
    raise stage.error(f"run returned {type(returned).__name__}, not a pair of a DataFrame and a dict of facts")


def _run_once(stage: Stage, variant: Variant, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Run a variant, or read its rows if a killed process had finished it; the record is written last."""
    table, record = bench.part("parquet"), bench.part("json")
    if table is None or record is None:
        return _run(stage, variant, inputs, bench)
    if record.is_file():
        facts = read_object(record)
        if facts.pop("has_saved"):
            bench.kept.setdefault("saved")
        return pd.read_parquet(table), facts
    rows, facts = _run(stage, variant, inputs, bench)
    if is_first_process():
        with atomic_path(table) as temporary:
            rows.to_parquet(temporary)
        write_json(record, facts | {"has_saved": "saved" in bench.kept})
    return rows, facts


def _with_integers(stage: Stage, table: pd.DataFrame, labels: Collection[str]) -> pd.DataFrame:
    """Write expected counts and labels as integers where every value of the column is one."""
    columns = stage.columns
    for name in table.select_dtypes("float"):
        may_be = columns[name].whole if name in columns else name in labels
        if may_be and (table[name] % 1 == 0).all():
            table[name] = table[name].astype(int)
    return table


def _check(stage: Stage, table: pd.DataFrame, labels: Collection[str]) -> None:
    """Refuse a table whose columns are not those of the stage's ``Row`` and the labels: a fault in the stage's code."""
    columns = stage.columns
    present = {name: column for name, column in columns.items() if name in table}
    faults: dict[str, list[Any]] = {
        "lacks": [name for name, column in columns.items() if name not in table and not column.optional],
        "has unknown": [name for name in table if name not in columns and name not in labels],
        "has the wrong kind of": [
            name
            for name, column in present.items()
            if name not in labels and table[name].dtype.kind not in KINDS[column.kind]
        ],
        "has unknown values in": [
            name
            for name, column in present.items()
            if column.values and not all(map(is_own, set(table[name]) - set(column.values)))
        ],
    }
    for fault, names in faults.items():
        if names:
            raise stage.error(f"the table {fault} {', '.join(map(str, names))}: see its Row")
