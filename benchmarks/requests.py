"""What the jobs of a finished run took of the machine's memory, beside what they request: python -m benchmarks.requests --config scale=laptop

It reads ``logs/starts.tsv`` of the run's folder, in which a run on one machine notes the memory of every job. Run it in the folder of that run.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import tyro

from draftlab.plan.needs import requested_mb
from draftlab.plan.run import Run, run_of

CELL = re.compile(r"run results/[^/]+/cells/(?P<experiment>[^/]+)/(?P<cell>[^/]+)/cell\.json$")
MADE = re.compile(r"(?P<verb>answer|record-pairs|pretrain target|pretrain draft) .*--out results/[^/]+/(?P<path>\S+)$")


def jobs(run: Run, log: Path) -> Iterator[tuple[str, str, float, int]]:
    """The rule of each job that a plan knows, its name, and megabytes: what it took at most, and what it requests."""
    with log.open(encoding="utf-8") as file:
        for _, _, taken, words in (row for row in csv.reader(file, delimiter="\t") if len(row) == 4):
            line = words.strip("'\"")
            if cell := CELL.match(line):
                name, wildcards = "/".join(cell.groups()), cell.groupdict()
                rule = run.known[wildcards["experiment"]].stage
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
    found = list(jobs(run, run.folder / "logs/starts.tsv"))
    print(
        "| rule | jobs | most taken, MB | that job requests, MB | jobs that took more than they request |\n|---|---|---|---|---|"
    )
    for rule in dict.fromkeys(rule for rule, *_ in found):
        own = [job for job in found if job[0] == rule]
        _, _, taken, asked = max(own, key=lambda job: job[2])
        print(f"| {rule} | {len(own)} | {taken:,.0f} | {asked:,} | {sum(job[2] > job[3] for job in own)} |")
    for rule, name, taken, asked in found:
        if taken > asked:
            print(f"{rule} {name}: took {taken:,.0f} MB, requests {asked:,} MB")


if __name__ == "__main__":
    tyro.cli(main)
