"""Two runs of one plan, table by table: equal but for measured times, or by how much they differ."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import tyro

from draftlab.errors import UserError
from draftlab.files.tables import CLAIMS, read_table, tables_in
from draftlab.report import published, tidy

JUDGED = ("ours", "ci_low", "ci_high", "n", "detectable", "verdict", "note")
"""Columns of ``claims.csv`` that follow from the tables."""


@dataclass(frozen=True)
class Difference:
    """A column that is not the same text in both runs: in how many ``rows`` (0: the tables cannot be laid side by side), and by how
    much of its size at most."""

    table: str
    column: str
    rows: int
    largest: float = float("nan")

    def __str__(self) -> str:
        size = "" if np.isnan(self.largest) else f", by at most {self.largest:.2g} of their size"
        return f"{self.table}: {self.column}" + (f": {self.rows} rows differ{size}" if self.rows else "")


def is_measured(table: str, column: str) -> bool:
    """Whether a column of an experiment's table depends on how long something took, as its stage says."""
    plan = tidy.plan_of(table)
    sizes = [] if plan is None else [(plan.of_stage, plan.fixed | size.fixed) for size in plan.scales.values()]
    return any(stage.is_timed(column, settings) for stage, settings in sizes)


def differences(one: Path, two: Path) -> list[Difference]:
    """What differs between the tables of two results folders; measured columns and what the ledger says of them are left out."""
    tables, others = _tables(one), _tables(two)
    found = [Difference(name, "in one run only", 0) for name in sorted(tables.keys() ^ others.keys())]
    timed = _timed_claims(tables)
    for name in sorted(tables.keys() & others.keys()):
        found += _between(name, tables[name], others[name], timed)
    return found


def _tables(folder: Path) -> dict[str, pd.DataFrame]:
    """Every table as text: what is equal then is equal byte for byte."""
    paths = tables_in(folder) | {path.stem: path for path in folder.glob(f"{CLAIMS}.csv")}
    if not paths:
        raise UserError("no tables here", file=folder, remedy="name the folder of a finished run below results/")
    return {name: read_table(path, dtype=str, keep_default_na=False) for name, path in paths.items()}


def _between(name: str, one: pd.DataFrame, two: pd.DataFrame, timed: frozenset[str]) -> Iterator[Difference]:
    if list(one.columns) != list(two.columns):
        lone = sorted(set(one.columns) ^ set(two.columns))
        yield Difference(name, f"other columns ({', '.join(lone)})" if lone else "columns in another order", 0)
        return
    if len(one) != len(two):
        yield Difference(name, f"{len(one)} rows against {len(two)}", 0)
        return
    judged = one["claim_id"].isin(timed) if name == "claims" else pd.Series(False, index=one.index)
    for column in one.columns.drop([column for column in one if is_measured(name, str(column))]):
        differs = (one[column] != two[column]) & ~(judged & (column in JUDGED))
        if differs.any():
            yield Difference(name, column, int(differs.sum()), _relative(one[column][differs], two[column][differs]))


def _relative(one: pd.Series, two: pd.Series) -> float:
    """Largest difference over the larger magnitude; NaN where one is no number."""
    left, right = (pd.to_numeric(column, errors="coerce").to_numpy(dtype=float) for column in (one, two))
    return float((np.abs(left - right) / np.maximum(np.abs(left), np.abs(right))).max())


def _timed_claims(tables: Mapping[str, pd.DataFrame]) -> frozenset[str]:
    """The rows of the ledger that read a measured column, or one that ``tidy`` derives in a table with measured columns."""

    def timed(selection: published.Selection) -> bool:
        columns = tables.get(selection.table, pd.DataFrame()).columns
        exact = {column for column in columns if not is_measured(selection.table, column)}
        read = set(selection.rows({}).measure.columns)
        return len(exact) < len(columns) and not read <= exact

    known = published.load()
    rules = {name for name, claim in known.claims.items() if claim.rule is not None and timed(claim.rule)}
    said = {name for name, statement in known.statements.items() if any(map(timed, statement.holds))}
    return frozenset(known.numbers["claim_id"][known.numbers["claim"].isin(rules)]) | said


def compare(one: tyro.conf.Positional[Path], two: tyro.conf.Positional[Path]) -> None:
    """Compare the tables of two runs, apart from measured times; list the columns that differ, and by how much."""
    if found := differences(one, two):
        sys.exit("\n".join(map(str, found)))
    print("the tables are the same apart from measured times")
