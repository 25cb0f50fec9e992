"""An experiment's findings: a sentence or two that answer its question from its table, each with the interval that carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from draftlab.core.stats import Interval
from draftlab.errors import UserError
from draftlab.plan import Finding
from draftlab.report import ledger, tables, tidy
from draftlab.report.figures.style import name
from draftlab.report.published import Selection


def findings_of(experiment: str) -> list[Finding]:
    """What an experiment's YAML file asks its table."""
    said = tables.plan_of(experiment)
    return [] if said is None else said.finding


def sentences(experiment: str, table: pd.DataFrame, findings: Sequence[Finding]) -> str:
    """The findings in words, one after the other; empty where there is none, or where the table lacks the rows that they speak of."""
    return " ".join(filter(None, (sentence(experiment, table, finding) for finding in findings)))


def sentence(experiment: str, table: pd.DataFrame, finding: Finding) -> str:
    """One finding in words; empty where the table lacks the rows that it speaks of."""
    for filters in (finding.left, finding.right):
        _check(experiment, table, filters if isinstance(filters, dict) else {})
    layout = tables.layout_of(experiment, table)
    above, below = finding.measure or (layout.above, layout.below)
    ratio = None if below is None else (above, below)
    what = Selection(table=experiment, ratio=ratio, mean=None if ratio else above)
    source = ledger.Tables({experiment: table})
    found = (_best if finding.best else _gap)(what, finding, {}, source)
    if found is None:
        return ""
    digits = layout.digits if finding.digits is None else finding.digits
    parts, sides = [], set[str]()
    groups = _values(table, finding.each, finding.left, experiment) if finding.each else []
    for group in groups:
        own = (_best if finding.best else _gap)(what, finding, group, source)
        if own is not None:
            is_gap = ratio is not None or finding.right != 0  # a mean that is compared with nothing is no difference
            shown = own["best"] if finding.best else _text(own["interval"], digits, bounds=True, signed=is_gap)
            parts.append(f"{_words(group, named=len(group) > 1)} {shown}")
            sides.add(_side(own["interval"]))
    numbers = {key: _text(found[key], digits) for key in ("left", "right")}
    gap = _text(found["interval"], digits, bounds=True, signed=True)
    apart = "{each}" in finding.level
    side = _side(found["interval"]) if not apart else sides.pop() if len(sides) == 1 else "level"
    text: str = getattr(finding, side)
    said = text.format(**(found | numbers), gap=gap, n=f"{found['interval'].n:,}", each=", ".join(parts))
    by = " and ".join(finding.each).replace("_", " ")
    return said + (f"; by {by}: {', '.join(parts)}" if len(parts) > 1 and not apart else "") + "."


def _check(experiment: str, table: pd.DataFrame, filters: Mapping[str, Any]) -> None:
    """A scale may lack all values of a list, and the sentence is silent; a part of them it would drop unsaid."""
    for key, wanted in filters.items():
        if isinstance(wanted, list) and key != "window" and key in table:
            absent = [value for value in wanted if ledger.chosen(table, {key: value}, experiment).empty]
            if 0 < len(absent) < len(wanted):
                remedy = "repair `finding` in its YAML file"
                raise UserError(
                    f"{experiment}: no rows with {key} {absent[0]}, which its finding selects", remedy=remedy
                )


def _gap(what: Selection, finding: Finding, group: Mapping[str, Any], source: ledger.Tables) -> dict[str, Any] | None:
    """Both sides and their difference over the same requests; None without rows."""
    left = {**finding.left, **group}
    one = ledger.estimate(what, left, source)
    if one is None:
        return None
    if not isinstance(finding.right, dict):
        level = finding.right
        gap = Interval(one.estimate - level, one.low - level, one.high - level, one.n)
        return {"left": one, "right": Interval(level, np.nan, np.nan, 0), "interval": gap}
    right = {**finding.right, **group}
    two, gap_to = ledger.estimate(what, right, source), ledger.difference(what, left, what, right, source)
    return None if two is None or gap_to is None else {"left": one, "right": two, "interval": gap_to}


def _best(what: Selection, finding: Finding, group: Mapping[str, Any], source: ledger.Tables) -> dict[str, Any] | None:
    """The best setting, the next one, and their difference."""
    left = {**finding.left, **group}
    table = source.frames[what.table]
    options = [{**left, **values} for values in _values(table, finding.best, left, what.table)]
    found = [(ledger.estimate(what, option, source), option) for option in options]
    ranked = sorted(((one, option) for one, option in found if one), key=lambda entry: -entry[0].estimate)
    if len(ranked) < 2:
        return None
    (one, first), (two, second) = ranked[:2]
    gap = ledger.difference(what, first, what, second, source)
    names = {
        key: _words({axis: option[axis] for axis in finding.best if axis not in group})
        for key, option in (("best", first), ("second", second))
    }
    return {"left": one, "right": two, "interval": gap, **names}


def _values(table: pd.DataFrame, keys: list[str], filters: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The combinations of values of some columns, among the rows that the filters leave."""
    return tidy.records(tables.in_order(ledger.chosen(table, filters, name)[keys].drop_duplicates(), keys))


def _side(gap: Interval) -> str:
    """An interval that holds 0 decides nothing; without one the estimate does."""
    low, high = (gap.low, gap.high) if np.isfinite(gap.low) else (gap.estimate, gap.estimate)
    return "more" if low > 0 else "less" if high < 0 else "level"


def _text(value: Interval, digits: int, *, bounds: bool = False, signed: bool = False) -> str:
    sign = "+" if signed else ""
    interval = f" [{value.low:{sign}.{digits}f}, {value.high:{sign}.{digits}f}]" if np.isfinite(value.low) else ""
    return f"{value.estimate:{sign}.{digits}f}{interval if bounds else ''}"


def _words(values: Mapping[str, Any], *, named: bool = True) -> str:
    """Settings as a reader writes them: a number needs its name unless that was said before."""
    return ", ".join(
        name(value) if isinstance(value, str) else f"{key.replace('_', ' ')} {value:g}" if named else f"{value:g}"
        for key, value in values.items()
    )
