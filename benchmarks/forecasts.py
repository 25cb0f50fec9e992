"""Compares the verdict's forecasts with recorded streams: python -m benchmarks.forecasts --data paper_figures/{laptop,smollm2}/data --out FILE.md"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float64

import benchmarks
from draftlab.files.tables import read_table
from draftlab.serving.forecast import SLOPE, Curve, fit, twice
from draftlab.serving.speedup import range_of, ratio_draws

SHARE = 0.2
LEARNING = ("online", "online_warm", "online_all", "all", "block_end")
STREAMS = {
    "osd_online": ("dataset", ""),
    "beyond_loss_positions": ("dataset", ""),
    "beyond_temperature_online": ("temperature", "spider"),
    "osd_online_t5": ("dataset", ""),
    "beyond_stream_length": ("length", "a mixture of four"),
}
"""Published tables of streams: the column that identifies a stream together with the seed and the way of learning, and the dataset of all
streams if no column names it."""


@dataclass(frozen=True)
class Stream:
    """A recorded stream: the ``accepted`` and ``visited`` tokens of each row, which sums up ``per_row`` requests."""

    table: str
    name: str
    dataset: str
    per_row: int
    accepted: Float64[np.ndarray, " rows"]
    visited: Float64[np.ndarray, " rows"]


def streams(data: Path) -> list[Stream]:
    """The recorded streams in a scale's published tables."""
    recorded = []
    for table, (key, dataset) in STREAMS.items():
        if not (file := data / f"{table}.csv.gz").exists():
            continue
        rows = read_table(file).query("split == 'train'")
        way = next((column for column in ("method", "loss_positions") if column in rows), None)
        rows = rows[rows[way].isin(LEARNING)] if way else rows
        for labels, stream in rows.groupby([key, *([way] if way else []), "seed"]):
            stream = stream.sort_values("stream_index")
            recorded.append(
                Stream(
                    table=f"{data.parent.name}: {table}",
                    name=" ".join(map(str, labels)),
                    dataset=dataset or str(stream["dataset"].iloc[0]),
                    per_row=int(stream.get("requests", pd.Series([1])).iloc[0]),
                    accepted=stream["accepted"].to_numpy(float),
                    visited=stream["visited"].to_numpy(float),
                )
            )
    return recorded


def table(folders: Sequence[Path]) -> pd.DataFrame:
    """Compare the last tenth of each recorded stream with the forecast from its first fifth; ``refused`` says why there is none.

    The slope that a forecast expects is the mean over whole streams of other datasets, so that no stream helps to forecast its own dataset.
    """
    every = [stream for data in folders for stream in streams(data)]
    curves = [fit(stream.accepted, stream.visited, stream.per_row, spread=np.inf) for stream in every]
    slopes = [(s.dataset, curve.fitted[1]) for s, curve in zip(every, curves, strict=True) if isinstance(curve, Curve)]
    rows = []
    for stream in every:
        others = [slope for dataset, slope in slopes if dataset != stream.dataset]
        accepted, visited, per_row = stream.accepted, stream.visited, stream.per_row
        first, last = int(SHARE * len(visited)), int(0.9 * len(visited))
        curve = fit(accepted[:first], visited[:first], per_row, slope=float(np.mean(others or [SLOPE])))
        row = {"table": stream.table, "stream": stream.name, "requests": len(visited) * per_row}
        row["measured"] = accepted[last:].sum() / visited[last:].sum()
        if isinstance(curve, str):
            rows.append({**row, "refused": curve})
        else:
            at = curve.at(0.95 * len(visited) * per_row)
            rows.append({**row, "forecast": at.estimate, "low": at.low, "high": at.high, "refused": ""})
    return pd.DataFrame(rows)


def distilled(folders: Sequence[Path]) -> pd.DataFrame:
    """Compare drafts distilled on the most requests with the forecast from half as many, and from a quarter of those.

    Where no draft learnt from a quarter, the forecast is from half. ``ratio``: the last gain of the log-odds over the mean gain by a doubling
    before it.
    """
    rows = []
    for data in folders:
        curves = read_table(data / "beyond_compute_matched.csv.gz").groupby(["dataset", "draft", "seed"])
        for labels, curve in curves:
            of = {int(str(n)): ratio_draws(drafts, "accepted", "visited") for n, drafts in curve.groupby("requests")}
            most = max(of)
            half = most // 2
            fewer = half // 4 if half // 4 in of else half // 2
            doublings = float(np.log2(half / fewer))
            forecast = range_of(of[half] + twice(of[fewer], of[half], doublings))
            odds = {n: np.log(of[n][0] / (1 - of[n][0])) for n in (fewer, half, most)}
            row: dict[str, object] = {
                "table": f"{data.parent.name}: beyond_compute_matched",
                "draft": " ".join(map(str, labels)),
            }
            row |= {"requests": most, "measured": of[most][0], "refused": ""}
            row |= {"forecast": forecast.estimate, "low": forecast.low, "high": forecast.high}
            rows.append(row | {"ratio": (odds[most] - odds[half]) * doublings / (odds[half] - odds[fewer])})
    return pd.DataFrame(rows)


def as_markdown(frame: pd.DataFrame, curves: pd.DataFrame) -> str:
    """Write the page of errors by table."""
    spread = np.sqrt((np.log(curves["ratio"]) ** 2).mean())
    return (
        "# Forecasts compared with recorded streams\n\nEach stream's first fifth is used to forecast the acceptance of its last tenth. How fast "
        "acceptance grows is expected from whole streams of other datasets; no stream helps to forecast its own.\n\n"
        f"{_errors(frame, 'streams')}\n## Drafts that are distilled once\n\nThe acceptance of a draft is forecast from drafts distilled on half "
        "of its requests, and on a quarter of those (or on half of those, where no draft learnt from a quarter). The last gain of the log-odds is the mean gain by a doubling "
        f"before it times a factor, whose logarithm has a root mean square of {spread:.2f} here.\n\n{_errors(curves, 'drafts')}"
    )


def _errors(frame: pd.DataFrame, of: str) -> str:
    """The table of errors."""
    head = ["table", f"{of} forecast", f"{of} refused", "mean absolute error"]
    rows = []
    for name, part in [*frame.groupby("table", sort=False), ("all", frame)]:
        known = part[part["refused"] == ""]
        error = (known["forecast"] - known["measured"]).abs().mean()
        inside = ((known["low"] <= known["measured"]) & (known["measured"] <= known["high"])).sum()
        refused = len(part) - len(known)
        rows.append([name, len(known), refused, f"{error:.3f}", f"{inside} of {len(known)}"])
    return benchmarks.markdown_table([*head, "measured value inside the 95 % interval"], rows)


def main(*, data: tuple[Path, ...], out: Path) -> None:
    """Write how well the verdict's forecasts agree with recorded streams and drafts; DATA: folders with the published tables of scales."""
    frame, curves = table(data), distilled(data)
    page = as_markdown(frame, curves)
    benchmarks.write(pd.concat([frame, curves]), page, out)
    print(page, end="")


if __name__ == "__main__":
    benchmarks.run(main)
