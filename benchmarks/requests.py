"""The memory that jobs of a finished run took, beside what they request: python -m benchmarks.requests --config scale=laptop

It reads ``logs/starts.tsv`` of the run's folder, in which a run on one machine notes the memory of every job. Run it in the folder of that run.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import benchmarks
from draftlab.errors import UserError
from draftlab.plan.needs import requested_mb
from draftlab.plan.run import Run, run_of

CELL = re.compile(r"run results/[^/]+/cells/(?P<experiment>[^/]+)/(?P<cell>[^/]+)/cell\.json$")
MADE = re.compile(r"(?P<verb>answer|record-pairs|pretrain target|pretrain draft) .*--out results/[^/]+/(?P<path>\S+)$")


def jobs(run: Run, log: Path) -> Iterator[tuple[str, str, float, int]]:
    """The rule and the name of each job that a plan knows, and the megabytes that it took at most and that it requests."""
    if not log.exists():
        raise UserError(
            f"no {log}", remedy="finish the run in this folder; only a run on a CPU notes what its jobs take"
        )
    with log.open(encoding="utf-8") as file:
        for _, _, taken, command in (row for row in csv.reader(file, delimiter="\t") if len(row) == 4):
            line = command.strip("'\"")
            if cell := CELL.match(line):
                name, wildcards = "/".join(cell.groups()), cell.groupdict()
                rule = run.at_scale[wildcards["experiment"]].stage
            elif made := MADE.match(line):
                name = made["path"]
                pair, kind, file_name = name.split("/")
                wildcards = {"pair": pair, kind: file_name, "draft": file_name}
                rule = made["verb"].removeprefix("pretrain ").replace("record-pairs", "pairs")
                dataset, _, split = file_name.removesuffix(".safetensors").partition(".")
                wildcards |= {"dataset": dataset, "split": split.split(".")[0], "temperature": ""}
            else:
                continue
            yield rule, name, float(taken), requested_mb(run, rule, wildcards)


def main(config: tuple[str, ...] = ()) -> None:
    """Print a row for each rule: its jobs, the most that one took, what that one requests, and how many took more than they request."""
    run = run_of(config)
    every = list(jobs(run, run.folder / "logs/starts.tsv"))
    rows = []
    for rule in dict.fromkeys(rule for rule, *_ in every):
        of_rule = [job for job in every if job[0] == rule]
        _, _, taken, requested = max(of_rule, key=lambda job: job[2])
        rows.append([rule, len(of_rule), f"{taken:,.0f}", f"{requested:,}", sum(job[2] > job[3] for job in of_rule)])
    head = ["rule", "jobs", "most taken, MB", "that job requests, MB", "jobs that took more than they request"]
    print(benchmarks.markdown_table(head, rows), end="")
    for rule, name, taken, requested in every:
        if taken > requested:
            print(f"{rule} {name}: took {taken:,.0f} MB, requests {requested:,} MB")


if __name__ == "__main__":
    benchmarks.run(main)
