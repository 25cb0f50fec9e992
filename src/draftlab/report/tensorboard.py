"""Writes the curves of a run as TensorBoard events, on request; the tables remain the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from draftlab.core import stats
from draftlab.errors import UserError
from draftlab.report import tidy

WINDOW = 50
"""Requests of a moving average."""
Point = tuple[str, int, float]


def write(results: Path, out: Path, experiments: tuple[str, ...] = ()) -> int:
    """Write the curves of a run as TensorBoard events (needs the package tensorboard): alpha along every stream.

    **Arguments:**
    - `results`: the folder of the run
    - `out`: the folder for the events
    - `experiments`: the experiments of the run, names or your own FILE.yaml; without one, every table that an experiment has
    """
    points = [point for name, path in tidy.tables_of(results, experiments).items() for point in curves(path, name)]
    if not points:
        raise UserError("no table with a stream", file=results, remedy="run the experiment osd_online first")
    try:
        from tensorboard.summary import Writer
    except ModuleNotFoundError:
        raise UserError("tensorboard is not installed", remedy="pip install 'draftlab[tensorboard]'") from None
    writer = Writer(str(out))
    for tag, record, value in points:
        writer.add_scalar(tag, value, record)
    writer.close()
    print(f"{len(points)} points; view them with: tensorboard --logdir {out}")
    return len(points)


def curves(path: Path, experiment: str) -> Iterator[Point]:
    """Yield (experiment/series, record, moving average of alpha) for a table with a stream; nothing for other tables."""
    rows = tidy.read(path, experiment)
    if not {"stream_index", "overlap", "visited"} <= set(rows):
        return
    served = tidy.served(rows)
    in_a_row = int(tidy.summed_requests(served).max())
    for labels, series in served.groupby(_keys(experiment, served), sort=False, dropna=False):
        ordered = series.sort_values("stream_index")
        tag = "/".join([path.stem, *(str(label) for label in labels if label == label)])  # not every cell has each
        alpha = stats.moving_ratio(ordered["overlap"], ordered["visited"], max(WINDOW // in_a_row, 1))
        for record, value in zip(ordered["stream_index"], alpha.tolist(), strict=True):
            if value == value:  # a window in which nothing was drafted has no alpha
                yield tag, int(record), value


def _keys(experiment: str, rows: pd.DataFrame) -> list[str]:
    """The columns whose values tell the streams of a table apart: its labels, and those that its printed table compares."""
    stage, layout = tidy.plan_of(experiment).stage_kind, tidy.plan_of(experiment).layout
    shown = [*layout.rows, *layout.columns] if layout else []
    # What the experiment names, not its stage.
    named = [name for name in map(str, rows) if name not in stage.all_columns]
    named += [name for name in shown if name in stage.columns and stage.columns[name].kind is not float]
    varying = [name for name in named if name in rows and rows[name].nunique(dropna=False) > 1]
    return [name for name in dict.fromkeys(["dataset", "group", *varying, "method", "seed"]) if name in rows]
