"""Judges a claim in words by comparisons, all of which must hold."""

from __future__ import annotations

import math
from dataclasses import replace

from draftlab.core.stats import Interval
from draftlab.plan import Scale
from draftlab.report.contrast import Tables, compute_each
from draftlab.report.intervals import bounds, correct
from draftlab.report.judgement import NOT_RUN, ROUNDING, ClaimVerdict, Judgement, detectable, join, signed
from draftlab.report.published import Comparison, Statement


def judge_statement(statement: Statement, tables: Tables, setting: Scale) -> Judgement:
    """Judge a claim in words: every comparison must hold in every group, with intervals corrected for the number of comparisons.

    ``ours`` is the difference in the least favourable comparison.
    """
    results = [(comparison, compute_each(comparison.contrast, tables)) for comparison in statement.comparisons]
    compared = [
        (
            comparison,
            ", ".join([str(comparison.contrast.left.measure), *(f"{k} {v}" for k, v in result.group.items())]),
            result.value,
        )
        for comparison, of_groups in results
        for result in of_groups
    ]
    if not compared:
        missing = list(dict.fromkeys(comparison.table for comparison in statement.comparisons))
        verb = "do" if len(missing) > 1 else "does"
        return replace(NOT_RUN, note=f"{', '.join(missing)} {verb} not run this at this scale" if missing else "")
    clear = [_clearance(comparison, correct(gap, len(compared))) for comparison, _, gap in compared]
    held, failed = sum(worst >= 0 for worst, _ in clear), sum(best < 0 for _, best in clear)
    undecided = len(compared) - held - failed
    # NaN, where nothing was counted, comes last: it would compare as neither more nor less.
    least = min(
        range(len(compared)),
        key=lambda place: (math.isnan(compared[place][2].estimate), clear[place][1] >= 0, clear[place][0]),
    )
    _, what, gap = compared[least]
    margins = sorted({comparison.margin for comparison in statement.comparisons if comparison.margin})
    allowed = f" within {' or '.join(f'{margin:g}' for margin in margins)}" if margins else ""
    count = f"{held} of {len(compared)} comparisons hold{allowed}"
    count += (f", {failed} fail" if failed else "") + (f", {undecided} undecided" if undecided else "")
    note = f"{count}; least favourable ({what}): {signed(gap)}"
    verdict: ClaimVerdict = "contradicts" if failed else "undecided" if undecided else "same direction"
    if unrun := [_name(comparison, tables) for comparison, of_groups in results if not of_groups]:
        note = join(note, f"not run: {', '.join(unrun)}")
    if verdict == "contradicts":
        note = join(note, statement.explanation)
    if verdict == "same direction" and setting in statement.same_setting:
        verdict = "reproduced"
    return Judgement(gap, verdict, note, detectable([gap for _, _, gap in compared]))


def _name(comparison: Comparison, tables: Tables) -> str:
    """The table of a comparison, and the rows of it that are missing if there is such a table."""
    missing = ", ".join(f"{key} {value}" for key, value in comparison.left.items())
    return f"{comparison.table} ({missing})" if comparison.table in tables.frames and missing else comparison.table


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
