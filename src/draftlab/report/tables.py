"""Turns a tidy table into one that a paper would print: Markdown for pages, CSV for programs, LaTeX (booktabs) for papers.

Every cell is an estimate with its bootstrap interval. The best of a row is bold only if its difference from each of the others has
an interval without 0, so a number is never bold by chance alone.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from draftlab.core.measure import Measure
from draftlab.core.stats import Interval
from draftlab.data.streams import ALL
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.tables import read_table
from draftlab.plan import Layout
from draftlab.report import tidy
from draftlab.report.contrast import Contrast, Result, Selection, Tables, compute_each
from draftlab.report.figures.style import key_name, meaning, setting
from draftlab.report.intervals import digits_of

EMULATED = (
    "the target is padded with layers that leave its output unchanged, to imitate a large model's cost; "
    "times are CPU seconds of one thread"
)
EMULATING = ("smoke", "laptop")
"""The scales whose small targets are padded to cost as much as a large model."""
ESTIMATE = ("estimate", "ci_low", "ci_high", "n")
"""The columns of a cell's number."""
PLACES = ("stream_index", "segment")
"""Columns for the place in a stream; the same bin of requests may occur at several places."""


def layout_of(experiment: str, table: pd.DataFrame) -> Layout:
    """The layout in the experiment's file, or a default: the last axis in columns, the other axes in rows."""
    plan, remedy = tidy.plan_of(experiment), "give it a `layout`"
    if plan.layout is not None:
        return plan.layout.model_copy(update={"where": tidy.with_own(plan.layout.where, table)})
    # A setting that is a list has a plural name, its column the singular: schemes, scheme.
    columns = dict.fromkeys(name if name in table else name.removesuffix("s") for name in plan.compared)
    axes = [column for column in columns if column in table and column not in ("seed", tidy.resampled_column(table))]
    if not axes:
        raise UserError("no `layout`, and no axis to make one of", file=tidy.file_of(experiment), remedy=remedy)
    keys = [
        key
        for key in dict.fromkeys([*axes, "dataset", "seed", tidy.resampled_column(table) or "", *PLACES])
        if key in table
    ]
    if (alike := table.duplicated(keys, keep=False)).any():
        what = f"several rows agree in {', '.join(keys)}"
        groups = table[alike].groupby(keys, dropna=False)
        others = [str(column) for column in table if column not in keys]
        differ = [column for column in others if (groups[column].nunique(dropna=False) > 1).any()]
        # Measured numbers differ too. A setting has the fewest values.
        named = sorted(differ, key=lambda column: table[column].nunique(dropna=False))[:3]
        what += f", and differ in {', '.join(named)}" if named else ""
        raise UserError(what, file=tidy.file_of(experiment), remedy=remedy)
    return Layout(rows=axes[:-1] or axes, columns=axes[1:][-1:])


def write(
    experiment: str, table: pd.DataFrame, scale: str, prefix: Path, finding: str = "", *, own_target: bool = False
) -> None:
    """Write ``prefix.md`` (the ``finding`` first), ``prefix.csv`` (one row per cell) and ``prefix.tex``.

    With ``own_target`` the target was not trained by the run, and is then not padded.
    """
    layout = layout_of(experiment, table)
    layout = layout.model_copy(update={"emulated": layout.emulated and scale in EMULATING and not own_target})
    measure = tidy.plan_of(experiment).measure()
    cells = summary(table, layout, measure, together=_is_pooled(experiment, table, layout))
    facts = caption(prefix.name, cells, layout, measure, tidy.resampled_name(table), scale)
    parts = filter(None, (finding, markdown(cells, layout, measure), facts))
    texts = {
        "csv": cells.map(_inert).to_csv(index=False, lineterminator="\n", float_format="%.6g"),
        "md": "\n\n".join(parts) + "\n",
        "tex": f"% {facts}\n" + latex(cells, layout, measure),
    }
    for suffix, text in texts.items():
        write_text(prefix.with_name(f"{prefix.name}.{suffix}"), text)


def _is_pooled(experiment: str, table: pd.DataFrame, layout: Layout) -> bool:
    """Whether a finding of the experiment pools all rows of its printed table, in the measure that the table prints."""
    plan, several = tidy.plan_of(experiment), len(table[list(layout.rows)].drop_duplicates()) > 1
    if tidy.resampled_column(table) is None or not several:
        return False
    findings = [finding for finding in plan.finding if plan.measure(finding.measure) == plan.measure()]
    return any(not finding.apart and not {*finding.left, *finding.best} & {*layout.rows} for finding in findings)


def summary(table: pd.DataFrame, layout: Layout, measure: Measure, *, together: bool = False) -> pd.DataFrame:
    """Compute one row per cell: the layout's columns, ``estimate, ci_low, ci_high, n, best`` (no interval for an exact table).

    ``together`` adds cells that pool all rows.
    """
    where = dict(layout.where) | ({"window": layout.window} if layout.window else {})
    source, keys = Tables({"": table}), [*layout.rows, *layout.columns]
    contrast = Contrast(Selection("", measure, where), each=keys)
    cells = pd.DataFrame(map(_cell, compute_each(contrast, source)), columns=[*keys, *ESTIMATE])
    cells["best"] = False
    if layout.best is not None and layout.columns and tidy.resampled_column(table) is not None:
        cells["best"] = _stands_out(cells, contrast, layout, source)
    if together:
        pooled = pd.DataFrame(map(_cell, compute_each(replace(contrast, each=layout.columns), source)))
        cells = pd.concat([cells, pooled.assign(best=False, **dict.fromkeys(layout.rows, ALL))])
    return cells


def _stands_out(cells: pd.DataFrame, contrast: Contrast, layout: Layout, source: Tables) -> list[bool]:
    """For each cell, whether it is the best of its row by differences whose intervals exclude 0."""
    keys = [*layout.rows, *layout.columns]
    sign: Literal[1, -1] = 1 if layout.best == "largest" else -1
    ranked = compute_each(replace(contrast, each=layout.rows, best=layout.columns, sign=sign), source)
    bold = [{**result.group, **result.options[0]} for result in ranked if result.alike is None]
    return [{key: cell[key] for key in keys} in bold for cell in tidy.records(cells)]


def _cell(result: Result) -> dict[str, Any]:
    value = result.value
    return {**result.group, **dict(zip(ESTIMATE, (value.estimate, value.low, value.high, value.n), strict=True))}


def caption(
    experiment: str, cells: pd.DataFrame, layout: Layout, measure: Measure, units: str | None, scale: str
) -> str:
    """The caption of a table in one line: the measure, n, the settings, the kind of interval, and notes."""
    if cells.empty:
        place = " of that part of the stream" if layout.window else ""
        return f"{experiment}, scale {scale}: the table has no rows{place}."
    together = (cells[layout.rows[0]] == ALL).any()
    cells = cells[cells[layout.rows[0]] != ALL]
    one_run = bool((cells["ci_low"] == cells["ci_high"]).all())
    n = " to ".join(map(str, sorted({cells["n"].min(), cells["n"].max()})))
    parts = [f"{experiment}, scale {scale}: {measure}", *([f"n = {n} {units} per cell"] if units else [])]
    if layout.window:
        parts.append("from {:g} % to {:g} % of the stream".format(*(100 * end for end in layout.window)))
    parts += [
        f"{key_name(column)}: {setting(column, value)}"
        for column, value in layout.where.items()
        if isinstance(value, str)
    ]
    no_interval = layout.exact if units is None else "one run each, so no interval" if one_run else ""
    parts.append(no_interval or f"95 % bootstrap interval over {units}")
    parts += [text for text in (layout.note, EMULATED if layout.emulated else "") if text]
    if cells["best"].any():
        parts.append("bold: best of its row, by differences whose intervals leave out 0")
    if together:
        parts.append("last row: all requests of the rows above" if units == "requests" else "last row: all rows above")
    return ", ".join(parts) + "."


def markdown(cells: pd.DataFrame, layout: Layout, measure: Measure) -> str:
    """The cells as a Markdown table."""
    page = arrange(cells, layout, measure, lambda text: f"**{text}**")
    labels = len(layout.rows)
    lines = [[cell.translate(MARKDOWN) for cell in header(page, layout)], ["---"] * len(page.columns)]
    for row in page.to_numpy().tolist():
        lines.append([cell.translate(MARKDOWN) for cell in row[:labels]] + row[labels:])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def latex(cells: pd.DataFrame, layout: Layout, measure: Measure) -> str:
    """The cells as a LaTeX table in the style of booktabs."""
    page = arrange(cells, layout, measure, lambda text: rf"\textbf{{{text}}}")
    page.columns = [column.translate(TEX) for column in header(page, layout)]
    labels = len(layout.rows)
    for key in page.columns[:labels]:
        page[key] = page[key].map(lambda label: label.translate(TEX))
    return page.to_latex(index=False, escape=False, column_format="l" * labels + "r" * (len(page.columns) - labels))


TEX = str.maketrans(
    {char: f"\\{char}" for char in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
)
MARKDOWN = str.maketrans(
    {"|": r"\|", "\\": r"\\", "<": "&lt;", ">": "&gt;", "`": r"\`", "[": r"\[", "*": r"\*", "\n": " ", "\r": " "}
)
"""No name of a dataset or class is read as a command of LaTeX, or as Markdown."""


def _inert(label: object) -> object:
    """Prefix a label that a spreadsheet would read as a formula with an apostrophe."""
    return f"'{label}" if isinstance(label, str) and re.match(r"[=+@\t\r]|-(?![\d.]+$)", label) else label


def read_cells(path: Path) -> pd.DataFrame:
    """Read the CSV file of cells that ``write`` wrote."""
    cells = read_table(path, na_values={key: [""] for key in ("estimate", "ci_low", "ci_high")})
    return cells.assign(**{str(key): _numbers(cells[key]) for key in cells if cells[key].eq(ALL).any()})


def _numbers(labels: pd.Series) -> pd.Series:
    """Labels that are numbers, apart from the row of all rows, as numbers again; other labels unchanged."""
    known = labels[labels != ALL]
    if pd.to_numeric(known, errors="coerce").isna().any():
        return labels
    numbers = {text: int(text) if text.isdigit() else float(text) for text in known}
    return pd.Series([numbers.get(text, text) for text in labels], labels.index, dtype=object)


def header(page: pd.DataFrame, layout: Layout) -> list[str]:
    """The column names of an arranged table, as text for readers."""
    rows = len(layout.rows)
    return [key_name(str(column)) if place < rows else str(column) for place, column in enumerate(page.columns)]


def arrange(cells: pd.DataFrame, layout: Layout, measure: Measure, bold: Callable[[str], str] = str) -> pd.DataFrame:
    """Arrange the cells as text in the layout's rows and columns; ``bold`` is applied to the best."""
    numbers = cells[["estimate", "ci_low", "ci_high"]].to_numpy(float).tolist()
    intervals = [Interval(estimate, low, high, 0) for estimate, low, high in numbers]
    digits = digits_of(intervals, layout.digits)
    texts = [
        _text(value, _own_digits(value, digits), bold if best else str)
        for value, best in zip(intervals, cells["best"], strict=True)
    ]
    names = [str(measure)] * len(cells)
    if layout.columns:
        settings = tidy.records(cells[list(layout.columns)])
        names = [", ".join(dict.fromkeys(itertools.starmap(setting, cell.items()))) for cell in settings]
        names = _distinct([", ".join(map(str, cell.values())) for cell in settings], names)
    labels = {
        key: _distinct(list(map(str, cells[key])), [_row_label(key, value) for value in cells[key].tolist()])
        for key in layout.rows
    }
    flat = pd.DataFrame(labels).assign(_name=names, _text=texts)
    page = flat.pivot(index=list(layout.rows), columns="_name", values="_text")
    order = flat[list(layout.rows)].drop_duplicates()
    page = page.reindex(index=pd.MultiIndex.from_frame(order) if len(layout.rows) > 1 else order.iloc[:, 0].tolist())
    page = page[list(dict.fromkeys(names))].fillna("–")
    page.index.names = list(layout.rows)
    page.columns.name = None
    return page.reset_index()


def _distinct(values: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The ``texts`` for readers, but the values themselves where two of them would read the same, such as ``a_b`` and ``a b``."""
    read_as = dict(zip(values, texts, strict=True))
    times = Counter(read_as.values())
    return [value if times[text] > 1 else text for value, text in zip(values, texts, strict=True)]


def _own_digits(value: Interval, digits: int) -> int:
    """The decimals of one cell: more than the table's ``digits`` if they would hide that a small value differs from 0, or its interval."""
    low, estimate, high = (round(number, digits) for number in (value.low, value.estimate, value.high))
    hidden = estimate == 0 or (low == high and abs(estimate) < 10 ** (1 - digits))
    return digits_of([value], digits) if hidden and (value.low > 0 or value.high < 0) else digits


def _text(value: Interval, digits: int, bold: Callable[[str], str]) -> str:
    """An estimate with its interval, if it has one that is not a point; a dash where nothing was counted."""
    if math.isnan(value.estimate):
        return "–"
    number = bold(f"{value.estimate:.{digits}f}")
    return number if not value.low < value.high else f"{number} [{value.low:.{digits}f}, {value.high:.{digits}f}]"


def _row_label(key: str, value: object) -> str:
    """The label of a row as text for readers; a number stands alone, because the head of its column names it."""
    if isinstance(value, int | float) and not meaning(key, value):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    return setting(key, value)
