"""The ledger: every printed number and every claim in words, with our value and a verdict.

The rules are data (``workflow/published``); ``judge_numbers`` and ``judge_statements`` say what the verdicts mean. Nothing is dropped: a claim that no
table of this run covers gets the verdict ``not run at this scale``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab.core.stats import CONFIDENCE, Interval
from draftlab.files.atomic import write_text
from draftlab.plan import Scale
from draftlab.report import tidy
from draftlab.report.consistency import Recomputed, run_checks
from draftlab.report.contrast import Tables
from draftlab.report.judge_numbers import judge_number
from draftlab.report.judge_statements import judge_statement
from draftlab.report.judgement import NOT_RUN, Judgement, join
from draftlab.report.published import Published, Statement, load

RELATED = "related"
"""The ``paper`` of numbers from other papers; they go to a separate ledger."""
NO_RULE = "no experiment measures this"


def read_tables(folder: Path, experiments: Collection[str] = ()) -> dict[str, pd.DataFrame]:
    """Read the tables of these experiments (none named: of all) in a folder of results, and add the derived columns."""
    return {name: tidy.read(path, name) for name, path in tidy.tables_of(folder, experiments).items()}


def judge_claims(
    published: Published, frames: Mapping[str, pd.DataFrame], scale: Scale, *, own_models: bool = False
) -> pd.DataFrame:
    """Return a row with the columns of ``claims.csv`` for each printed number and each statement; ``frames`` maps names to tables.

    With ``own_models`` the models are not those of the scale, so only what its smallest models can reproduce is in the printed setting.
    """
    known = _Known(published, run_checks(published), Tables(frames), scale, "smoke" if own_models else scale)
    rows = [_number_row(row, known) for row in tidy.records(published.numbers)]
    return pd.DataFrame(rows + [_statement_row(name, claim, known) for name, claim in published.statements.items()])


@dataclass(frozen=True)
class _Known:
    """What claims are judged by: the printed numbers with their checks, and the ``tables`` of a run at this ``scale``.

    ``setting`` is the scale whose printed setting the tables share.
    """

    published: Published
    checked: Mapping[str, Sequence[Recomputed]]
    tables: Tables
    scale: Scale
    setting: Scale


def by_chance(claims: pd.DataFrame) -> str:
    """How many of these rows of ``claims.csv`` would contradict the papers by chance alone, in a sentence; empty if none has an interval.

    The interval of a true sign lies on the other side in at most 2.5 % of repeats, for all comparisons of a row together.
    """
    decided = claims["verdict"].isin(["same direction", "printed size excluded", "undecided", "contradicts"])
    count = int((decided & pd.to_numeric(claims["ci_low"], errors="coerce").notna()).sum())
    if not count:
        return ""
    share = (1 - CONFIDENCE) / 2
    return (
        f"Of the {count} verdicts that rest on an interval, chance alone would on average make at most {share * count:.1f} "
        f'"contradicts" ({100 * share:g} %).'
    )


def _number_row(row: Mapping[str, Any], known: _Known) -> dict[str, Any]:
    """The row of a printed number."""
    claim = known.published.claims[row["claim"]]
    rule = claim.rule
    if rule is None or (rule.only and known.scale not in rule.only):
        judgement = replace(NOT_RUN, note=claim.why or NO_RULE)
    else:
        judgement = judge_number(row, rule, known.published, known.tables, known.setting)
    results = known.checked.get(row["claim_id"], ())
    failed = [result.note for result in results if not result.holds]
    derived = [result for result in results if result.derives]
    if failed:
        note = join(*failed, judgement.note if judgement.ours else "")
        judgement = replace(judgement, verdict="inconsistent in print", note=note)
    elif judgement.ours is None and derived:
        note = f"recomputed from other printed numbers, not measured: {derived[0].note}"
        judgement = Judgement(Interval(derived[0].recomputed, np.nan, np.nan, 0), "reproduced", note)
    if row["caveat"]:
        judgement = replace(judgement, note=join(judgement.note, f"source says: {row['caveat']}"))
    facts = {
        "claim_id": row["claim_id"],
        "paper": row["paper"],
        "location": claim.location,
        "quantity": claim.quantity if claim.unit in claim.quantity else f"{claim.quantity} [{claim.unit}]",
        "setting": row["setting"],
        "published": row["printed"],
    }
    return _row(facts, judgement, [] if rule is None else [rule.table_of(row["settings"])], known.tables)


def _statement_row(name: str, statement: Statement, known: _Known) -> dict[str, Any]:
    """The row of a claim in words."""
    results = itertools.chain.from_iterable(known.checked.values())
    failed = [result.note for result in results if result.check == statement.check and not result.holds]
    judgement = replace(NOT_RUN, note=statement.why)
    if not statement.only or known.scale in statement.only:
        judgement = judge_statement(statement, known.tables, known.setting)
    if failed:
        judgement = replace(judgement, verdict="inconsistent in print", note=join(*failed))
    elif judgement.ours is None and statement.check is not None:
        judgement = Judgement(None, "reproduced", f"recomputed from the printed numbers: check {statement.check}")
    facts = {
        "claim_id": name,
        "paper": statement.paper,
        "location": statement.location,
        "quantity": statement.text,
        "setting": "",
        "published": "in words",
    }
    return _row(facts, judgement, [comparison.table for comparison in statement.comparisons], known.tables)


def _row(claim: Mapping[str, str], judgement: Judgement, experiments: Sequence[str], tables: Tables) -> dict[str, Any]:
    """A row of the ledger: the facts of the ``claim``, our value, and the verdict."""
    ours = judgement.ours or Interval(np.nan, np.nan, np.nan, 0)
    answered = [name for name in dict.fromkeys(experiments) if name in tables.frames and judgement.ours is not None]
    units = {tidy.resampled_name(tables.frames[name]) or "rows" for name in answered}
    return {
        **claim,
        "ours": float(f"{ours.estimate:.6g}"),
        "ci_low": _finite(ours.low),
        "ci_high": _finite(ours.high),
        "n": ours.n or "",
        "unit": ", ".join(sorted(units)) if ours.n else "",
        "detectable": float(f"{judgement.detectable:.3g}"),
        "verdict": judgement.verdict,
        "experiment": ", ".join(answered),
        "note": judgement.note,
    }


def _finite(end: float) -> float:
    """An end of an interval to six digits; NaN where its spread is not known."""
    return float(f"{end:.6g}") if math.isfinite(end) else math.nan


def write(
    *, tables: Path, scale: Scale, experiments: tuple[str, ...] = (), own_models: bool = False, out: Path
) -> None:
    """Compare every published number and claim with a run's tables, and give each a verdict; those of other papers go to OUT_related.csv.

    **Arguments:**
    - `tables`: the folder of the run's tables
    - `scale`: the scale of the run
    - `experiments`: the experiments of the run, names or your own FILE.yaml; without one, every table that an experiment has
    - `own_models`: the models are not those of the scale
    - `out`: the CSV file to write
    """
    judged = judge_claims(load(), read_tables(tables, experiments), scale, own_models=own_models)
    is_related = judged["paper"] == RELATED
    for file, rows in ((out.with_stem(f"{out.stem}_related"), judged[is_related]), (out, judged[~is_related])):
        write_text(file, rows.to_csv(index=False, lineterminator="\n"))
    for verdict, count in judged[~is_related]["verdict"].value_counts().items():
        print(f"{count:5d} {verdict}")
