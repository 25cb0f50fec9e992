"""Contrasts: the difference of one measure between two sets of rows, for each group, with an interval.

Findings, verdicts, headlines and the cells of printed tables are all computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from draftlab.core import stats
from draftlab.core.measure import Measure
from draftlab.core.stats import Interval
from draftlab.report import tidy
from draftlab.report.intervals import decide, shift, undecided

Key = tuple[Any, ...]
PAIRED = (
    "In brackets after a number is its 95 % interval. A difference compares two settings on the same requests, where both have them, so it "
    "can be significant although their bars in the figure overlap."
)


@dataclass(frozen=True)
class Selection:
    """The rows of a table that ``where`` selects, and the measure to compute from them.

    ``where`` maps a column to a value or a list of values; its key ``window`` keeps a part of each stream, given as fractions of the
    stream's length. With ``largest`` the result is the largest value of the measure's numerator.
    """

    table: str
    measure: Measure
    where: Mapping[str, Any] = field(default_factory=dict)
    largest: bool = False


@dataclass(frozen=True)
class Contrast:
    """The measure of ``left`` minus that of ``right``, which is other rows, a constant, or None (the estimate alone).

    ``each`` repeats it for every value of these columns. ``best`` compares the settings of those columns within ``left``: the best one
    (with ``sign`` 1 the largest, with -1 the smallest) minus the next. ``relation`` says how the sides are combined: as a difference,
    ``left`` as a percentage of ``right``, or by how many percent ``left`` exceeds ``right``.
    """

    left: Selection
    right: Selection | float | None = None
    each: Sequence[str] = ()
    best: Sequence[str] = ()
    sign: Literal[1, -1] = 1
    relation: Literal["difference", "percent", "percent_more"] = "difference"


@dataclass(frozen=True)
class Result:
    """The ``value`` of a contrast in one ``group``, and the estimates of its two sides.

    ``options`` are the compared settings of ``best``, the best first; ``alike`` is the first from which it does not differ, with the
    difference (None: it stands out).
    """

    group: Mapping[str, Any]
    value: Interval
    left: Interval
    right: Interval
    options: Sequence[Mapping[str, Any]] = ()
    alike: tuple[Mapping[str, Any], Interval] | None = None


@dataclass(frozen=True)
class Tables:
    """The tables of a run by name, with a cache of sums, because many contrasts read the same rows."""

    frames: Mapping[str, pd.DataFrame]
    cache: dict[str, dict[Key, pd.DataFrame]] = field(default_factory=dict)

    def sums(self, selection: Selection, by: Sequence[str]) -> dict[Key, pd.DataFrame]:
        """For each value of ``by``, a frame with numerator ``above`` and denominator ``below`` of each unit; empty if no rows match."""
        key = repr((selection.table, selection.measure, sorted(selection.where.items(), key=str), list(by)))
        if key not in self.cache:
            self.cache[key] = self._compute_sums(selection, by) if selection.table in self.frames else {}
        return self.cache[key]

    def _compute_sums(self, selection: Selection, by: Sequence[str]) -> dict[Key, pd.DataFrame]:
        """Compute ``sums``: a unit is a request of a dataset, summed over seeds; an exact table has no units and keeps its rows."""
        measure, table = selection.measure, self.frames[selection.table]
        tidy.require_columns(table, [*measure.columns, *by], selection.table)
        used = [*measure.columns, *by, *tidy.ID_COLUMNS]
        chosen = table.loc[tidy.matches(table, selection.where, selection.table), [key for key in table if key in used]]
        above = chosen[measure.numerator].astype(float)
        below = chosen[measure.denominator].astype(float) if measure.denominator else pd.Series(1.0, above.index)
        pair = pd.DataFrame({"above": above, "below": below})
        column = tidy.resampled_column(table)
        exact = column is None
        if not exact:  # a block is a moment of one run, a request may be in several tables
            run = f"{selection.table}/" if column == "block" else ""
            pair = pair.assign(unit=run + tidy.resampled_ids(chosen))

        def sum_units(group: pd.DataFrame) -> pd.DataFrame:
            known = group.dropna()  # a row without a value counts nowhere
            if exact:
                return known
            sums = known.groupby("unit", sort=False)[["above", "below"]].sum()
            return sums[sums.any(axis=1)]  # nor does a unit of 0 / 0, which would make few units look like many

        if not by or chosen.empty:
            return {(): sum_units(pair)} if len(pair) else {}
        # Some rows may have no value for an axis. In an exact table these rows belong to another part of it, so they form no group.
        groups = list(pair.groupby([chosen[key] for key in by], sort=False, dropna=exact))
        keys = tidy.sort_groups(pd.DataFrame([key for key, _ in groups], columns=list(by)), by)
        return {
            tuple(key.values()): sum_units(groups[place][1])
            for place, key in zip(keys.index, tidy.records(keys), strict=True)
        }

    def is_exact(self, selection: Selection) -> bool:
        """Whether the table has no units to resample, so that its estimates have no interval."""
        return tidy.resampled_column(self.frames[selection.table]) is None


def compute(contrast: Contrast, tables: Tables) -> Result | None:
    """Compute the contrast over all rows together; None if a side has no rows."""
    return next(iter(compute_each(replace(contrast, each=()), tables)), None)


def compute_each(contrast: Contrast, tables: Tables) -> list[Result]:
    """Compute the contrast in every group for which both sides have rows, in the order of ``sort_groups``."""
    each, left, right = list(contrast.each), contrast.left, contrast.right
    lefts = tables.sums(left, [*each, *(key for key in contrast.best if key not in each)])
    others: Mapping[Key, pd.DataFrame] = {}
    if isinstance(right, Selection):
        free = {key: value for key, value in right.where.items() if key not in each}
        others = tables.sums(replace(right, where=free), each)
    results = []
    for key in dict.fromkeys(key[: len(each)] for key in lefts):
        group = dict(zip(each, key, strict=True))
        if contrast.best:
            options = {full[len(each) :]: sums for full, sums in lefts.items() if full[: len(each)] == key}
            result = _rank(contrast, group, options, tables)
        else:
            result = _compare(contrast, group, lefts[key], others.get(key), tables)
        if result is not None:
            results.append(result)
    return results


def _compare(
    contrast: Contrast, group: Mapping[str, Any], one: pd.DataFrame, two: pd.DataFrame | None, tables: Tables
) -> Result | None:
    """The contrast of two sides in one group; None if the right side needs rows and has none."""
    left = _estimate(contrast.left, one, tables)
    if not isinstance(contrast.right, Selection):
        level = contrast.right or 0.0
        value = shift(left, -level)
        if contrast.right is not None and len(one) < 2 and not tables.is_exact(contrast.left):
            value = undecided(value)
        return Result(group, value, left, Interval(level, np.nan, np.nan, 0))
    if two is None:
        return None
    right = _estimate(contrast.right, two, tables)
    return Result(group, _relate(contrast, one, two, tables), left, right)


def _rank(
    contrast: Contrast, group: Mapping[str, Any], options: Mapping[Key, pd.DataFrame], tables: Tables
) -> Result | None:
    """The best option minus the next; None if there are fewer than two."""
    estimates = {key: _estimate(contrast.left, sums, tables) for key, sums in options.items()}
    known = [key for key in options if np.isfinite(estimates[key].estimate)]
    ranked = sorted(known, key=lambda key: -contrast.sign * estimates[key].estimate)
    if len(ranked) < 2:
        return None
    first, second = ranked[:2]
    names = [key for key in contrast.best if key not in contrast.each]
    settings = [dict(zip(names, key, strict=True)) for key in ranked]
    value = _relate(contrast, options[first], options[second], tables)
    by_name = {key: options[key].sort_index() for key in ranked}  # so that no draw depends on the order of the file
    gaps = (_relate(contrast, by_name[first], by_name[other], tables) for other in ranked[1:])
    alike = next((pair for pair in zip(settings[1:], gaps, strict=True) if decide(pair[1]) == "level"), None)
    return Result(group, value, estimates[first], estimates[second], settings, alike)


def _estimate(selection: Selection, sums: pd.DataFrame, tables: Tables) -> Interval:
    """Estimate ``sum(above) / sum(below)``, with a bootstrap interval over units unless the table is exact."""
    if selection.largest:
        return Interval(float(sums["above"].max()), np.nan, np.nan, len(sums))
    if tables.is_exact(selection):
        return Interval(_quotient(sums["above"].sum(), sums["below"].sum()), np.nan, np.nan, len(sums))
    return stats.ratio(sums["above"], sums["below"])


def _quotient(above: float, below: float) -> float:
    """The quotient of two numbers; NaN without a positive denominator, as ``stats.ratio`` gives it."""
    return float(above) / float(below) if below > 0 else math.nan


def _relate(contrast: Contrast, one: pd.DataFrame, two: pd.DataFrame, tables: Tables) -> Interval:
    """The difference or percentage of two sides, resampled together: units that both have are paired, others count on one side only."""
    percent, less = contrast.relation != "difference", -100 if contrast.relation == "percent_more" else 0
    if tables.is_exact(contrast.left):
        other = contrast.right if isinstance(contrast.right, Selection) else contrast.left
        sides = _estimate(contrast.left, one, tables).estimate, _estimate(other, two, tables).estimate
        apart = 100 * _quotient(*sides) + less if percent else sides[0] - sides[1]
        return Interval(apart, np.nan, np.nan, len(one))
    units, least = one.index.union(two.index, sort=False), min(len(one), len(two))
    freedom = None if least in (0, 1, len(units)) else _freedom(one, two, units, relative=percent)
    one, two = one.reindex(units, fill_value=0.0), two.reindex(units, fill_value=0.0)
    left, right = (one["above"], one["below"]), (two["above"], two["below"])
    value = shift(stats.percent_of(left, right), less) if percent else stats.ratio_difference(*left, *right)
    if least < 2:
        return undecided(value)
    by = 1.0 if freedom is None else stats.quantile(1, freedom) / stats.quantile(1, value.n - 1)
    return stats.stretch(replace(value, freedom=freedom), by)


def _freedom(one: pd.DataFrame, two: pd.DataFrame, units: pd.Index, *, relative: bool) -> float | None:
    """The degrees of freedom of a difference between two ratios, where some of the ``units`` are on one side only (Welch and Satterthwaite).

    The units on both sides, those on the left alone and those on the right alone are three samples, of ``n`` units each. With the variance ``v``
    that each adds to the difference, the degrees of freedom are ``(sum of v)^2 / sum of v^2 / (n - 1)``, close to those of the sample that varies
    most. For a quotient of the ratios (``relative``), ``v`` is in parts of the squared ratio. None if no side varies.
    """
    rest = _rest(one, relative).reindex(units, fill_value=0.0) - _rest(two, relative).reindex(units, fill_value=0.0)
    total = below = 0.0
    for _, sample in rest.groupby([units.isin(one.index), units.isin(two.index)]):
        degrees = max(len(sample) - 1, 1)
        variance = float((sample**2).sum()) * (degrees + 1) / degrees
        total, below = total + variance, below + variance**2 / degrees
    return total**2 / below if below > 0 else None


def _rest(sums: pd.DataFrame, relative: bool) -> pd.Series:
    """What each unit adds to the error of ``sum(above) / sum(below)``, to first order; NaN where it is relative to 0, or there is no ratio."""
    above, below = sums["above"].sum(), sums["below"].sum()
    if below == 0 or (relative and above == 0):
        return pd.Series(math.nan, sums.index)
    return (sums["above"] - sums["below"] * (above / below)) / (above if relative else below)
