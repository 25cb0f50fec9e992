"""Compares the verdict's speed-ups with served requests: python -m benchmarks.verdict_validate --run results/calibration --out FILE.md

Costs, acceptance and the measured times come from different requests. Costs are probed twice: at other moments and in other processes, as for a
verdict, and between the served requests. The difference between the two separates errors of the model from drift of the machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

import benchmarks
from draftlab.core.stats import ENOUGH
from draftlab.errors import UserError
from draftlab.files.json_files import read_object
from draftlab.files.tables import read_table
from draftlab.serving.costs import from_probes
from draftlab.serving.speedup import mean_context, speedup
from draftlab.serving.verdict import costs_of
from draftlab.serving.verdict_format import NAMES

OPTIONS = {
    "before": "as_it_comes",
    "distilled": "distilled",
    "distilled_confident": "distilled_confident",
    "lookup": "lookup",
    "suffix": "suffix",
    "suffix_confident": "suffix_confident",
    "lookup_first": "lookup_first",
    "lookup_first_confident": "lookup_first_confident",
}
"""The option of ``replay_log`` for each contender of ``latency_requests``."""
WITHIN = 0.05


def table(run: Path) -> pd.DataFrame:
    """One row per dataset, draft and draft length of a run at scale=calibration, or of a verdict whose requests were also served.

    Costs are probed on filler tokens (``traffic_cost``), acceptance is replayed on the held-out requests that were not served
    (``traffic_verdict``), and ``measured`` is the speed-up of those that were (``traffic_requests``).
    """
    costs, replayed, served = (read_table(run / f"traffic_{name}.csv") for name in ("cost", "verdict", "requests"))
    probes, searches = probed_while_serving(run), search_facts(run)
    replayed = replayed[(replayed["split"] == "eval") & (replayed["proposal"] == "greedy")]
    rows = []
    for (dataset, length), requests in served.groupby(["dataset", "draft_len"]):
        seconds = requests.pivot_table(index="request_id", columns="contender", values="seconds")
        plain = seconds[["none", "none_again"]].mean(axis=1)
        steps = (
            requests[requests["contender"].isin(["none", "none_again"])].groupby("first")[["seconds", "tokens"]].sum()
        )
        plain_ms = 1e3 * steps["seconds"] / steps["tokens"]
        others = replayed[(replayed["dataset"] == dataset) & (replayed["draft_len"] == length)]
        others = others[~others["request_id"].isin(seconds.index)]
        beside = probes[(probes["dataset"] == dataset) & (probes["draft_len"] == length)]
        for contender, option in OPTIONS.items():
            if contender not in seconds:
                continue
            setting = "suffix_confidence" if option.startswith("suffix") else "confidence"
            threshold = beside[setting].iloc[0] if option.endswith("_confident") else 0
            known = others[(others["option"] == option) & (others["threshold"] == threshold)]
            if len(known) < ENOUGH:
                raise UserError(f"{len(known)} requests of {dataset} were not served", remedy=f"hold out {ENOUGH} more")
            context = mean_context(known)
            before, during = (
                costs_of(option, from_probes(probed, context), searches[str(dataset)]) for probed in (costs, beside)
            )
            predicted = speedup(known, before, len(seconds))
            same_minutes = speedup(known, during, len(seconds)).estimate
            measured = float(plain.sum() / seconds[contender].sum())
            row = {
                "dataset": dataset,
                "option": option,
                "draft_len": length,
                "replayed": len(known),
                "served": len(seconds),
            }
            row |= {"measured": measured, "predicted": predicted.estimate, "low": predicted.low, "high": predicted.high}
            row |= {"error": predicted.estimate / measured - 1, "inside": predicted.low <= measured <= predicted.high}
            row |= {"beside": same_minutes, "error_beside": same_minutes / measured - 1}
            rows.append(row | {"plain_ms_from": plain_ms.min(), "plain_ms_to": plain_ms.max()})
    return pd.DataFrame(rows)


def probed_while_serving(run: Path) -> pd.DataFrame:
    """The costs that each cell of ``traffic_requests`` probed between its requests, and the thresholds below which its blocks ended.

    Every part of a dataset counts as another moment.
    """
    frames = []
    for file in sorted((run / "cells/traffic_requests").glob("*/run.json")):
        record = read_object(file)
        cell = record["runs"][0]
        if "probes" not in cell:
            raise UserError("no costs were probed between requests", file=file, remedy="set probe_every, and run again")
        place = {"dataset": cell["dataset"], "draft_len": cell["draft_len"], "moment": cell["first"]}
        thresholds = {name: record["settings"][name] for name in ("confidence", "suffix_confidence")}
        frames.append(pd.DataFrame(cell["probes"]).assign(**place, **thresholds))
    return pd.concat(frames, ignore_index=True)


def search_facts(run: Path) -> dict[str, dict[str, Any]]:
    """What the replay of each dataset says of its run, with the seconds of a search of suffix decoding."""
    records = [read_object(file)["runs"][0] for file in sorted((run / "cells/traffic_verdict").glob("*/run.json"))]
    return {record["dataset"]: record for record in records}


def sentence(frame: pd.DataFrame) -> str:
    """Summarise in one sentence how well predictions agree with measurements."""
    errors, beside = frame["error"], frame["error_beside"]
    near, close = ((values.abs() <= WITHIN).sum() for values in (errors, beside))
    return (
        f"{near} of {len(frame)} predictions are within {WITHIN:.0%} of the measured speed-up, and {frame['inside'].sum()} intervals contain it; the mean "
        f"error is {errors.mean():+.1%}, the median absolute error {errors.abs().median():.1%}. With costs that were probed between the served requests, "
        f"{close} are within {WITHIN:.0%}, the mean error is {beside.mean():+.1%} and the median absolute error {beside.abs().median():.1%}. A plain "
        f"step took {frame['plain_ms_from'].min():.1f} to {frame['plain_ms_to'].max():.1f} ms from one process to the next"
    )


def as_markdown(frame: pd.DataFrame) -> str:
    """Write the page that compares predictions with measurements."""
    head = [
        "dataset",
        "option",
        "draft length",
        "measured",
        "predicted",
        "95 % interval",
        "error (!: above 5%)",
        "inside",
    ]

    def error(value: float) -> str:
        return f"{value:+.1%}" + ("" if abs(value) <= WITHIN else " !")

    rows = []
    for row in frame.to_dict("records"):
        cells = [
            row["dataset"],
            NAMES[row["option"]],
            row["draft_len"],
            f"{row['measured']:.2f}",
            f"{row['predicted']:.2f}",
        ]
        cells += [f"{row['low']:.2f} to {row['high']:.2f}", error(row["error"]), "yes" if row["inside"] else "no"]
        rows.append([*cells, error(row["error_beside"])])
    table = benchmarks.markdown_table([*head, "error with costs of the same minutes"], rows)
    return f"# Verdicts compared with served requests\n\n{sentence(frame)}.\n\n{table}"


def main(*, run: Path, out: Path) -> None:
    """Compare the verdict's speed-ups with those of served requests; RUN: a run with traffic_cost, traffic_verdict and traffic_requests."""
    frame = table(run)
    benchmarks.write(frame, as_markdown(frame), out)
    print(sentence(frame))


if __name__ == "__main__":
    benchmarks.run(main)
