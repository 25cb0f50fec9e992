"""Judges a printed number by our value, and by our differences from its neighbours in print."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from draftlab.core.stats import Interval
from draftlab.errors import UserError
from draftlab.plan import Scale
from draftlab.report.contrast import Contrast, Tables, compute
from draftlab.report.intervals import bounds, correct, shift, undecided
from draftlab.report.judgement import CLAIM_VERDICTS, NOT_RUN, ClaimVerdict, Judgement, detectable, join, signed
from draftlab.report.published import Published, Rule, agrees, same

NOTHING = 1e-6
"""Differences up to this size come from the way in which a number was computed."""


def judge_number(row: Mapping[str, Any], rule: Rule, published: Published, tables: Tables, setting: Scale) -> Judgement:
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
    notes = [f"{signed(gap)} against {what} (printed {printed:+.3g}){why}" for _, why, gap, printed, what in judged]
    verdict = judged[0][0]
    if verdict == "contradicts":
        notes.append(rule.explanation)
    return Judgement(ours, verdict, join(*notes), detectable([gap for gap, _, _ in gaps]))


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
    own, gaps, shared = rule.select(filters), list[tuple[Interval, float, str]](), list[str]()
    if rule.level is not None:
        over = shift(ours, -rule.level)
        decides = ours.n > 1 or tables.is_exact(own)
        gaps.append((over if decides else undecided(over), row["value"] - rule.level, f"{rule.level:g}"))
    position = published.position
    for settings in rule.against:
        for other in _neighbours(row, settings, published):
            other_rule = published.claims[other["claim"]].rule
            printed = round(row["value"] - other["value"], 9)  # so that 0.67 - 0.65 is no more than a margin of 0.02
            if other_rule is None or (abs(printed) <= rule.margin and not rule.alike):
                continue
            beside = settings.get("ours")
            against = {**filters, **beside} if isinstance(beside, dict) else _filters(other_rule, other["settings"])
            if against is None or against.get("measure") != filters.get("measure"):
                continue
            theirs = (rule if beside else other_rule).select(against)
            if theirs == own:  # a setting that is printed twice
                continue
            if (result := compute(Contrast(own, theirs), tables)) is None:
                continue
            is_later = position[other["claim_id"]] > position[row["claim_id"]]
            if is_later and _compares(other, other_rule, row, published):
                shared.append(_name(row, other))
            else:
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
