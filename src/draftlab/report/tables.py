"""Tidy table -> the table a paper would print: Markdown for pages, CSV for machines, LaTeX (booktabs) for papers.

Every cell is an estimate with its bootstrap interval. The best of a row is bold only where it differs from each of the others
by an interval without 0, so a bold number never stands on noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from draftlab.core import stats
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.tables import read_table
from draftlab.plan import WORKFLOW, Experiment, Layout, load_experiment
from draftlab.report import tidy

QUANTITIES: dict[tuple[str, str | None], str] = {
    ("overlap", "visited"): "alpha",
    ("accepted", "visited"): "accepted over visited tokens",
    ("counted", "visited"): "estimate of alpha",
    ("accepted", "over"): "precision or recall",
    ("acceptance", None): "acceptance [probability]",
    ("acceptance_sum", "positions"): "acceptance [probability]",
    ("over_k_seq", "positions"): "acceptance of importance sampling less that of K-SEQ [probability]",
    ("emitted", "blocks"): "block efficiency [tokens per target call]",
    ("emitted", "cost"): "speed-up by Eq. 1, a draft step at a tenth of a target step [times plain decoding]",
    ("plain", "speculative"): "speed-up [times plain decoding]",
    ("plain", "token_seconds"): "speed-up [times plain decoding]",
    ("plain_seconds", "seconds"): "speed-up [times plain decoding]",
    ("speedup", None): "speed-up [times plain decoding]",
    ("static_seconds", "cost_seconds"): "seconds of the static draft over those of this one, training counted",
    ("interval_seconds", "update_seconds"): "seconds of the target between two updates over those of an update",
    ("verify_seconds", "plain_seconds"): "seconds of verifying over those of a plain step",
    (
        "branches_seconds",
        "one_branch_seconds",
    ): "seconds of verifying all branches in one call over those of one branch",
    ("a_seconds", "b_seconds"): "seconds of the first of two equal contenders over those of the second",
    ("speculative_ms", None): "time per token [ms]",
    ("request_ms", None): "CPU time per request [ms]",
    ("ms", None): "time per decision [ms]",
    ("score", None): "score (ROUGE-L or BLEU, 0 to 1)",
    ("gb", "original_gb"): "bytes moved, as a share of plain decoding's",
    ("flops_per_second", "hardware_flops"): "FLOP/s asked for, as a share of the hardware's",
    ("count", "total"): "share of the requests",
    ("subsets", "expected_subsets"): "conditions found over those of Theorem 2",
}
EMULATED = (
    "up to scale laptop the target is a small one made as expensive as a large one by layers and channels that change no output bit; "
    "one thread is timed by its own CPU seconds"
)
MEASURES = (
    ("overlap", "visited"),
    ("acceptance_sum", "positions"),
    ("emitted", "blocks"),
    ("accepted", "visited"),
    ("plain", "speculative"),
    ("plain_seconds", "seconds"),
    ("tokens", "seconds"),
    ("acceptance", None),
    ("speedup", None),
)
"""What an experiment measures when it has no layout: the first pair (or column) that its table has."""


PLACES = ("record", "segment")
"""A bin of requests may stand at several places of its stream."""


def layout_of(experiment: str, table: pd.DataFrame) -> Layout:
    """The layout in the experiment's file, or one made from it: a known measure, what it compares last in columns, all else in rows."""
    said = plan_of(experiment)
    if said is not None and said.layout is not None:
        return said.layout
    # A list is named as many, its column as one: schemes, scheme.
    names = said.compared if said is not None else []
    columns = dict.fromkeys(name if name in table else name.removesuffix("s") for name in names)
    axes = [column for column in columns if column in table and column not in ("seed", tidy.unit(table))]
    measure = next((pair for pair in MEASURES if {part for part in pair if part} <= set(table)), None)
    remedy = "give its file a `layout`"
    if measure is None or not axes:
        raise UserError(f"no layout for {experiment!r}", remedy=remedy)
    keys = [key for key in dict.fromkeys([*axes, "dataset", "seed", tidy.unit(table) or "", *PLACES]) if key in table]
    if table.duplicated(keys).any():
        raise UserError(
            f"{experiment}: rows are not told apart by {', '.join(keys)}", file=_file(experiment), remedy=remedy
        )
    return Layout(rows=axes[:-1] or axes, columns=axes[1:][-1:], above=measure[0], below=measure[1])


@functools.cache
def plan_of(experiment: str) -> Experiment | None:
    """What the experiment's file says; none of a table that no file speaks of."""
    path = _file(experiment)
    return load_experiment(path) if path.exists() else None


def _file(experiment: str) -> Path:
    return WORKFLOW / "experiments" / f"{experiment}.yaml"


def quantity(layout: Layout) -> str:
    """What a cell is, with its unit."""
    ratio = layout.above if layout.below is None else f"{layout.above} / {layout.below}"
    return QUANTITIES.get((layout.above, layout.below), ratio)


def write(experiment: str, table: pd.DataFrame, scale: str, prefix: Path, finding: str = "") -> None:
    """Write ``prefix.md`` (the ``finding`` first), ``prefix.csv`` (one row per cell) and ``prefix.tex``."""
    layout = layout_of(experiment, table)
    cells = summary(table, layout)
    facts = caption(experiment, cells, layout, tidy.units(table), scale)
    write_text(
        prefix.with_name(prefix.name + ".csv"), cells.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    )
    parts = filter(None, (finding, markdown(cells, layout), facts))
    write_text(prefix.with_name(prefix.name + ".md"), "\n\n".join(parts) + "\n")
    write_text(prefix.with_name(prefix.name + ".tex"), f"% {facts}\n" + latex(cells, layout))


def summary(table: pd.DataFrame, layout: Layout) -> pd.DataFrame:
    """One row per cell: the layout's columns, ``estimate, ci_low, ci_high, n, best`` (no interval in an exact table)."""
    keys = [*layout.rows, *layout.columns]
    missing = [key for key in (*keys, layout.above, layout.below) if key is not None and key not in table]
    if missing:
        raise UserError(f"the table has no column {missing[0]!r}", remedy="run the experiment again")
    table = in_order(kept(table, layout), keys).assign(_one=1.0)
    below = layout.below or "_one"
    if tidy.unit(table) is None:
        cells = table.groupby(keys, sort=False)[[layout.above, below]].sum().reset_index()
        cells["estimate"] = cells[layout.above] / cells[below]
        cells["n"] = table.groupby(keys, sort=False).size().to_numpy()
        return cells.assign(ci_low=np.nan, ci_high=np.nan, best=False)[
            [*keys, "estimate", "ci_low", "ci_high", "n", "best"]
        ]
    table["_unit"] = tidy.clusters(table)
    cells = stats.ratio_table(table, layout.above, below, keys, request="_unit")
    best = pd.Series(False, index=cells.index)
    if layout.best is not None and layout.columns:
        for _, row in cells.groupby(list(layout.rows), sort=False):
            if (winner := _winner(table, row, layout, below)) is not None:
                best[winner] = True
    return cells.assign(best=best)


def in_order(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Numbers in rising order, words as they came."""

    def rank(column: pd.Series) -> pd.Series:
        return column if pd.api.types.is_numeric_dtype(column) else pd.Series(pd.factorize(column)[0], column.index)

    return table.sort_values(list(keys), key=rank, kind="stable")


def kept(table: pd.DataFrame, layout: Layout) -> pd.DataFrame:
    """The rows that a layout speaks of."""
    if layout.window:
        table = table[tidy.in_window(table, *layout.window)]
    for column, value in layout.where.items():
        table = table[table[column] == value]
    return table


def _winner(table: pd.DataFrame, row: pd.DataFrame, layout: Layout, below: str) -> int | None:
    """The cell that differs from every other cell of its row by an interval without 0; None where there is none."""
    if len(row) < 2:
        return None
    sign = 1 if layout.best == "largest" else -1
    first = row.index[int((sign * row["estimate"]).to_numpy().argmax())]
    sums = {index: _sums(table, row.loc[index], layout, below) for index in row.index}
    for other in row.index:
        if other != first:
            one, two = tidy.paired(sums[first], sums[other])
            gap = stats.ratio_difference(one[layout.above], one[below], two[layout.above], two[below])
            if not (gap.low > 0 or gap.high < 0):
                return None
    return int(first)


def _sums(table: pd.DataFrame, cell: pd.Series, layout: Layout, below: str) -> pd.DataFrame:
    chosen = np.logical_and.reduce([table[key] == cell[key] for key in (*layout.rows, *layout.columns)])
    return table[chosen].groupby("_unit")[[layout.above, below]].sum()


def caption(experiment: str, cells: pd.DataFrame, layout: Layout, units: str | None, scale: str) -> str:
    """What the numbers are, in one line."""
    one_run = bool((cells["ci_low"] == cells["ci_high"]).all())
    n = f"{cells['n'].min()}" if cells["n"].nunique() == 1 else f"{cells['n'].min()} to {cells['n'].max()}"
    parts = [f"{experiment}, scale {scale}: {quantity(layout)}", f"n = {n} {units or 'rows'} per cell"]
    if layout.window:
        parts.append(f"from {layout.window[0]:.0%} to {layout.window[1]:.0%} of the stream")
    parts += [f"{column}: {value}" for column, value in layout.where.items()]
    sure = layout.exact if units is None else "one run each, so no interval" if one_run else ""
    parts.append(sure or f"95 % bootstrap interval over {units}")
    parts += [text for text in (layout.note, EMULATED if layout.emulated else "") if text]
    if cells["best"].any():
        parts.append("bold: best of its row, by differences whose intervals leave out 0")
    return ", ".join(parts) + "."


def markdown(cells: pd.DataFrame, layout: Layout) -> str:
    """A pipe table."""
    page = arrange(cells, layout, lambda text: f"**{text}**")
    lines = [list(page.columns), ["---"] * len(page.columns), *page.to_numpy().tolist()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def latex(cells: pd.DataFrame, layout: Layout) -> str:
    """A booktabs table."""
    page = arrange(cells, layout, lambda text: rf"\textbf{{{text}}}")
    page.columns = [_escape(column) for column in page.columns]
    for key in page.columns[: len(layout.rows)]:
        page[key] = page[key].map(_escape)
    return page.to_latex(
        index=False, escape=False, column_format="l" * len(layout.rows) + "r" * (len(page.columns) - len(layout.rows))
    )


def _escape(text: str) -> str:
    return text.replace("_", r"\_").replace("%", r"\%").replace("&", r"\&")


def read_cells(path: Path) -> pd.DataFrame:
    """The cells that ``write`` wrote."""
    return read_table(path, keep_default_na=False, na_values={key: [""] for key in ("estimate", "ci_low", "ci_high")})


def arrange(cells: pd.DataFrame, layout: Layout, bold: Callable[[str], str] = str) -> pd.DataFrame:
    """The cells as text in the layout's rows and columns; ``bold`` marks the best."""
    numbers = cells[["estimate", "ci_low", "ci_high"]].to_numpy(float)
    texts = [
        _text(estimate, low, high, layout.digits, bold if best else str)
        for (estimate, low, high), best in zip(numbers.tolist(), cells["best"], strict=True)
    ]
    names = [", ".join(named(key, cell[key]) for key in layout.columns) for _, cell in cells.iterrows()]
    if not layout.columns:
        names = [quantity(layout)] * len(cells)
    flat = cells[list(layout.rows)].map(_axis).assign(_name=names, _text=texts)
    page = flat.pivot(index=list(layout.rows), columns="_name", values="_text")
    order = flat[list(layout.rows)].drop_duplicates()
    page = page.reindex(index=pd.MultiIndex.from_frame(order) if len(layout.rows) > 1 else order.iloc[:, 0].tolist())
    page = page[list(dict.fromkeys(names))].fillna("–")
    page.index.names = list(layout.rows)
    page.columns.name = None
    return page.reset_index()


def _text(estimate: float, low: float, high: float, digits: int, bold: Callable[[str], str]) -> str:
    number = bold(f"{estimate:.{digits}f}")
    return number if np.isnan(low) or low == high else f"{number} [{low:.{digits}f}, {high:.{digits}f}]"


def named(key: str, value: object) -> str:
    """A number needs its key to be read, a word does not."""
    return f"{key} {_axis(value)}" if isinstance(value, int | float) else str(value)


def _axis(value: object) -> str:
    """A setting as a reader writes it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
