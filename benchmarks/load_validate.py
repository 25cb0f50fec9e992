"""Compares the simulator with what others measured: python -m benchmarks.load_validate --data FOLDER --out FILE.md

No prediction is fitted to the number that it predicts. The folder holds `llmservingsim/` and `specbundle/`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import brentq

import benchmarks
from draftlab.core.theory import expected_block_length
from draftlab.errors import UserError
from draftlab.files.json_files import read_object
from draftlab.serving import profiles, traces
from draftlab.serving.profiles import Attention, Costs, Profile
from draftlab.serving.simulate import serve

QUEUES = {"rtx4090-llama-3.1-8b": "RTX4090", "rtxpro6000x2-qwen3-32b": "RTXPRO6000_Qwen3-32B"}
"""For each profile, the folder with the requests that a real server answered on that machine."""


def queueing(profile: str, file: Path) -> list[dict[str, Any]]:
    """Compare the mean times of requests to a real vLLM server (LLMServingSim's ``requests.jsonl``) with simulated ones."""
    arrivals = traces.read_trace(file)
    served = serve(arrivals, profiles.load(profile), 0, None, np.random.default_rng(0))
    rows = [row for _, row in traces.rows(file) if row is not None]
    if len(rows) != len(served.last):
        raise UserError("requests were left out", file=file, remedy="fetch the file again")
    shift = rows[0]["queued_ts"] - rows[0]["arrival_time"]  # offset between the two clocks
    first = [row["first_token_ts"] - row["arrival_time"] - shift for row in rows]
    pace = [(r["last_token_ts"] - r["first_token_ts"]) / (r["output_toks"] - 1) for r in rows if r["output_toks"] > 1]
    pairs = {
        "mean time per token": (np.mean(pace), served.per_token.mean(), 0.05),
        "mean time to first token": (np.mean(first), served.to_first.mean(), 0.10),
    }
    return [
        _row("vLLM without drafts", profile, f"{quantity} (s)", measured, predicted, bound)
        for quantity, (measured, predicted, bound) in pairs.items()
    ]


def _row(part: str, setting: str, quantity: str, measured: float, predicted: float, bound: float) -> dict[str, Any]:
    """One row of the table; ``within`` says whether the relative error is at most ``bound``."""
    error = float(predicted / measured - 1)
    facts = {"part": part, "setting": setting, "quantity": quantity}
    within = "yes" if abs(error) <= bound else "no"
    return {**facts, "measured": float(measured), "predicted": float(predicted), "error": error, "within": within}


# --- speculation measured by SpecBundle ------------------------------------------------------------------------------


def specbundle_cells(file: Path) -> pd.DataFrame:
    """One row per measured cell of SpecBundle's ``data.json``: plain and speculative throughput, and acceptance length."""
    cells = []
    for target, benchmarks_of_target in read_object(file).items():
        for benchmark, measured in benchmarks_of_target.items():
            for result in measured["results"]:
                shape = {name: result[name] for name in ("batch_size", "steps", "topk", "num_draft_tokens")}
                plain = next(m for m in result["metrics"] if m["accept_length"] == 1.0)["output_throughput"]
                for metric in result["metrics"]:
                    if metric["accept_length"] != 1.0:
                        cell = {
                            "target": target,
                            "benchmark": benchmark,
                            "draft": metric["Name"],
                            **shape,
                            "plain": plain,
                        }
                        speed, length = metric["output_throughput"], metric["accept_length"]
                        cells.append({**cell, "measured": speed, "length": length})
    return pd.DataFrame(cells)


def specbundle(cells: pd.DataFrame, *, other_lengths: bool = False) -> pd.DataFrame:
    """Predict each cell's throughput as ``plain x acceptance length / cost``, where cost is the time of a block in plain steps.

    The cost depends on the pair and the machine, not on the benchmark. It is the median over the pair's *other* benchmarks at the same
    number of steps and tokens; or, with ``other_lengths``, read off a straight line fitted to the other benchmarks at *other* lengths.
    """
    cells = cells.assign(cost=cells["plain"] * cells["length"] / cells["measured"])
    if other_lengths:
        cells = cells[cells["topk"] == 1]
    pair, shape = ["target", "draft", "batch_size"], ["steps", "topk", "num_draft_tokens"]
    predicted = []
    for _, cell in cells.iterrows():
        others = cells[(cells[pair] == cell[pair]).all(axis=1) & (cells["benchmark"] != cell["benchmark"])]
        if other_lengths:
            medians = others[others["steps"] != cell["steps"]].groupby("steps")["cost"].median()
            slope, start = np.polyfit(medians.index.to_numpy(float), medians.to_numpy(float), 1)
            cost = start + slope * cell["steps"]
        else:
            cost = others[(others[shape] == cell[shape]).all(axis=1)]["cost"].median()
        predicted.append(cell["plain"] * cell["length"] / cost)
    return cells.assign(predicted=predicted, error=np.array(predicted) / cells["measured"] - 1)


def _specbundle_rows(file: Path) -> list[dict[str, Any]]:
    cells = specbundle_cells(file)
    rows = []
    for part, other in (
        ("SpecBundle, cost from other benchmarks", False),
        ("SpecBundle, cost from other benchmarks and lengths", True),
    ):
        predicted = specbundle(cells, other_lengths=other)
        for setting, group in [*predicted.groupby("target"), ("all", predicted)]:
            median = float(group["error"].abs().median())
            name = f"{setting} ({len(group)} cells, {(group['error'].abs() > 0.1).sum()} beyond 10 %)"
            rows.append({**_row(part, name, "median error of throughput", 1.0, 1.0 + median, 0.1)})
    return rows


# --- crossings that others published ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Crossing:
    """Two published speed-ups of one setting, at one request and at ``batch`` requests.

    The acceptance length follows from ``low``, the speed-up at one request; the prediction is whether the speed-up at ``batch`` is above 1.
    ``high`` is the published value there (NaN if only ``pays``, its side of 1, is known). The target reads ``reads`` tokens for each request
    (0: ``draft_len`` + 1, a chain) after a ``context`` of so many tokens.
    """

    setting: str
    profile: Profile
    draft_len: int
    low: float
    batch: int
    pays: bool
    high: float = float("nan")
    reads: int = 0
    context: int = 500

    def _cost(self, batch: int) -> float:
        plain = self.profile.block_ms(batch, self.context, 0)
        drafted = self.profile.block_ms(batch, self.context, self.draft_len)
        if self.reads:
            read = batch * (self.draft_len + 1)
            drafted -= self.profile.target.step(read, read, batch, 0.0)
            drafted += self.profile.target.step(batch * self.reads, batch * self.reads, batch, 0.0)
        return drafted / plain

    @property
    def length(self) -> float:
        return self.low * self._cost(1)

    def predict(self) -> float:
        return self.length / self._cost(self.batch)


def _crossings() -> list[Crossing]:
    """The published crossings that come with enough facts for a prediction; ``docs/serving.md`` names the others."""
    h100 = profiles.load("h100x4-llama-2-70b").model_copy(update={"max_sequences": 256})
    small = h100.model_copy(update={"draft": h100.target.scaled(0.15)})
    eagle = _specdecode_bench()
    eagle_70b = h100.model_copy(update={"draft": h100.target.scaled(1 / 40)})
    return [
        Crossing("vLLM blog, 70B on 4 H100, 0.5B draft, ShareGPT: high load", small, 4, 1.5, 256, False, 1 / 1.4),
        Crossing("vLLM blog, 70B on 4 H100, n-gram, CNN: high load", h100, 4, 2.8, 256, False, 1 / 1.8, context=1000),
        Crossing("SpecDecode-Bench, 8B, tree of 21: batch 64", eagle, 3, 1.85, 64, False, reads=22),
        Crossing("SpecDecode-Bench, 8B, chain: batch 32", eagle, 3, 1.65, 32, True, 1.65 * 0.957),
        Crossing("SpecDecode-Bench, 8B, chain, GSM8K: batch 128", eagle, 3, 1.65, 128, True, 1.21),
        Crossing("SpecDecode-Bench, 70B, EAGLE, ShareGPT: batch 32", eagle_70b, 3, 1.96, 32, True, 1.96 * 0.86),
    ]


def _specdecode_bench() -> Profile:
    """SpecDecode-Bench's published coefficients for Llama-3-8B with EAGLE (site @fb0e2426), linear in tokens and cached tokens."""
    most = 16_384
    target = Costs(tokens={1: 5.886 + 0.02101, most: 5.886 + 0.02101 * most}, decode=Attention(per_cached=3.926e-5))
    draft = Costs(tokens={1: 2.135 / 3, most: 2.135 / 3 + 8.41e-4 * most}, decode=Attention(per_cached=2.378e-6 / 3))
    return Profile(
        name="specdecode-bench-8b",
        hardware="NVIDIA H100",
        model="Llama-3-8B",
        engine="vllm",
        source="SpecDecode-Bench, published coefficients",
        licence="numbers only",
        target=target,
        draft=draft,
        overhead=1.207,
        kv_tokens=400_000,
    )


def _crossing_rows() -> list[dict[str, Any]]:
    rows = []
    for case in _crossings():
        gain = case.predict()
        row = _row("published crossings: above or below 1", case.setting, "speed-up", case.high, gain, 0.0)
        rows.append({**row, "within": "yes" if (gain > 1) == case.pays else "no"})
    h100 = profiles.load("h100x4-llama-2-70b")
    small = h100.model_copy(update={"draft": h100.target.scaled(0.2)})
    tokens = small.block_ms(32, 500, 5) / small.block_ms(32, 500, 0)  # per block, if drafting neither gains nor loses
    alpha = brentq(lambda alpha: expected_block_length(alpha, 5) - tokens, 0, 1)
    setting = "vLLM #17984, 70B, 1B draft: slower at batch 32"
    row = _row("published crossings: above or below 1", setting, "alpha at break-even", np.nan, alpha, 0.0)
    return [*rows, {**row, "within": "unknown alpha"}]


def everything(data: Path) -> pd.DataFrame:
    """Return all comparisons as one table; ``data`` holds ``llmservingsim/`` and ``specbundle/``."""
    files = {name: data / "llmservingsim" / folder / "requests.jsonl" for name, folder in QUEUES.items()}
    queues = [row for name, file in files.items() for row in queueing(name, file)]
    return pd.DataFrame([*queues, *_specbundle_rows(data / "specbundle/data.json"), *_crossing_rows()])


def as_markdown(table: pd.DataFrame) -> str:
    """Write the page that compares predictions with measurements."""
    head = ["part", "setting", "quantity", "measured", "predicted", "error", "within its bound"]
    rows = []
    for row in table.to_dict("records"):
        shown = not row["quantity"].startswith("median")
        numbers = [f"{row[n]:.4g}" if shown and np.isfinite(row[n]) else "" for n in ("measured", "predicted")]
        error = f"{row['error']:+.1%}" if np.isfinite(row["error"]) else ""
        rows.append([row["part"], row["setting"], row["quantity"], *numbers, error, row["within"]])
    return "# The simulator compared with measurements\n\n" + benchmarks.markdown_table(head, rows)


def main(*, data: Path, out: Path) -> None:
    """Compare the simulator's predictions with published measurements; DATA holds llmservingsim/ and specbundle/."""
    table = everything(data)
    benchmarks.write(table, as_markdown(table), out)


if __name__ == "__main__":
    benchmarks.run(main)
