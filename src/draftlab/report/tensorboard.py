"""Writes the curves of a run as TensorBoard events, on request; the tables remain the reference."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draftlab.core import stats
from draftlab.errors import UserError
from draftlab.files.tables import tables_in
from draftlab.report import tidy

WINDOW = 50
SERIES = ("dataset", "group", "method", "seed")
Point = tuple[str, int, float]


def write(results: Path, out: Path) -> int:
    """Write the curves of a run as TensorBoard events (needs the package tensorboard): alpha along every stream."""
    points = [point for path in tables_in(results).values() for point in curves(path)]
    if not points:
        raise UserError("no table with a stream", file=results, remedy="run osd_online first")
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


def curves(path: Path) -> Iterator[Point]:
    """Yield (experiment/series, record, moving average of alpha) for a table with a stream; nothing for other tables."""
    rows = tidy.read(path)
    if not {"stream_index", "overlap", "visited"} <= set(rows):
        return
    served = rows[rows["split"] == "train"] if "split" in rows else rows
    keys = [key for key in SERIES if key in served]
    for labels, series in served.groupby(keys, sort=False):
        ordered = series.sort_values("stream_index")
        tag = "/".join([path.stem, *map(str, labels)])
        alpha = stats.moving_ratio(ordered["overlap"], ordered["visited"], WINDOW)
        for record, value in zip(ordered["stream_index"], alpha.tolist(), strict=True):
            if value == value:  # a window in which nothing was drafted has no alpha
                yield tag, int(record), value
