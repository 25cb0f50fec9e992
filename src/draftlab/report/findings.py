"""An experiment's findings: one or two sentences that answer its question from its table, each with its interval."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

import pandas as pd

from draftlab.errors import UserError
from draftlab.plan import Finding
from draftlab.report import tables, tidy
from draftlab.report.contrast import Contrast, Result, Selection, Tables, compute, compute_each
from draftlab.report.figures.style import setting
from draftlab.report.intervals import decide, digits_of, show, telling


def sentences(experiment: str, table: pd.DataFrame) -> str:
    """Write all findings of an experiment as one text; a finding whose rows the table does not have is left out."""
    return " ".join(filter(None, (sentence(experiment, table, one) for one in tidy.plan_of(experiment).finding)))


def takeaway(finding: str) -> str:
    """The part of a finding before its first colon, which becomes the title of the figure; empty without a colon."""
    return finding.partition(":")[0] if ":" in finding else ""


def sentence(experiment: str, table: pd.DataFrame, finding: Finding) -> str:
    """Write one finding as a sentence; empty if the table has no rows, or no values, that it compares."""
    for filters in (finding.left, finding.right):
        _check_filters(experiment, table, filters if isinstance(filters, dict) else {})
    layout = tables.layout_of(experiment, table)
    options = {key: value for key, value in finding.left.items() if key in finding.best}
    where = finding.left | tidy.with_own(options, table)  # the best of all, the user's own too
    left = Selection(experiment, tidy.plan_of(experiment).measure(finding.measure), where)
    right = replace(left, where=finding.right) if isinstance(finding.right, dict) else finding.right
    contrast, source = Contrast(left, right, finding.each, finding.best), Tables({experiment: table})
    pooled = compute(contrast, source)
    if pooled is None or not isfinite(pooled.value.estimate):
        return ""
    digits = digits_of([pooled.value], layout.digits) if finding.digits is None else finding.digits
    groups = compute_each(contrast, source) if finding.each else []
    groups = [result for result in groups if isfinite(result.value.estimate)]
    below = any(result.value.low < 0 for result in (pooled, *groups))
    sign = "+" if finding.best or finding.right != 0 or below else ""  # what is compared with 0 may be no difference
    digits = telling(pooled.value, digits) if sign else digits
    parts = [f"{_describe(result.group)}: {_show_group(result, digits, sign)}" for result in groups]
    side = "level" if pooled.alike else decide(pooled.value)
    sides = {decide(result.value) for result in groups} if finding.apart else {side}
    text: str = getattr(finding, sides.pop() if len(sides) == 1 else "level") or finding.level
    sentence = text.format(
        left=show(pooled.left, digits, alone=True),
        right=show(pooled.right, digits, alone=True),
        gap=show(pooled.value, digits, sign=sign),
        n=f"{pooled.value.n:,}",
        each="; ".join(parts),
        values="; ".join(f"{_describe(result.group)}: {show(result.left, digits)}" for result in groups),
        **{key: _describe(options) for key, options in zip(("best", "second"), pooled.options, strict=False)},
    )
    if pooled.alike and decide(pooled.value) != "level":  # the best is above the next one, but not above all
        other, apart = pooled.alike
        best = _describe(pooled.options[0])
        sentence += f", but {best} and {_describe(other)} by {show(apart, digits, sign='+')}, no significant difference"
    if len(parts) > 1 and not finding.apart:
        sentence += f" ({'best for ' if finding.best else ''}{'; '.join(parts)})"
    return sentence + "."


def _check_filters(experiment: str, table: pd.DataFrame, filters: Mapping[str, Any]) -> None:
    """Refuse a filter if the table has only some of its listed values.

    If a scale runs none of them, the finding is left out; if it ran some, the sentence would silently speak of fewer rows.
    """
    for key, wanted in filters.items():
        if isinstance(wanted, list) and key != "window" and key in table:
            absent = [value for value in wanted if tidy.select_rows(table, {key: value}, experiment).empty]
            if 0 < len(absent) < len(wanted):
                what = f"no rows with {key} {absent[0]}, which the finding selects"
                raise UserError(what, file=tidy.file_of(experiment), remedy="repair `finding`")


def _show_group(result: Result, digits: int, sign: str) -> str:
    """The result of one group as text: the best option, with "not clearly" if it does not differ from each other one, or the value."""
    if not result.options:
        return show(result.value, digits, sign=sign)
    return _describe(result.options[0]) + (", not clearly" if result.alike else "")


def _describe(values: Mapping[str, Any]) -> str:
    """Settings as text for readers."""
    return ", ".join(itertools.starmap(setting, values.items()))
