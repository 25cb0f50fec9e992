"""An experiment's table as figures, tables and claims read it: the observations, and the columns derived from them row by row."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_numeric_dtype

from draftlab.core import stats
from draftlab.errors import UserError
from draftlab.files.registries import own_parts
from draftlab.files.tables import REMEDY, read_table, tables_in
from draftlab.plan import WORKFLOW, Experiment, load_experiment


def read(path: Path, experiment: str | None = None) -> pd.DataFrame:
    """Read ``<experiment>.csv`` and add its derived columns; a file that is not such a table raises ``UserError``.

    An ``experiment`` is called by its name or, if it is the user's own, by its file.
    """
    experiment = path.name.split(".")[0] if experiment is None else experiment
    rows = read_table(path)
    _check_numbers(rows, path, experiment)
    try:
        return derive(experiment, rows)
    except KeyError as error:
        raise no_column(error, path, experiment, rows, "`derive` of its stage") from None


def _check_numbers(rows: pd.DataFrame, path: Path, experiment: str) -> None:
    """Refuse a table with a text in a column of numbers that its stage writes; what the experiment compares may have names."""
    plan = plan_of(experiment)
    numbers = [name for name, column in plan.stage_kind.columns.items() if column.kind in (int, float)]
    for name in numbers:
        if name in plan.compared or name not in rows or is_numeric_dtype(rows[name]):
            continue
        texts = rows[name][rows[name].notna() & pd.to_numeric(rows[name], errors="coerce").isna()]
        if len(texts):
            what = f"column {name!r} holds {texts.iloc[0]!r} in row {texts.index[0] + 1}, not a number"
            raise UserError(what, file=path, remedy=REMEDY)


def no_column(error: KeyError, path: Path, experiment: str, rows: pd.DataFrame, asker: str) -> Exception:
    """What to raise if ``asker`` asked for a column that ``rows``, the table at ``path`` and perhaps derived columns, do not have.

    It is the ``error`` itself if pandas did not raise it: then what is missing is no column.
    """
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or not trace.tb_frame.f_globals["__name__"].startswith("pandas."):
        return error
    written, present = plan_of(experiment).stage_kind.columns.items(), set(read_table(path))
    lost = [name for name, column in written if not column.optional and name not in present]
    if any(repr(name) in str(error) for name in lost):
        remedy = "its stage writes one now: delete the table and run the experiment again; if it is published, `make publish`"
    else:
        remedy = f"correct {asker}, which asks for it; there are {', '.join(map(str, rows))}"
    return UserError(f"no column {error}", file=path, remedy=remedy)


def tables_of(results: Path, experiments: Collection[str] = ()) -> dict[str, Path]:
    """The paths of these experiments' tables in a folder of results, by what they are called; without one, of all in ``workflow/experiments``.

    **Raises:** ``UserError`` for a folder without tables.
    """
    paths = tables_in(results)
    called = {Path(name).stem: name for name in experiments or filter(lambda name: file_of(name).exists(), paths)}
    if not called.keys() & paths:
        raise UserError("no tables here", file=results, remedy="run the experiments first")
    return {called[name]: path for name, path in paths.items() if name in called}


def derive(experiment: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Add the derived columns of the experiment's stage to ``rows``, and apply the view that the experiment asks for, if any."""
    plan = plan_of(experiment)
    rows = plan.stage_kind.derive(rows)
    return plan.stage_kind.views[plan.view](rows) if plan.view else rows


def file_of(experiment: str) -> Path:
    """The experiment's YAML file: one of the user's own is what the experiment is called by."""
    return Path(experiment) if experiment.endswith(".yaml") else WORKFLOW / "experiments" / f"{experiment}.yaml"


@functools.cache
def plan_of(experiment: str) -> Experiment:
    """The experiment's YAML file as an object."""
    if not file_of(experiment).exists():
        raise UserError(f"no experiment named {experiment!r}", file=file_of(experiment), remedy="add this file")
    return load_experiment(file_of(experiment))


UNITS = {"request_id": "requests", "stream_index": "requests", "block": "blocks"}
"""The columns that a bootstrap may resample, with a name for readers."""
APART = ("split", "dataset", "moment", "traffic")
"""Columns that keep equal names of units apart."""
ID_COLUMNS = (*UNITS, *APART)


def resampled_column(rows: pd.DataFrame) -> str | None:
    """The column whose values the bootstrap resamples: requests, places in a stream, or blocks; None for an exact table."""
    return next((column for column in UNITS if column in rows), None)


def summed_requests(rows: pd.DataFrame) -> pd.Series:
    """How many requests each row of a stream sums: one, unless the stream is binned."""
    return rows["requests"] if "requests" in rows else pd.Series(1, rows.index)


def resampled_name(rows: pd.DataFrame) -> str | None:
    """A name for what the bootstrap resamples; None for an exact table. A row of a binned stream sums several ``requests``."""
    if "stream_index" in rows and (size := summed_requests(rows).max()) > 1:
        return f"groups of up to {size:.0f} requests"
    column = resampled_column(rows)
    return None if column is None else UNITS[column]


def resampled_ids(rows: pd.DataFrame) -> pd.Series:
    """A unique name for the bootstrap unit of each row: the same number in two datasets, splits, moments or kinds of traffic means two units."""
    column = resampled_column(rows)
    if column is None:
        raise UserError("an exact table has no requests to draw", remedy="leave the interval out")
    names = rows[column].astype(str)
    for key in APART:
        names = rows[key].astype(str) + "/" + names if key in rows else names
    return names


def ratio_table(rows: pd.DataFrame, above: str, below: str | None, by: Sequence[str]) -> pd.DataFrame:
    """The ratio of two columns, or the mean of ``above``, in each group of ``by``, resampled by the units of the table."""
    rows = rows.assign(_one=1.0, _unit=resampled_ids(rows) if resampled_column(rows) else "")
    return stats.ratio_table(rows, above, below or "_one", by, request="_unit")


def in_window(rows: pd.DataFrame, start: float, end: float) -> pd.Series[bool]:
    """Which rows lie in this part of their stream, as fractions of its length; held-out requests always do.

    All text columns together identify a stream, except ``group`` and ``text``, which vary among its requests.
    """
    keys = [key for key in rows if pd.api.types.is_string_dtype(rows[key]) and key not in ("group", "text")]
    streams = rows["stream_index"].groupby([rows[key] for key in keys], dropna=False) if keys else rows["stream_index"]
    last = streams.transform("max") if keys else streams.max()
    place = rows["stream_index"] / (last + 1)
    inside = (place >= start) & (place < end)
    return inside | (rows["split"] == "eval") if "split" in rows else inside


def served(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the stream itself, without held-out requests."""
    return rows[rows["split"] == "train"] if "split" in rows else rows


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert a table to one dict per row."""
    return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]


def select_rows(table: pd.DataFrame, where: Mapping[str, Any], name: str) -> pd.DataFrame:
    """The rows of ``table`` that match ``where``; its key ``window`` keeps a part of the stream, as fractions of its length."""
    return table[matches(table, where, name)]


def with_own(where: Mapping[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """The filters of a table or figure, whose lists also select the user's own code: nobody names it in an experiment's file that was there before."""
    return {
        key: [*wanted, *filter(own_parts, table[key].unique())] if isinstance(wanted, list) and key in table else wanted
        for key, wanted in where.items()
    }


def matches(table: pd.DataFrame, where: Mapping[str, Any], name: str) -> pd.Series[bool]:
    """Which rows of ``table`` match ``where``."""
    keep = pd.Series(True, index=table.index)
    for key, wanted in where.items():
        if key == "window":
            keep &= in_window(table, *wanted)
        else:
            require_columns(table, [key], name)
            keep &= _one_of(table[key], wanted if isinstance(wanted, list) else [wanted])
    return keep


def _one_of(column: pd.Series, wanted: Sequence[Any]) -> pd.Series[bool]:
    """Which rows of a column have one of the ``wanted`` values; numbers are compared as numbers."""
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return column.astype(str).isin([str(value) for value in wanted])
    return column.isin(pd.to_numeric(pd.Series(wanted), errors="coerce").dropna())


def require_columns(table: pd.DataFrame, columns: Iterable[str], name: str) -> None:
    """Refuse a table that lacks one of these columns."""
    if missing := [column for column in columns if column not in table]:
        readers = "its YAML file, its figure, MEASURES of its stage, or workflow/published"
        remedy = f"correct what asks for it: {readers}; if the table is older than its stage, run the experiment again"
        raise UserError(f"table {name} has no column {missing[0]!r}", remedy=remedy)


def sort_groups(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Sort ``table`` by ``keys``: numbers ascending, words in the order of their first appearance."""

    def rank(column: pd.Series) -> pd.Series:
        return column if pd.api.types.is_numeric_dtype(column) else pd.Series(pd.factorize(column)[0], column.index)

    return table.sort_values(list(keys), key=rank, kind="stable")
