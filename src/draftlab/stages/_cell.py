"""A cell of an experiment: one file that says everything, run by one function, checked against its stage's row as it is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import tyro

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.files.cells import digests, write_cell
from draftlab.files.digests import code_digest
from draftlab.files.json_files import read_object, split_common, write_json
from draftlab.files.parts import open_parts
from draftlab.stages import STAGES
from draftlab.stages._stage import Bench, Facts, NoInputs, Stage, Variant

IDENTITY = ("stream_index", "request_id", "split")
KINDS = {int: "iu", float: "fiu", str: "OUT", bool: "b"}
"""The kinds of numpy that a column of a type may have; an empty text column reads as numbers."""


def run_file(cell: tyro.conf.Positional[Path]) -> None:
    """Run one cell of an experiment, as described by its cell.json; its table and record go into the same folder."""
    content = read_object(cell)
    try:
        stage = STAGES[content["stage"]]
        variants = [
            Variant(own["labels"], stage.settings.model_validate(own["settings"])) for own in content["variants"]
        ]
        inputs = stage.inputs.model_validate(content["inputs"])
    except KeyError as error:
        raise UserError(
            f"no {error} in it", file=cell, remedy="run the workflow again: it rewrites this file"
        ) from None
    run(stage, variants, inputs, cell.parent)


def run(stage: Stage, variants: Sequence[Variant], inputs: NoInputs, out: Path) -> None:
    """Run every variant in turn and write ``out/rows.csv`` and ``out/run.json``.

    The record says settings that all variants share once; of each run its labels, the settings of its own, and its facts. Finished variants
    are kept below ``out/.parts`` until all are, except where time is measured.
    """
    frames: list[pd.DataFrame] = []
    runs: list[dict[str, Any]] = []
    kept: dict[object, object] = {}
    reads = inputs.reads([variant.settings for variant in variants])
    parts = None
    if len(variants) > 1 and not stage.exclusive:
        code = code_digest(f"draftlab.stages.{stage.name}")
        parts = open_parts(out / ".parts", f"{variants!r} {inputs!r} {digests(out, **reads)} {code}")
    for number, variant in enumerate(variants):
        rows, facts = _run_once(stage, variant, inputs, Bench(out, variant.labels, number, kept), parts)
        frames.append((rows.assign(split=stage.split) if stage.split else rows).assign(**variant.labels))
        runs.append({**variant.labels, **facts})
    if is_first_process():
        table = whole_numbers(stage, identified(pd.concat(frames, ignore_index=True)), variants)
        check(stage, table, variants)
        shared, own = split_common([variant.settings.model_dump(mode="json") for variant in variants])
        runs = [changed | facts_of_run for changed, facts_of_run in zip(own, runs, strict=True)]
        write_cell(out, table, {"stage": stage.name, "settings": shared, "runs": runs}, **reads)
        shutil.rmtree(out / ".parts", ignore_errors=True)


def _run_once(
    stage: Stage, variant: Variant, inputs: NoInputs, bench: Bench, parts: Path | None
) -> tuple[pd.DataFrame, Facts]:
    """Run a variant, or read its rows if a killed process had finished it; the record is written last."""
    if parts is None:
        return stage.run(variant.settings, inputs, bench)
    table, record = (parts / f"{bench.number}.{kind}" for kind in ("parquet", "json"))
    if record.is_file():
        facts = read_object(record)
        if facts.pop("has_saved"):
            bench.once("saved", lambda: None)
        return pd.read_parquet(table), facts
    rows, facts = stage.run(variant.settings, inputs, bench)
    if is_first_process():
        with atomic_path(table) as temporary:
            rows.to_parquet(temporary)
        write_json(record, facts | {"has_saved": "saved" in bench.kept})
    return rows, facts


def identified(table: pd.DataFrame) -> pd.DataFrame:
    """The columns that identify a row come first."""
    first = [name for name in IDENTITY if name in table]
    return table[[*first, *table.columns.drop(first)]]


def is_first_process() -> bool:
    """Of several that were launched together one writes; the launcher numbers them. Asked without torch, which closed forms never load."""
    return os.environ.get("RANK", "0") == "0"


def whole_numbers(stage: Stage, table: pd.DataFrame, variants: Sequence[Variant]) -> pd.DataFrame:
    """Expected counts and labels that are all whole numbers are written as such."""
    columns = stage.columns
    labels = {name for own in variants for name in own.labels}
    for name in table.select_dtypes("float"):
        is_count = name in columns and columns[name].whole
        if (is_count or (name in labels and name not in columns)) and (table[name] % 1 == 0).all():
            table[name] = table[name].astype(int)
    return table


def check(stage: Stage, table: pd.DataFrame, variants: Sequence[Variant]) -> None:
    """The table has the columns of the stage's row, each of its kind, and the labels; a fault is one of the stage's code."""
    labels = {name for own in variants for name in own.labels}
    columns = stage.columns
    missing = [name for name, own in columns.items() if name not in table and not own.optional]
    unknown = [name for name in table if name not in columns and name not in labels]
    kinds = [
        name
        for name, own in columns.items()
        if name in table and name not in labels and table[name].dtype.kind not in KINDS[own.kind]
    ]
    strange = [n for n, own in columns.items() if own.values and n in table and not set(table[n]) <= set(own.values)]
    for what, names in (
        ("lacks", missing),
        ("does not know", unknown),
        ("says another kind for", kinds),
        ("says other words for", strange),
    ):
        if names:
            raise TypeError(f"stage {stage.name}: the table {what} {', '.join(map(str, names))}: see its Row")
