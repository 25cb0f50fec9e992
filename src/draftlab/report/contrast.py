"""The one question that is asked of a table: a measure of these rows less that of those, group by group, with an interval.

Findings, verdicts, headlines and the cells of printed tables render what is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import pandas as pd

from draftlab.core import stats
from draftlab.core.measure import Measure
from draftlab.core.stats import Interval
from draftlab.errors import UserError
from draftlab.report import tidy

Key = tuple[Any, ...]
Side = Literal["more", "less", "level"]


@dataclass(frozen=True)
class Rows:
    """The rows of a table with the values of ``where``, and what is measured of them.

    ``where`` maps a column to a value or a list of values; ``window`` keeps a part of each stream, as fractions of its length. With
    ``largest`` the measure is the largest value of its numerator.
    """

    table: str
    measure: Measure
    where: Mapping[str, Any] = field(default_factory=dict)
    largest: bool = False


@dataclass(frozen=True)
class Contrast:
    """The measure of ``left`` less that of ``right``, over the same units: other rows, a constant, or nothing (an estimate alone).

    ``each`` repeats it for every value of these columns. With ``best`` it is between the settings of those columns among ``left``:
    the best one (``sign`` 1: the largest) less the next. ``relation`` may also be left as a percentage of right, or what left has
    more than right in percent.
    """

    left: Rows
    right: Rows | float | None = None
    each: Sequence[str] = ()
    best: Sequence[str] = ()
    sign: Literal[1, -1] = 1
    relation: Literal["difference", "percent", "percent_more"] = "difference"


@dataclass(frozen=True)
class Result:
    """What a table says to a contrast in one ``group``: its ``value``, and the sides that it is made of.

    ``options`` are the settings of ``best``, the best one first; it ``stands_out`` where it differs from each other one.
    """

    group: Mapping[str, Any]
    value: Interval
    left: Interval
    right: Interval
    options: Sequence[Mapping[str, Any]] = ()
    stands_out: bool = False


@dataclass(frozen=True)
class Tables:
    """The tables of a run by name, and the sums that were read of them: many contrasts read the same rows."""

    frames: Mapping[str, pd.DataFrame]
    read: dict[str, dict[Key, pd.DataFrame]] = field(default_factory=dict)

    def sums(self, rows: Rows, by: Sequence[str] = ()) -> dict[Key, pd.DataFrame]:
        """For every value of ``by``: numerator ``above`` and denominator ``below`` of every unit; empty without such rows."""
        name = repr((rows.table, rows.measure, sorted(rows.where.items(), key=str), list(by)))
        if name not in self.read:
            self.read[name] = self._sums(rows, by) if rows.table in self.frames else {}
        return self.read[name]

    def _sums(self, rows: Rows, by: Sequence[str]) -> dict[Key, pd.DataFrame]:
        """A unit is a request of a dataset, its seeds together; an exact table has none, and each row stands for itself."""
        measure, table = rows.measure, self.frames[rows.table]
        chosen = choose(table, rows.where, rows.table)
        require_columns(table, [*measure.columns, *by], rows.table)
        below = chosen[measure.denominator].astype(float) if measure.denominator else 1.0
        pair = pd.DataFrame({"above": chosen[measure.numerator].astype(float), "below": below}, index=chosen.index)
        exact = tidy.unit(table) is None
        pair = pair if exact else pair.assign(unit=tidy.clusters(chosen))

        def sum_units(own: pd.DataFrame) -> pd.DataFrame:
            return own if exact else own.groupby("unit", sort=False)[["above", "below"]].sum()

        if not by or chosen.empty:
            return {(): sum_units(pair)} if len(pair) else {}
        # an axis may be empty in some rows; an exact table's rows without one are another part of it
        groups = list(pair.groupby([chosen[key] for key in by], sort=False, dropna=exact))
        keys = in_order(pd.DataFrame([key for key, _ in groups], columns=list(by)), by)
        return {
            tuple(key.values()): sum_units(groups[place][1])
            for place, key in zip(keys.index, tidy.records(keys), strict=True)
        }

    def is_exact(self, rows: Rows) -> bool:
        """Whether its table has no units to draw, so that what it says has no interval."""
        return tidy.unit(self.frames[rows.table]) is None


def compute(contrast: Contrast, tables: Tables) -> Result | None:
    """The contrast over all rows together; None where a side has none."""
    return next(iter(compute_each(replace(contrast, each=()), tables)), None)


def compute_each(contrast: Contrast, tables: Tables) -> list[Result]:
    """The contrast in every group for which both sides have rows: numbers in rising order, words as the table has them."""
    each, left, right = list(contrast.each), contrast.left, contrast.right
    lefts = tables.sums(left, [*each, *(key for key in contrast.best if key not in each)])
    others: Mapping[Key, pd.DataFrame] = {}
    if isinstance(right, Rows):
        free = {key: value for key, value in right.where.items() if key not in each}
        others = tables.sums(replace(right, where=free), each)
    results = []
    for key in dict.fromkeys(key[: len(each)] for key in lefts):
        group = dict(zip(each, key, strict=True))
        own = {options[len(each) :]: sums for options, sums in lefts.items() if options[: len(each)] == key}
        if contrast.best:
            result = _rank(contrast, group, own, tables)
        else:
            result = _compare(contrast, group, own[()], others.get(key), tables)
        if result is not None:
            results.append(result)
    return results


def _compare(
    contrast: Contrast, group: Mapping[str, Any], one: pd.DataFrame, two: pd.DataFrame | None, tables: Tables
) -> Result | None:
    left = _estimate(contrast.left, one, tables)
    if not isinstance(contrast.right, Rows):
        level = contrast.right or 0.0
        return Result(group, shift(left, -level), left, Interval(level, np.nan, np.nan, 0))
    if two is None:
        return None
    right = _estimate(contrast.right, two, tables)
    return Result(group, _relate(contrast, one, two, tables), left, right)


def _rank(
    contrast: Contrast, group: Mapping[str, Any], options: Mapping[Key, pd.DataFrame], tables: Tables
) -> Result | None:
    """The best option against the next; None without two."""
    found = {key: _estimate(contrast.left, sums, tables) for key, sums in options.items()}
    ranked = sorted(options, key=lambda key: -contrast.sign * np.nan_to_num(found[key].estimate, nan=-np.inf))
    if len(ranked) < 2:
        return None
    first, second = ranked[:2]
    names = [key for key in contrast.best if key not in contrast.each]
    settings = [dict(zip(names, key, strict=True)) for key in ranked]
    value = _relate(contrast, options[first], options[second], tables)
    by_name = {key: options[key].sort_index() for key in ranked}  # so that no draw depends on the order of the file
    gaps = (_relate(contrast, by_name[first], by_name[other], tables) for other in ranked[1:])
    stands_out = all(decide(gap) != "level" for gap in gaps)
    return Result(group, value, found[first], found[second], settings, stands_out)


def _estimate(rows: Rows, sums: pd.DataFrame, tables: Tables) -> Interval:
    """``sum(above) / sum(below)``, drawn by units where the table has some."""
    if rows.largest:
        return Interval(float(sums["above"].max()), np.nan, np.nan, len(sums))
    if tables.is_exact(rows):
        return Interval(float(sums["above"].sum() / sums["below"].sum()), np.nan, np.nan, len(sums))
    return stats.ratio(sums["above"], sums["below"])


def _relate(contrast: Contrast, one: pd.DataFrame, two: pd.DataFrame, tables: Tables) -> Interval:
    """Both sides drawn by the same bootstrap: units that both have are paired, the others count once."""
    percent, less = contrast.relation != "difference", -100 if contrast.relation == "percent_more" else 0
    if tables.is_exact(contrast.left):
        other = contrast.right if isinstance(contrast.right, Rows) else contrast.left
        sides = _estimate(contrast.left, one, tables).estimate, _estimate(other, two, tables).estimate
        return Interval(100 * sides[0] / sides[1] + less if percent else sides[0] - sides[1], np.nan, np.nan, len(one))
    one, two = tidy.paired(one, two)
    left, right = (one["above"], one["below"]), (two["above"], two["below"])
    return shift(stats.percent_of(left, right), less) if percent else stats.ratio_difference(*left, *right)


# --- rows of a table ---------------------------------------------------------------------------------------------


def choose(table: pd.DataFrame, where: Mapping[str, Any], name: str) -> pd.DataFrame:
    """The rows with these values; ``window`` keeps a part of the stream, as fractions of its length."""
    keep = pd.Series(True, index=table.index)
    for key, wanted in where.items():
        if key == "window":
            keep &= tidy.in_window(table, *wanted)
        else:
            require_columns(table, [key], name)
            keep &= _one_of(table[key], wanted if isinstance(wanted, list) else [wanted])
    return table[keep]


def _one_of(column: pd.Series, wanted: Sequence[Any]) -> pd.Series[bool]:
    """Where a column has one of these values; numbers are compared as numbers."""
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return column.astype(str).isin([str(value) for value in wanted])
    return column.isin(pd.to_numeric(pd.Series(wanted), errors="coerce").dropna())


def require_columns(table: pd.DataFrame, columns: Iterable[str], name: str) -> None:
    """Refuse a table that lacks one of these columns."""
    if missing := [column for column in columns if column not in table]:
        remedy = "run the experiment again, or repair what reads it: its YAML file or workflow/published"
        raise UserError(f"table {name} has no column {missing[0]!r}", remedy=remedy)


def in_order(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Numbers in rising order, words as they came."""

    def rank(column: pd.Series) -> pd.Series:
        return column if pd.api.types.is_numeric_dtype(column) else pd.Series(pd.factorize(column)[0], column.index)

    return table.sort_values(list(keys), key=rank, kind="stable")


# --- intervals ---------------------------------------------------------------------------------------------------


def shift(interval: Interval, by: float) -> Interval:
    """An interval moved by a constant."""
    return Interval(interval.estimate + by, interval.low + by, interval.high + by, interval.n)


def correct(interval: Interval, comparisons: int) -> Interval:
    """The interval that keeps 95 % over so many comparisons (Bonferroni): each half stretched as a normal one would be."""
    stretch = _quantile(comparisons) / _quantile(1)
    middle = interval.estimate
    ends = middle - (middle - interval.low) * stretch, middle + (interval.high - middle) * stretch
    return Interval(middle, *ends, interval.n)


def smallest_seen(interval: Interval, comparisons: int, power: float) -> float:
    """The smallest difference that would have been seen with probability ``power``, by the interval's width; NaN without one."""
    error = (interval.high - interval.low) / (2 * _quantile(1))
    return (_quantile(comparisons) + NormalDist().inv_cdf(power)) * error


def _quantile(comparisons: int) -> float:
    """How many standard errors a 95 % interval reaches on each side."""
    return NormalDist().inv_cdf(1 - (1 - stats.CONFIDENCE) / (2 * comparisons))


def bounds(interval: Interval) -> tuple[float, float]:
    """Both ends; the estimate itself where there is no interval."""
    known = np.isfinite(interval.low)
    return (interval.low, interval.high) if known else (interval.estimate, interval.estimate)


def decide(interval: Interval, level: float = 0.0) -> Side:
    """The side of ``level`` that an interval lies on; one that holds it decides nothing. Without an interval the estimate does."""
    low, high = bounds(interval)
    return "more" if low > level else "less" if high < level else "level"


def digits_of(intervals: Sequence[Interval], otherwise: int) -> int:
    """Decimal places of which the last is at most a third of the intervals' usual width; ``otherwise`` where they have none."""
    widths = [own.high - own.low for own in intervals if own.high - own.low > 1e-9]
    return min(max(1 - math.floor(math.log10(3 * float(np.median(widths)))), 0), 6) if widths else otherwise


def show(interval: Interval, digits: int, *, alone: bool = False, sign: str = "") -> str:
    """An estimate as text, with its interval where it has one and is not shown ``alone``; ``sign`` "+" for a difference."""
    ends = (
        ""
        if alone or not np.isfinite(interval.low)
        else f" [{interval.low:{sign}.{digits}f}, {interval.high:{sign}.{digits}f}]"
    )
    return f"{interval.estimate:{sign}.{digits}f}{ends}"
