"""Compares the tables of two runs of the same plan, apart from measured times: which columns differ, by how much, and which verdicts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import tyro

from draftlab.errors import UserError
from draftlab.files.tables import CLAIMS, read_texts, tables_in
from draftlab.report import published, tidy

JUDGED = ("ours", "ci_low", "ci_high", "n", "detectable", "verdict", "note")
"""Columns of ``claims.csv`` that are computed from the tables."""

Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Difference:
    """A column whose text differs between two runs.

    ``rows`` is the number of rows that differ (0 if the tables cannot be compared row by row), ``largest`` the largest relative
    difference.
    """

    table: str
    column: str
    rows: int
    largest: float = float("nan")

    def __str__(self) -> str:
        size = "" if np.isnan(self.largest) else f", by at most {self.largest:.2g} of their size"
        return f"{self.table}: {self.column}" + (f": {self.rows} rows differ{size}" if self.rows else "")


def is_measured(table: str, column: str) -> bool:
    """Whether the stage of an experiment declares that this column depends on how long something took."""
    if not tidy.file_of(table).exists():
        return False
    plan = tidy.plan_of(table)
    return any(plan.stage_kind.is_timed(column, plan.fixed | size.fixed) for size in plan.scales.values())


def differences(tables: Tables, others: Tables) -> list[Difference]:
    """List what differs between the tables of two runs, apart from measured columns and the claims judged by them."""
    listed = [Difference(name, "in one run only", 0) for name in sorted(tables.keys() ^ others.keys())]
    timed = _timed_claims(tables)
    for name in sorted(tables.keys() & others.keys()):
        listed += _differing_columns(name, tables[name], others[name], timed)
    return listed


def tables_of(folder: Path) -> Tables:
    """Read every table of a run, or of a folder in paper_figures, as text, so that equal cells are equal byte for byte."""
    if (folder / "data/provenance.json").is_file():  # beside the printed tables of a published run
        folder /= "data"
    paths = tables_in(folder) | {path.stem: path for path in folder.glob(f"{CLAIMS}.csv")}
    if not paths:
        raise UserError("no tables here", file=folder, remedy="name the folder of a finished run below results/")
    return {name: read_texts(path) for name, path in paths.items()}


def _differing_columns(name: str, one: pd.DataFrame, two: pd.DataFrame, timed: frozenset[str]) -> Iterator[Difference]:
    """The columns in which two versions of one table differ; ``timed`` are the claims whose judgement depends on measured times."""
    if list(one.columns) != list(two.columns):
        lone = sorted(set(one.columns) ^ set(two.columns))
        yield Difference(name, f"other columns ({', '.join(lone)})" if lone else "columns in another order", 0)
        return
    if len(one) != len(two):
        yield Difference(name, f"{len(one)} rows against {len(two)}", 0)
        return
    judged = one["claim_id"].isin(timed) if name == "claims" else pd.Series(False, index=one.index)
    for column in one.columns:
        differs = (one[column] != two[column]) & ~(judged & (column in JUDGED))
        if differs.any() and not is_measured(name, column):
            yield Difference(name, column, int(differs.sum()), _relative(one[column][differs], two[column][differs]))


def _relative(one: pd.Series, two: pd.Series) -> float:
    """The largest relative difference of two columns of text; NaN if a value is not a number."""
    left, right = (pd.to_numeric(column, errors="coerce").to_numpy(dtype=float) for column in (one, two))
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right) / np.maximum(np.abs(left), np.abs(right))
    return float(np.where(left == right, 0.0, apart).max())  # 0 and 0.0 are the same number


def _timed_claims(tables: Tables) -> frozenset[str]:
    """The ids of claims that read a measured column, or a derived column of a table that has measured columns."""

    def timed(estimand: published.Estimand) -> bool:
        columns = tables.get(estimand.table, pd.DataFrame()).columns
        exact = {column for column in columns if not is_measured(estimand.table, column)}
        read = set(estimand.select({}).measure.columns)
        return len(exact) < len(columns) and not read <= exact

    known = published.load()
    rules = {name for name, claim in known.claims.items() if claim.rule is not None and timed(claim.rule)}
    statements = {name for name, statement in known.statements.items() if any(map(timed, statement.comparisons))}
    return frozenset(known.numbers["claim_id"][known.numbers["claim"].isin(rules)]) | statements


def verdicts(tables: Tables, others: Tables) -> list[str]:
    """How far the claims of two runs agree, apart from those about times: by their intervals, and the verdicts that differ."""
    if CLAIMS not in tables or CLAIMS not in others:
        return []
    claims = tables[CLAIMS].merge(others[CLAIMS], on="claim_id", suffixes=("", "_other"))
    claims = claims[~claims["claim_id"].isin(_timed_claims(tables))]
    ours, low, high, _, other_low, other_high = (
        pd.to_numeric(claims[f"{name}{suffix}"], errors="coerce")
        for suffix in ("", "_other")
        for name in ("ours", "ci_low", "ci_high")
    )
    known = (low < high) & (other_low < other_high)
    within = int((known & ours.between(other_low, other_high)).sum())
    overlap = int((known & (low <= other_high) & (other_low <= high)).sum())
    changed = claims[claims["verdict"] != claims["verdict_other"]]
    changes = ("from " + changed["verdict"] + " to " + changed["verdict_other"]).value_counts().sort_index()
    return [
        f"claims: of {known.sum()} estimates with an interval, {within} lie in the other run's interval, and {overlap} intervals overlap",
        f"claims: {len(changed)} of {len(claims)} verdicts differ",
        *(f"claims: {count} {change}" for change, count in changes.items()),
    ]


def compare(one: tyro.conf.Positional[Path], two: tyro.conf.Positional[Path]) -> None:
    """Compare the tables of two runs, apart from measured times: list the columns that differ, by how much, and count the verdicts that do.

    **Arguments:**
    - `one`: the folder of a run, or of published tables
    - `two`: the folder of the other
    """
    tables, others = tables_of(one), tables_of(two)
    if differing := differences(tables, others):
        count = len({difference.table for difference in differing})
        why = 'docs/robustness.md, "The same tables again", says what another processor or number of threads changes'
        last = f"tables that differ: {count}; {why}"
        sys.exit("\n".join([*map(str, differing), *verdicts(tables, others), last]))
    print("the tables are the same apart from measured times")
