"""The acceptance of a draft that keeps learning, after more requests than it has seen.

``logit alpha(n) = a + b log(1 + n / SCALE)``: with each doubling of the requests learnt from, the odds of acceptance grow by about the same
factor. ``a`` and ``b`` are fitted to one stream, ``b`` near that of recorded streams; the interval holds the fit's error and, growing with the
distance, how far recorded streams left their own line. The constants were chosen while looking at the streams of ``STREAMS``, so their table
shows a fit, not a forecast out of sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from jaxtyping import Float64
from scipy.optimize import least_squares

from draftlab.core.stats import ENOUGH
from draftlab.files.tables import read_table

SCALE, SLOPE, SPREAD, DRIFT = 15.0, 0.48, 0.03, 0.13
"""Requests; ``b`` and its spread; how far a stream leaves its line, in logits per unit of ``log(1 + n / SCALE)``."""
BINS = 8
LEAST = 2 * ENOUGH
"""Requests below which a curve is too short."""
MISFIT = 5.5
"""Mean squared error of the parts, in their standard errors, from which a stream does not grow as recorded ones did."""
FURTHEST = 10
"""A forecast reaches so many times as many requests as were seen."""


@dataclass(frozen=True)
class Curve:
    """A fitted stream of ``seen`` requests: (a, b) and their covariance."""

    seen: int
    fitted: Float64[np.ndarray, 2]
    covariance: Float64[np.ndarray, "2 2"]

    def at(self, requests: float) -> tuple[float, float, float]:
        """Acceptance after so many requests, and its 95 % interval."""
        place = np.array([1.0, np.log1p(requests / SCALE)])
        drift = DRIFT * max(place[1] - np.log1p(self.seen / SCALE), 0.0)
        margin = 1.96 * np.sqrt(place @ self.covariance @ place + drift**2)
        middle = float(self.fitted @ place)
        low, estimate, high = (1 / (1 + np.exp(-(middle + m))) for m in (-margin, 0.0, margin))
        return float(estimate), float(low), float(high)

    def enough(self, gain: float) -> float | None:
        """Requests from which on twice as many bring less than ``gain``; None where that is further than is forecast."""
        tried = self.seen * np.geomspace(1, FURTHEST / 2, 100)
        return next((float(n) for n in tried if self.at(2 * n)[0] - self.at(n)[0] < gain), None)


def fit(
    accepted: Float64[np.ndarray, " rows"], visited: Float64[np.ndarray, " rows"], requests_of_row: int = 1
) -> Curve | str:
    """The curve of a stream's requests in their order (or of sums of neighbouring ones), or why none is given."""
    seen = len(visited) * requests_of_row
    if seen < LEAST or not visited.sum() > 0:
        return f"{seen} requests are too short a curve; it takes {LEAST}"
    places, alphas, errors = [], [], []
    for own in np.array_split(np.arange(len(visited)), min(BINS, len(visited) // 3)):
        total = max(float(visited[own].sum()), 1.0)
        alpha = float(accepted[own].sum()) / total
        places.append(np.log1p((own.mean() + 0.5) * requests_of_row / SCALE))
        alphas.append(alpha)
        errors.append(np.sqrt(((accepted[own] - alpha * visited[own]) ** 2).sum()) / total)
    x, y, error = np.array(places), np.array(alphas), np.maximum(errors, 0.005)

    def residuals(line: Float64[np.ndarray, 2]) -> Float64[np.ndarray, " bins"]:
        return np.append((1 / (1 + np.exp(-(line[0] + line[1] * x))) - y) / error, (line[1] - SLOPE) / SPREAD)

    found = least_squares(residuals, [0.0, SLOPE])
    if 2 * found.cost / len(x) > MISFIT:
        return "acceptance does not grow here as it did on recorded streams"
    slopes = np.asarray(found.jac)
    return Curve(seen, found.x, np.linalg.inv(slopes.T @ slopes))


SHARE = 0.2
LEARNING = ("online", "online_warm", "online_all", "all", "block_end")
STREAMS = {"osd_online": "dataset", "beyond_loss_positions": "dataset", "beyond_temperature_online": "temperature",
           "osd_online_t5": "dataset", "beyond_stream_length": "length"}  # fmt: skip
"""Published tables of streams, and the column besides seed and way of learning that names one."""


def table(data: Path) -> pd.DataFrame:
    """Each recorded stream's last tenth beside the forecast from its first fifth; ``refused`` says why there is none."""
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
    """The page of errors by table."""
    lines = ["# Forecasts beside recorded streams", ""]
    lines += ["| streams | forecast | refused | mean absolute error | inside the 95 % interval |", "|" + "---|" * 5]
    for name, own in [*found.groupby("table", sort=False), ("all", found)]:
        given = own[own["refused"] == ""]
        error = (given["forecast"] - given["measured"]).abs().mean()
        inside = ((given["low"] <= given["measured"]) & (given["measured"] <= given["high"])).sum()
        lines.append(f"| {name} | {len(given)} | {len(own) - len(given)} | {error:.3f} | {inside} of {len(given)} |")
    return "\n".join(lines) + "\n"
