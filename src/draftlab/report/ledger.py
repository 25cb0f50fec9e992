"""The ledger: every printed number and every claim in words, with our value and a verdict.

The rules are data (``workflow/published``); this module defines only what the verdicts mean. Nothing is dropped: a claim that no
table of this run covers gets the verdict ``not run at this scale``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd

from draftlab.core.stats import CONFIDENCE, Interval
from draftlab.errors import UserError
from draftlab.plan import Scale
from draftlab.report import tidy
from draftlab.report.consistency import Recomputed, run_checks
from draftlab.report.contrast import (
    Contrast,
    Tables,
    bounds,
    compute,
    compute_each,
    correct,
    shift,
    smallest_detectable,
    undecided,
)
from draftlab.report.published import Comparison, Published, Rule, Statement, agrees, same
from draftlab.report.tidy import records

ClaimVerdict = Literal[
    "reproduced",
    "same direction",
    "printed size excluded",
    "undecided",
    "contradicts",
    "inconsistent in print",
    "compared in other rows",
    "not run at this scale",
]
CLAIM_VERDICTS: tuple[ClaimVerdict, ...] = get_args(ClaimVerdict)
ROUNDING = 1e-12
"""Differences up to this size come from the order in which a sum was computed."""
NOTHING = 1e-6
"""Differences up to this size come from the way in which a number was computed."""
POWER = 0.8
RELATED = "related"
"""The ``paper`` of numbers from other papers; they go to a separate ledger."""


@dataclass(frozen=True)
class Judgement:
    """The verdict on one claim and our value (``ours``), which is None if no table covers the claim.

    ``detectable`` is the smallest difference that this run would have detected in 80 % of repeats, in its least sensitive comparison.
    """

    ours: Interval | None
    verdict: ClaimVerdict
    note: str = ""
    detectable: float = math.nan


NOT_RUN = Judgement(None, "not run at this scale")
NO_RULE = "no experiment measures this"


def read_tables(folder: Path, experiments: Collection[str] = ()) -> dict[str, pd.DataFrame]:
    """Read the tables of these experiments (none named: of all) in a folder of results, and add the derived columns."""
    return {name: tidy.read(path) for name, path in tidy.tables_of(folder, experiments).items()}


def judge_claims(
    published: Published, frames: Mapping[str, pd.DataFrame], scale: Scale, *, own_models: bool = False
) -> pd.DataFrame:
    """Return a row with the columns of ``claims.csv`` for each printed number and each statement; ``frames`` maps names to tables.

    With ``own_models`` the models are not those of the scale, so only what its smallest models can reproduce is in the printed setting.
    """
    tables, checked = Tables(frames), run_checks(published)
    setting: Scale = "smoke" if own_models else scale
    rows = [_number_row(row, published, tables, scale, setting, checked) for row in records(published.numbers)]
    statements = published.statements.items()
    rows += [_statement_row(name, claim, tables, scale, setting, checked) for name, claim in statements]
    return pd.DataFrame(rows)


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


def _join(*notes: str) -> str:
    return "; ".join(filter(None, notes))


# --- printed numbers ---------------------------------------------------------------------------------------------


def _number_row(
    row: Mapping[str, Any],
    published: Published,
    tables: Tables,
    scale: Scale,
    setting: Scale,
    checked: Mapping[str, Sequence[Recomputed]],
) -> dict[str, Any]:
    """The row of a printed number; ``scale`` has the tables, and ``setting`` is the scale whose printed setting they share."""
    claim = published.claims[row["claim"]]
    rule = claim.rule
    if rule is None or (rule.only and scale not in rule.only):
        judgement = replace(NOT_RUN, note=claim.why or NO_RULE)
    else:
        judgement = _judge_number(row, rule, published, tables, setting)
    results = checked.get(row["claim_id"], ())
    failed = [result.note for result in results if not result.holds]
    derived = [result for result in results if result.derives]
    if failed:
        note = _join(*failed, judgement.note if judgement.ours else "")
        judgement = replace(judgement, verdict="inconsistent in print", note=note)
    elif judgement.ours is None and derived:
        note = f"recomputed from other printed numbers, not measured: {derived[0].note}"
        judgement = Judgement(Interval(derived[0].recomputed, np.nan, np.nan, 0), "reproduced", note)
    if row["caveat"]:
        judgement = replace(judgement, note=_join(judgement.note, f"source says: {row['caveat']}"))
    facts = {
        "claim_id": row["claim_id"],
        "paper": row["paper"],
        "location": claim.location,
        "quantity": claim.quantity if claim.unit in claim.quantity else f"{claim.quantity} [{claim.unit}]",
        "setting": row["setting"],
        "published": row["printed"],
    }
    return _row(facts, judgement, [] if rule is None else [rule.table_of(row["settings"])], tables)


def _judge_number(
    row: Mapping[str, Any], rule: Rule, published: Published, tables: Tables, setting: Scale
) -> Judgement:
    """Judge one printed number: ``reproduced`` if ours is within tolerance in the printed setting; otherwise by its differences.

    Our difference from each printed neighbour must have the printed sign. A sign counts only if the interval, corrected for the number
    of neighbours, excludes 0. A difference that two rows share is judged once, in the later row.
    """
    filters = _filters(rule, row["settings"])
    if filters is None:
        return replace(NOT_RUN, note="no experiment of ours runs this setting")
    result = compute(rule.measured(filters), tables)
    if result is None:
        return replace(NOT_RUN, note=f"{filters.get('table', rule.table)} does not run this at this scale")
    ours = result.value
    if setting in rule.same_setting and abs(ours.estimate - row["value"]) <= rule.tolerance:
        return Judgement(ours, "reproduced", f"within {rule.tolerance:g} of the printed value")
    gaps, shared = _gaps(row, rule, filters, ours, published, tables)
    if not gaps and setting in rule.same_setting:
        return Judgement(ours, "contradicts", f"not within {rule.tolerance:g} of the printed value")
    if not gaps and shared:
        note = f"each difference is judged once, in the row of: {', '.join(shared)}"
        return Judgement(ours, "compared in other rows", note)
    if not gaps:
        note = "measured in another setting; no other printed number that we measure too differs from it"
        return replace(NOT_RUN, ours=ours, note=note + (f" by more than {rule.margin:g}" if rule.against else ""))
    digit = published.claims[row["claim"]].digit
    judged = [(*_judge_gap(gap, printed, rule, digit, len(gaps)), gap, printed, what) for gap, printed, what in gaps]
    judged.sort(key=lambda each: -CLAIM_VERDICTS.index(each[0]))
    notes = [f"{_signed(gap)} against {what} (printed {printed:+.3g}){why}" for _, why, gap, printed, what in judged]
    verdict = judged[0][0]
    if verdict == "contradicts":
        notes.append(rule.explanation)
    return Judgement(ours, verdict, _join(*notes), _detectable([gap for gap, _, _ in gaps]))


def _detectable(gaps: Sequence[Interval]) -> float:
    """The smallest difference that the least sensitive comparison would have detected; NaN if none has an interval."""
    sizes = [smallest_detectable(gap, len(gaps), POWER) for gap in gaps]
    return max(filter(math.isfinite, sizes), default=math.nan)


def _judge_gap(gap: Interval, printed: float, rule: Rule, digit: float, comparisons: int) -> tuple[ClaimVerdict, str]:
    """The verdict on one of our differences beside the printed one, and a reason if it does not follow from the sign alone.

    If the printed difference counts as none (``alike``), ours must lie within the margin (two one-sided tests). Two printed numbers,
    both rounded, may differ by one ``digit`` more or less than printed.
    """
    low, high = bounds(correct(gap, comparisons))
    if not np.isfinite(gap.estimate):
        return "undecided", ", no value"
    if rule.alike and abs(printed) <= rule.margin:
        if -rule.margin <= low and high <= rule.margin:
            return "same direction", ""
        outside = low > rule.margin or high < -rule.margin
        return ("contradicts", "") if outside else ("undecided", f", interval not within {rule.margin:g}")
    if low >= -NOTHING and high <= NOTHING:
        return "contradicts", ", no difference in ours"
    if not np.isfinite(gap.low) and abs(gap.estimate) <= rule.margin:
        return "undecided", f", up to {rule.margin:g} counts as no difference"
    if low <= NOTHING and high >= -NOTHING:
        return "undecided", ", within noise"
    if (low > 0) != (printed > 0):
        return "contradicts", ""
    if low - digit <= printed <= high + digit:
        return "same direction", ""
    return "printed size excluded", f", {gap.estimate / printed:.2g} times the printed difference"


def _gaps(
    row: Mapping[str, Any], rule: Rule, filters: Mapping[str, Any], ours: Interval, published: Published, tables: Tables
) -> tuple[list[tuple[Interval, float, str]], list[str]]:
    """Our difference from each printed neighbour (and from the rule's level), the printed difference, and the neighbour's name.

    Also returns the names of the neighbours in whose rows, further down, the difference from this one is judged instead.
    """
    gaps = []
    if rule.level is not None:
        over = shift(ours, -rule.level)
        decides = ours.n > 1 or tables.is_exact(rule.select(filters))
        gaps.append((over if decides else undecided(over), row["value"] - rule.level, f"{rule.level:g}"))
    shared = []
    position = published.position
    for settings in rule.against:
        for other in _neighbours(row, settings, published):
            other_rule = published.claims[other["claim"]].rule
            printed = round(row["value"] - other["value"], 9)  # so that 0.67 - 0.65 is no more than a margin of 0.02
            if other_rule is None or (abs(printed) <= rule.margin and not rule.alike):
                continue
            beside = settings.get("ours")
            against = {**filters, **beside} if isinstance(beside, dict) else _filters(other_rule, other["settings"])
            if against is not None and against.get("measure") == filters.get("measure"):
                theirs = (rule if beside else other_rule).select(against)
                result = compute(Contrast(rule.select(filters), theirs), tables)
                later = position[other["claim_id"]] > position[row["claim_id"]]
                if result is not None and later and _compares(other, other_rule, row, published):
                    shared.append(_name(row, other))
                elif result is not None:
                    gaps.append((result.value, printed, _name(row, other)))
    return gaps, shared


def _compares(row: Mapping[str, Any], rule: Rule, other: Mapping[str, Any], published: Published) -> bool:
    """Whether ``rule``, the rule of ``row``, compares it with ``other``."""
    neighbours = itertools.chain.from_iterable(_neighbours(row, settings, published) for settings in rule.against)
    return any(neighbour["claim_id"] == other["claim_id"] for neighbour in neighbours)


def _filters(rule: Rule, settings: Mapping[str, str]) -> dict[str, Any] | None:
    """The filters that select our rows for a printed setting; None if no experiment runs it."""
    filters: dict[str, Any] = {}
    for key, value in settings.items():
        known = rule.where.get(key)
        if known is None:
            raise UserError(f"the rule for {rule.table} does not say what {key!r} is", remedy="add it to `where`")
        if known == "same":
            filters[key] = value
        else:
            matches = [chosen for name, chosen in known.items() if same(name, value)]
            if not matches:
                return None
            filters |= matches[0]
    return filters


def _neighbours(row: Mapping[str, Any], change: Mapping[str, Any], published: Published) -> list[dict[str, Any]]:
    """The printed numbers whose setting equals that of ``row`` except for ``change``, as far as both name the same settings."""
    change = {key: value for key, value in change.items() if key != "ours"}
    claim = change.pop("claim", row["claim"])
    shared = {key: value for key, value in row["settings"].items() if key not in change}
    return [
        other
        for other in published.rows.get(claim, ())
        if other["claim_id"] != row["claim_id"]
        and agrees(other["settings"], change)
        and all(same(shared[key], value) for key, value in other["settings"].items() if key in shared)
    ]


def _name(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """A short name for ``other``: the settings in which it differs from ``row``."""
    differing = {key: value for key, value in other["settings"].items() if row["settings"].get(key) != value}
    parts = [f"{key} {value}" if value[0].isdigit() else value for key, value in differing.items()]
    return ", ".join(parts) or str(other["claim"])


def _signed(gap: Interval) -> str:
    """A difference with its sign and interval as text; values below ``ROUNDING`` are written as 0."""
    estimate, low, high = (0.0 if abs(value) < ROUNDING else value for value in (gap.estimate, gap.low, gap.high))
    interval = f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) else ""
    return f"{estimate:+.3g}{interval}"


# --- statements --------------------------------------------------------------------------------------------------


def _statement_row(
    name: str,
    statement: Statement,
    tables: Tables,
    scale: Scale,
    setting: Scale,
    checked: Mapping[str, Sequence[Recomputed]],
) -> dict[str, Any]:
    results = itertools.chain.from_iterable(checked.values())
    failed = [result.note for result in results if result.check == statement.check and not result.holds]
    answerable = not statement.only or scale in statement.only
    judgement = _judge_statement(statement, tables, setting) if answerable else replace(NOT_RUN, note=statement.why)
    if failed:
        judgement = replace(judgement, verdict="inconsistent in print", note=_join(*failed))
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
    return _row(facts, judgement, [comparison.table for comparison in statement.comparisons], tables)


def _judge_statement(statement: Statement, tables: Tables, setting: Scale) -> Judgement:
    """Judge a claim in words: every comparison must hold in every group, with intervals corrected for the number of comparisons.

    ``ours`` is the difference in the least favourable comparison.
    """
    compared = [
        (
            comparison,
            ", ".join([str(comparison.contrast.left.measure), *(f"{k} {v}" for k, v in result.group.items())]),
            result.value,
        )
        for comparison in statement.comparisons
        for result in compute_each(comparison.contrast, tables)
    ]
    if not compared:
        missing = list(dict.fromkeys(comparison.table for comparison in statement.comparisons))
        verb = "do" if len(missing) > 1 else "does"
        return replace(NOT_RUN, note=f"{', '.join(missing)} {verb} not run this at this scale" if missing else "")
    clear = [_clearance(comparison, correct(gap, len(compared))) for comparison, _, gap in compared]
    held, failed = sum(worst >= 0 for worst, _ in clear), sum(best < 0 for _, best in clear)
    undecided = len(compared) - held - failed
    least = min(range(len(compared)), key=lambda place: (clear[place][1] >= 0, clear[place][0]))
    _, what, gap = compared[least]
    margins = sorted({comparison.margin for comparison in statement.comparisons if comparison.margin})
    allowed = f" within {' or '.join(f'{margin:g}' for margin in margins)}" if margins else ""
    count = f"{held} of {len(compared)} comparisons hold{allowed}"
    count += (f", {failed} fail" if failed else "") + (f", {undecided} undecided" if undecided else "")
    note = f"{count}; least favourable ({what}): {_signed(gap)}"
    verdict: ClaimVerdict = "contradicts" if failed else "undecided" if undecided else "same direction"
    if verdict == "contradicts":
        note = _join(note, statement.explanation)
    if verdict == "same direction" and setting in statement.same_setting:
        verdict = "reproduced"
    return Judgement(gap, verdict, note, _detectable([gap for _, _, gap in compared]))


def _clearance(comparison: Comparison, gap: Interval) -> tuple[float, float]:
    """How far the difference lies on the expected side, at the worst and at the best end of its interval; negative means missed.

    ``not_less`` and ``not_greater`` are one-sided tests against the margin, ``similar`` is two of them.
    """
    low, high = bounds(gap)
    margin = comparison.margin + ROUNDING
    match comparison.expect:
        case "greater":
            return _strictly(low - comparison.by), _strictly(high - comparison.by)
        case "less":
            return _strictly(-high - comparison.by), _strictly(-low - comparison.by)
        case "not_less":
            return low + margin, high + margin
        case "not_greater":
            return margin - high, margin - low
        case "similar":
            nearest = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
            return margin - max(abs(low), abs(high)), margin - nearest


def _strictly(difference: float) -> float:
    """The difference, made slightly negative if it is 0: a difference of 0 is not on the expected side."""
    return difference if difference > 0 else min(difference, -ROUNDING)
