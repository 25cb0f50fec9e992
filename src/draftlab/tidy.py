"""An experiment's table as figures, tables and claims read it: the observations, and what follows from them row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from draftlab import theory
from draftlab.errors import UserError
from draftlab.latency.summary import block_ratios, summarise_length


def latency(rows: pd.DataFrame) -> pd.DataFrame:
    """Times per token in ms and speed-ups of each block, and what Eq. 1 (OSD) promises more than was measured."""
    rows = block_ratios(rows)
    promised = [
        theory.speedup(*cell) for cell in zip(rows["alpha"], rows["draft_len"], rows["cost_ratio"], strict=True)
    ]
    return rows.assign(
        plain_ms=1e3 * rows["plain"], speculative_ms=1e3 * rows["speculative"], eq1_gap=promised - rows["speedup"]
    )


def length(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds to decode ``length`` tokens plainly and speculatively, per block."""
    return summarise_length(rows)


def requests(rows: pd.DataFrame) -> pd.DataFrame:
    """Beside the seconds of each contender those of plain decoding of the same request."""
    keys = [key for key in ("dataset", "request") if key in rows]
    plain = rows[rows["contender"] == "none"].set_index(keys)["seconds"]
    plain_seconds = plain.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy()
    return rows.assign(plain_seconds=plain_seconds, milliseconds=1e3 * rows["seconds"])


def update(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of the target for all requests between two updates."""
    return rows.assign(interval_seconds=rows["target_request_seconds"] * rows["update_interval"])


def cost(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of one plain step of the target around each probe."""
    return rows.assign(plain_seconds=(rows["plain_before_seconds"] + rows["plain_after_seconds"]) / 2)


def live(rows: pd.DataFrame) -> pd.DataFrame:
    """All seconds of a request, and whether its drafts were of one temperature."""
    seconds = rows["draft_seconds"] + rows["target_seconds"] + rows["select_seconds"]
    return rows.assign(seconds=seconds, identical=rows["first_temperature"] == rows["draft_temperature"])


def cone(rows: pd.DataFrame) -> pd.DataFrame:
    """How many of the facets that Theorem 2 names were not found."""
    return rows.assign(missing_subsets=rows["expected_subsets"] - rows["subsets"])


DERIVED: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "osd_latency_alpha": latency,
    "osd_latency_length": length,
    "osd_latency_dataset": requests,
    "osd_update_cost": update,
    "mdss_cone": cone,
    "mdss_draft_temperature": live,
    "mdss_drafts": live,
    "mdss_mixed_temperature": live,
    "mdss_quality": live,
    "mdss_target_temperature": live,
    "mdss_three_drafts": live,
    "mdss_topk": live,
    "mdss_truncation": live,
    "beyond_block_multidraft": live,
    "beyond_context_batch": cost,
    "beyond_interference": latency,
    "beyond_three_baselines": requests,
}


def read(path: Path, experiment: str | None = None) -> pd.DataFrame:
    """Read ``<experiment>.csv`` and add its derived columns; a file that is no table is a ``UserError``."""
    experiment = path.stem if experiment is None else experiment
    try:
        rows = pd.read_csv(path)
    except FileNotFoundError:
        raise UserError("no such table", file=path, remedy="run the experiment first") from None
    except (ValueError, UnicodeDecodeError) as error:
        raise UserError(f"not a table: {error}", file=path, remedy="delete it and run the experiment again") from None
    try:
        return derive(experiment, rows)
    except KeyError as error:
        raise UserError(f"no column {error}", file=path, remedy="delete it and run the experiment again") from None


def derive(experiment: str, rows: pd.DataFrame) -> pd.DataFrame:
    """``rows`` with the derived columns of this experiment."""
    return DERIVED[experiment](rows) if experiment in DERIVED else rows


def unit(rows: pd.DataFrame) -> str | None:
    """The column whose values the bootstrap draws: requests, records of a stream, or blocks; None for an exact table."""
    return next((column for column in ("request", "record", "block") if column in rows), None)


def clusters(rows: pd.DataFrame) -> pd.Series:
    """One name per unit of the bootstrap: the same request number of two datasets is two requests."""
    column = unit(rows)
    if column is None:
        raise UserError("an exact table has no requests to draw", remedy="leave the interval out")
    return (
        rows["dataset"].astype(str) + "/" + rows[column].astype(str) if "dataset" in rows else rows[column].astype(str)
    )


def in_window(rows: pd.DataFrame, start: float, end: float) -> pd.Series[bool]:
    """Which rows lie in this part of their stream, as fractions of its length; held-out requests (``offline``) always do."""
    streams = [rows[key] for key in ("dataset", "method") if key in rows]
    length = rows["record"].groupby(streams).transform("max") + 1 if streams else rows["record"].max() + 1
    place = rows["record"] / length
    inside = (place >= start) & (place < end)
    return inside | (rows["method"] == "offline") if "method" in rows else inside


def paired(one: pd.DataFrame, two: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both frames over the units of either, 0 where a unit is absent: what both have is drawn together."""
    units = one.index.union(two.index, sort=False)
    return one.reindex(units, fill_value=0.0), two.reindex(units, fill_value=0.0)


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One dict per row."""
    return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]
