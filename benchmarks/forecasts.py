"""Compares the verdict's forecasts with recorded streams: python -m benchmarks.forecasts --data paper_figures/laptop/data --out FILE.md"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

import benchmarks
from draftlab.files.tables import read_table
from draftlab.serving.forecast import fit

SHARE = 0.2
LEARNING = ("online", "online_warm", "online_all", "all", "block_end")
STREAMS = {"osd_online": "dataset", "beyond_loss_positions": "dataset", "beyond_temperature_online": "temperature",
           "osd_online_t5": "dataset", "beyond_stream_length": "length"}  # fmt: skip
"""Published tables of streams, and the column that identifies a stream together with the seed and the way of learning."""


def table(data: Path) -> pd.DataFrame:
    """Compare the last tenth of each recorded stream with the forecast from its first fifth; ``refused`` says why there is none."""
    rows = []
    for name, key in STREAMS.items():
        found = read_table(data / f"{name}.csv.gz").query("split == 'train'")
        way = next((column for column in ("method", "loss_positions") if column in found), None)
        found = found[found[way].isin(LEARNING)] if way else found
        for labels, own in found.groupby([key, *([way] if way else []), "seed"]):
            own = own.sort_values("stream_index")
            accepted, visited = own["accepted"].to_numpy(float), own["visited"].to_numpy(float)
            first, last, of_row = (
                int(SHARE * len(own)),
                int(0.9 * len(own)),
                int(own.get("requests", pd.Series([1])).iloc[0]),
            )
            curve = fit(accepted[:first], visited[:first], of_row)
            row = {"table": name, "stream": " ".join(map(str, labels)), "requests": len(own) * of_row}
            row["measured"] = accepted[last:].sum() / visited[last:].sum()
            if isinstance(curve, str):
                rows.append({**row, "refused": curve})
            else:
                estimate, low, high = curve.at(0.95 * len(own) * of_row)
                rows.append({**row, "forecast": estimate, "low": low, "high": high, "refused": ""})
    return pd.DataFrame(rows)


def as_markdown(found: pd.DataFrame) -> str:
    """Write the page of errors by table."""
    lines = ["# Forecasts compared with recorded streams", ""]
    lines += ["Each stream's first fifth is used to forecast the acceptance of its last tenth.", ""]
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


def main(*, data: Path, out: Path) -> None:
    """Write how well the verdict's forecasts agree with recorded streams; DATA: the published tables of a scale."""
    found = table(data)
    benchmarks.write(found, as_markdown, out)
    print(as_markdown(found), end="")


if __name__ == "__main__":
    benchmarks.run(main)
