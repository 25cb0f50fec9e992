"""Compares the verdict's forecasts with recorded streams: python -m benchmarks.forecasts --data paper_figures/{laptop,smollm2}/data --out FILE.md"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import benchmarks
from draftlab.files.tables import read_table
from draftlab.serving.forecast import SLOPE, fit

SHARE = 0.2
LEARNING = ("online", "online_warm", "online_all", "all", "block_end")
STREAMS = {
    "osd_online": ("dataset", ""),
    "beyond_loss_positions": ("dataset", ""),
    "beyond_temperature_online": ("temperature", "spider"),
    "osd_online_t5": ("dataset", ""),
    "beyond_stream_length": ("length", "a mixture of four"),
}
"""Published tables of streams: the column that identifies a stream together with the seed and the way of learning; the dataset of all its
streams, if no column says it."""


def streams(data: Path) -> list[dict[str, Any]]:
    """The recorded streams of a scale's published tables: their ``dataset``, and the ``accepted`` and ``visited`` tokens of each row."""
    found = []
    for name, (key, dataset) in STREAMS.items():
        if not (file := data / f"{name}.csv.gz").exists():
            continue
        rows = read_table(file).query("split == 'train'")
        way = next((column for column in ("method", "loss_positions") if column in rows), None)
        rows = rows[rows[way].isin(LEARNING)] if way else rows
        for labels, own in rows.groupby([key, *([way] if way else []), "seed"]):
            own = own.sort_values("stream_index")
            found.append(
                {
                    "table": f"{data.parent.name}: {name}",
                    "stream": " ".join(map(str, labels)),
                    "dataset": dataset or str(own["dataset"].iloc[0]),
                    "of_row": int(own.get("requests", pd.Series([1])).iloc[0]),
                    "accepted": own["accepted"].to_numpy(float),
                    "visited": own["visited"].to_numpy(float),
                }
            )
    return found


def table(folders: Sequence[Path]) -> pd.DataFrame:
    """Compare the last tenth of each recorded stream with the forecast from its first fifth; ``refused`` says why there is none.

    The slope that a forecast expects is the mean over whole streams of other datasets, so that no stream helps to forecast its own dataset.
    """
    every = [stream for data in folders for stream in streams(data)]
    slopes = [fit(own["accepted"], own["visited"], own["of_row"], spread=np.inf) for own in every]
    rows = []
    for own in every:
        others = [
            curve.fitted[1]
            for stream, curve in zip(every, slopes, strict=True)
            if stream["dataset"] != own["dataset"] and not isinstance(curve, str)
        ]
        accepted, visited, of_row = own["accepted"], own["visited"], own["of_row"]
        first, last = int(SHARE * len(visited)), int(0.9 * len(visited))
        curve = fit(accepted[:first], visited[:first], of_row, slope=float(np.mean(others or [SLOPE])))
        row = {"table": own["table"], "stream": own["stream"], "requests": len(visited) * of_row}
        row["measured"] = accepted[last:].sum() / visited[last:].sum()
        if isinstance(curve, str):
            rows.append({**row, "refused": curve})
        else:
            estimate, low, high = curve.at(0.95 * len(visited) * of_row)
            rows.append({**row, "forecast": estimate, "low": low, "high": high, "refused": ""})
    return pd.DataFrame(rows)


def as_markdown(found: pd.DataFrame) -> str:
    """Write the page of errors by table."""
    lines = ["# Forecasts compared with recorded streams", ""]
    lines += [
        "Each stream's first fifth is used to forecast the acceptance of its last tenth. How fast acceptance grows is expected from whole streams of "
        "other datasets; no stream helps to forecast its own.",
        "",
    ]
    head = (
        "table",
        "streams forecast",
        "streams refused",
        "mean absolute error",
        "measured value inside the 95 % interval",
    )
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * 5]
    for name, own in [*found.groupby("table", sort=False), ("all", found)]:
        given = own[own["refused"] == ""]
        error = (given["forecast"] - given["measured"]).abs().mean()
        inside = ((given["low"] <= given["measured"]) & (given["measured"] <= given["high"])).sum()
        lines.append(f"| {name} | {len(given)} | {len(own) - len(given)} | {error:.3f} | {inside} of {len(given)} |")
    return "\n".join(lines) + "\n"


def main(*, data: tuple[Path, ...], out: Path) -> None:
    """Write how well the verdict's forecasts agree with recorded streams; DATA: folders with the published tables of scales."""
    found = table(data)
    benchmarks.write(found, as_markdown, out)
    print(as_markdown(found), end="")


if __name__ == "__main__":
    benchmarks.run(main)
