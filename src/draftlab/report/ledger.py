"""The ledger: every printed number and every claim in words beside ours, with a verdict.

The rules are data (``workflow/published``); here is only what a verdict means. Nothing is dropped: what no table of this run
answers is ``not run at this scale``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from draftlab.core.stats import Interval
from draftlab.errors import UserError
from draftlab.files.tables import tables_in
from draftlab.plan import Scale
from draftlab.report import tidy
from draftlab.report.consistency import Recomputed, run_checks
from draftlab.report.contrast import Contrast, Tables, bounds, compute, compute_each, shift
from draftlab.report.published import Comparison, Published, Rule, Statement, same
from draftlab.report.tidy import records

Verdict = Literal["reproduced", "same direction", "contradicts", "inconsistent in print", "not run at this scale"]
VERDICTS: tuple[Verdict, ...] = (
    "reproduced",
    "same direction",
    "contradicts",
    "inconsistent in print",
    "not run at this scale",
)
ROUNDING = 1e-12
"""A difference this small is one of the order of a sum."""
NOTHING = 1e-6
"""A difference this small is one of how a number was computed."""
COLUMNS = (
    "claim_id",
    "paper",
    "location",
    "quantity",
    "setting",
    "published",
    "ours",
    "ci_low",
    "ci_high",
    "n",
    "verdict",
    "note",
)


@dataclass(frozen=True)
class Judgement:
    """What our tables say to one claim; ``ours`` is None where they say nothing."""

    ours: Interval | None
    verdict: Verdict
    note: str = ""


NO_GAP = "no difference"
NOT_RUN = Judgement(None, "not run at this scale")


def read_tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The table of every experiment in a folder of results, with its derived columns."""
    paths = tables_in(folder)
    if not paths:
        raise UserError("no tables here", file=folder, remedy="run the experiments first")
    return {name: tidy.read(path) for name, path in paths.items()}


def judge_claims(published: Published, frames: Mapping[str, pd.DataFrame], scale: Scale) -> pd.DataFrame:
    """One row per printed number and per statement, in the columns of ``claims.csv``; ``frames`` are the run's tables by name."""
    tables = Tables(frames)
    checked = run_checks(published)
    rows = [_number_row(row, published, tables, scale, checked) for row in records(published.numbers)]
    rows += [_statement_row(name, said, tables, scale, checked) for name, said in published.statements.items()]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _row(
    claim_id: str, paper: str, location: str, quantity: str, setting: str, printed: str, judgement: Judgement
) -> dict[str, Any]:
    ours = judgement.ours or Interval(np.nan, np.nan, np.nan, 0)
    return {
        "claim_id": claim_id,
        "paper": paper,
        "location": location,
        "quantity": quantity,
        "setting": setting,
        "published": printed,
        "ours": float(f"{ours.estimate:.6g}"),
        "ci_low": float(f"{ours.low:.6g}"),
        "ci_high": float(f"{ours.high:.6g}"),
        "n": ours.n or "",
        "verdict": judgement.verdict,
        "note": judgement.note,
    }


# --- printed numbers ---------------------------------------------------------------------------------------------


def _number_row(
    row: Mapping[str, Any],
    published: Published,
    tables: Tables,
    scale: Scale,
    checked: Mapping[str, Sequence[Recomputed]],
) -> dict[str, Any]:
    claim = published.claims[row["claim"]]
    judgement = NOT_RUN if claim.rule is None else _judge_number(row, claim.rule, published, tables, scale)
    found = checked.get(row["claim_id"], ())
    failed = [result for result in found if not result.holds]
    derived = [result for result in found if result.derives]
    if failed:
        notes = [result.note for result in failed] + [judgement.note]
        judgement = Judgement(judgement.ours, "inconsistent in print", "; ".join(filter(None, notes)))
    elif judgement is NOT_RUN and derived:
        ours = Interval(derived[0].recomputed, np.nan, np.nan, 0)
        judgement = Judgement(ours, "reproduced", f"recomputed, no experiment: {derived[0].note}")
    if row["caveat"]:
        judgement = Judgement(
            judgement.ours,
            judgement.verdict,
            "; ".join(filter(None, [judgement.note, f"source says: {row['caveat']}"])),
        )
    quantity = claim.quantity if claim.unit in claim.quantity else f"{claim.quantity} [{claim.unit}]"
    return _row(row["claim_id"], row["paper"], claim.location, quantity, row["setting"], row["printed"], judgement)


def _judge_number(row: Mapping[str, Any], rule: Rule, published: Published, tables: Tables, scale: Scale) -> Judgement:
    """``reproduced`` in the printed setting within tolerance; else the order against the printed neighbours decides."""
    filters = _filters(rule, row["settings"])
    found = None if filters is None else compute(rule.measured(filters), tables)
    if filters is None or found is None:
        return NOT_RUN
    ours = found.value
    if scale in rule.same_setting and abs(ours.estimate - row["value"]) <= rule.tolerance:
        return Judgement(ours, "reproduced", f"within {rule.tolerance:g} of the printed value")
    agreeing, doubtful, opposite = [], [], []
    for gap, printed, what in _gaps(row, rule, filters, ours, published, tables):
        words = f"{_signed(gap)} against {what} (printed {printed:+.3g})"
        as_small = rule.alike and abs(printed) <= rule.margin
        doubt = _explain_noise(gap, rule.margin, as_small)
        if abs(gap.estimate) <= rule.margin if as_small else gap.estimate * printed > 0 and doubt != NO_GAP:
            agreeing.append(words + (f", {doubt}" if doubt and not as_small else ""))
        elif doubt:
            doubtful.append(f"{words}, {doubt}")
        else:
            opposite.append(words)
    if opposite or (doubtful and not agreeing):
        return Judgement(ours, "contradicts", "; ".join(filter(None, [*opposite, *doubtful, rule.explanation])))
    if agreeing:
        return Judgement(ours, "same direction", "; ".join(agreeing + doubtful))
    if scale in rule.same_setting:
        return Judgement(ours, "contradicts", f"not within {rule.tolerance:g} of the printed value")
    return Judgement(
        ours, "not run at this scale", "measured, but in another setting and with no neighbour to stand to"
    )


def _explain_noise(gap: Interval, margin: float, as_small: bool) -> str:
    """Why a difference decides nothing; empty where it decides. Without an interval the margin is all the noise that is known."""
    if abs(gap.estimate) <= (NOTHING if np.isfinite(gap.low) else max(margin, NOTHING)):
        return NO_GAP
    if gap.low <= 0 <= gap.high:
        return "within noise"
    reaches = as_small and gap.low <= margin and gap.high >= -margin
    return f"the interval reaches the {margin:g} that count as none" if reaches else ""


def _gaps(
    row: Mapping[str, Any], rule: Rule, filters: Mapping[str, Any], ours: Interval, published: Published, tables: Tables
) -> Iterator[tuple[Interval, float, str]]:
    """Our difference to each printed neighbour (and to the rule's level), the printed difference, and what it is to."""
    if rule.level is not None:
        yield shift(ours, -rule.level), row["value"] - rule.level, f"{rule.level:g}"
    for settings in rule.against:
        for other in _neighbours(row, settings, published):
            other_rule = published.claims[other["claim"]].rule
            printed = row["value"] - other["value"]
            if other_rule is None or (abs(printed) <= rule.margin and not rule.alike):
                continue
            against = _filters(other_rule, other["settings"])
            if against is not None and against.get("measure") == filters.get("measure"):
                found = compute(Contrast(rule.rows(filters), other_rule.rows(against)), tables)
                if found is not None:
                    yield found.value, printed, _name(row, other)


def _filters(rule: Rule, settings: Mapping[str, str]) -> dict[str, Any] | None:
    """The rows of our table that a printed setting names; None where it was not run."""
    filters: dict[str, Any] = {}
    for key, value in settings.items():
        known = rule.where.get(key)
        if known is None:
            raise UserError(f"the rule for {rule.table} does not say what {key!r} is", remedy="add it to `where`")
        if known == "same":
            filters[key] = value
        else:
            found = [chosen for name, chosen in known.items() if same(name, value)]
            if not found:
                return None
            filters |= found[0]
    return filters


def _neighbours(row: Mapping[str, Any], change: Mapping[str, Any], published: Published) -> list[dict[str, Any]]:
    """The printed numbers whose setting is the row's own, ``change`` aside (one, or none)."""
    change = dict(change)
    claim = change.pop("claim", row["claim"])
    shared = {key: value for key, value in row["settings"].items() if key not in change}
    found = published.of(claim, **change)
    keep = [
        claim_id != row["claim_id"]
        and all(same(shared[key], value) for key, value in settings.items() if key in shared)
        for claim_id, settings in zip(found["claim_id"], found["settings"], strict=True)
    ]
    return records(found[np.array(keep, dtype=bool)])


def _name(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    own, its = row["settings"], other["settings"]
    parts = [
        value if not value[0].isdigit() else f"{key} {value}" for key, value in its.items() if own.get(key) != value
    ]
    return ", ".join(parts) or str(other["claim"])


def _signed(gap: Interval) -> str:
    """A difference as text; what is under the rounding of sums is 0."""
    estimate, low, high = (0.0 if abs(value) < ROUNDING else value for value in (gap.estimate, gap.low, gap.high))
    interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
    return f"{estimate:+.3g}{interval}"


# --- statements --------------------------------------------------------------------------------------------------


def _statement_row(
    name: str, said: Statement, tables: Tables, scale: Scale, checked: Mapping[str, Sequence[Recomputed]]
) -> dict[str, Any]:
    failed = [f for found in checked.values() for f in found if f.check == said.check and not f.holds]
    judgement = _judge_statement(said, tables, scale)
    if failed:
        judgement = Judgement(judgement.ours, "inconsistent in print", "; ".join(result.note for result in failed))
    elif judgement is NOT_RUN and said.check is not None:
        judgement = Judgement(None, "reproduced", f"recomputed from the printed numbers: check {said.check}")
    return _row(name, said.paper, said.location, said.says, "", "in words", judgement)


def _judge_statement(said: Statement, tables: Tables, scale: Scale) -> Judgement:
    """No comparison may fail in any group beyond noise, and at least half must hold; ``ours`` is the one that holds least."""
    seen: list[tuple[float, float, str, Interval]] = []
    for comparison in said.holds:
        for result in compute_each(comparison.contrast, tables):
            group = ", ".join(f"{key} {value}" for key, value in result.group.items())
            seen.append((*_clearance(comparison, result.value), group, result.value))
    if not seen:
        return NOT_RUN
    held = sum(clear >= 0 for clear, _, _, _ in seen)
    undecided = sum(clear < 0 <= at_best for clear, at_best, _, _ in seen)
    _, _, group, gap = min(seen, key=lambda entry: (entry[1] >= 0, entry[0]))
    margins = sorted({comparison.margin for comparison in said.holds if comparison.margin})
    allowed = f" within {' or '.join(f'{margin:g}' for margin in margins)}" if margins else ""
    count = f"{held} of {len(seen)} comparisons hold{allowed}" + (
        f", {undecided} fail by less than their interval" if undecided else ""
    )
    least = f"least{f' at {group}' if group else ''}: {_signed(gap)}"
    if held + undecided < len(seen) or 2 * held < len(seen):
        return Judgement(gap, "contradicts", "; ".join(filter(None, [count, least, said.explanation])))
    return Judgement(gap, "reproduced" if scale in said.same_setting else "same direction", f"{count}; {least}")


def _clearance(comparison: Comparison, gap: Interval) -> tuple[float, float]:
    """How far the difference is on the expected side, as estimated and at best within its interval; negative: missed."""
    low, high = bounds(gap)
    margin, least = comparison.margin + ROUNDING, 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    match comparison.expect:
        case "greater":
            return _strictly(gap.estimate - comparison.by), _strictly(high - comparison.by)
        case "less":
            return _strictly(-gap.estimate - comparison.by), _strictly(-low - comparison.by)
        case "not_less":
            return gap.estimate + margin, high + margin
        case "not_greater":
            return margin - gap.estimate, margin - low
        case "similar":
            return margin - abs(gap.estimate), margin - least


def _strictly(difference: float) -> float:
    """A difference of 0 is not on the expected side."""
    return difference if difference > 0 else min(difference, -ROUNDING)
