"""How long a run's jobs take: measured as they end, kept for the next run, and shown as the remaining time."""

from __future__ import annotations

import contextlib
import csv
import logging
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

FILE = "times.tsv"
TRUSTED = 20.0
"""Seconds of finished jobs after which their own speed counts as much as the remembered one."""
EVERY = 5.0
"""Seconds between two lines."""


@dataclass(frozen=True)
class Job:
    """A job of a run: its ``name``, that of its log; its rule; whether it needs the machine to itself."""

    name: str
    rule: str
    alone: bool = False


def read_times(files: Iterable[Path]) -> dict[str, float]:
    """Seconds of each job by its name; later files and lines replace earlier ones."""
    found: dict[str, float] = {}
    for file in files:
        if file.is_file():
            rows = csv.reader(file.read_text(encoding="utf-8").splitlines(), delimiter="\t")
            found |= {row[0]: float(row[1]) for row in rows if len(row) == 2}
    return found


def expected(jobs: Mapping[int, Job], known: Mapping[str, float]) -> dict[int, float]:
    """Seconds that each job should take: its own time, else the mean of its rule's, else the mean of all; 1 where nothing is known."""
    own = {number: known.get(job.name) for number, job in jobs.items()}
    by_rule: dict[str, list[float]] = {}
    for number, job in jobs.items():
        if (seconds := own[number]) is not None:
            by_rule.setdefault(job.rule, []).append(seconds)
    every = fmean([second for seconds in by_rule.values() for second in seconds] or [1.0])
    return {
        number: seconds if (seconds := own[number]) is not None else fmean(by_rule.get(job.rule, [every]))
        for number, job in jobs.items()
    }


def seconds_left(
    jobs: Mapping[int, Job],
    took: Mapping[int, float],
    since: Mapping[int, float],
    known: Mapping[str, float],
    cores: int,
) -> float:
    """What the unfinished jobs will take on ``cores``: those that need the machine one by one, the others side by side.

    ``took``: seconds of finished jobs; ``since``: how long running ones have run. Expected seconds are scaled by how long finished jobs
    took over how long they should have.
    """
    seconds = expected(jobs, known)
    prior = TRUSTED if known else 0.0
    scale = (sum(took.values()) + prior or 1.0) / (sum(seconds[number] for number in took) + prior or 1.0)
    rest = {n: max(scale * seconds[n] - since.get(n, 0.0), 0.0) for n in jobs if n not in took}
    alone = sum(left for number, left in rest.items() if jobs[number].alone)
    longest = max((left for number, left in rest.items() if not jobs[number].alone), default=0.0)
    return alone + max((sum(rest.values()) - alone) / cores, longest)


class TimeLeft(logging.Handler):
    """Listens to Snakemake: notes in ``file`` how long each job took, and says with ``tell`` how long the rest will."""

    def __init__(
        self,
        jobs: Mapping[int, Job],
        cores: int,
        file: Path,
        known: Mapping[str, float],
        tell: Callable[[str], None] = lambda line: print(line, file=sys.stderr),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.jobs, self.cores, self.file, self.known, self.tell, self.clock = jobs, cores, file, known, tell, clock
        self.began: dict[int, float] = {}
        self.took: dict[int, float] = {}
        self.shown = -EVERY

    def emit(self, record: Any) -> None:
        now = self.clock()
        match getattr(record, "event", None):
            case "job_started":
                self.began |= dict.fromkeys(record.jobs, now)
            case "job_finished" if record.job_id in self.began:
                seconds = now - self.began.pop(record.job_id)
                if (job := self.jobs.get(record.job_id)) is not None:
                    self.took[record.job_id] = seconds
                    with contextlib.suppress(OSError), self.file.open("a", encoding="utf-8") as file:
                        file.write(f"{job.name}\t{seconds:.2f}\n")
            case "progress" if now - self.shown >= EVERY and record.done < record.total:
                self.shown = now
                since = {number: now - began for number, began in self.began.items()}
                left = seconds_left(self.jobs, self.took, since, self.known, self.cores)
                self.tell(f"{record.done} of {record.total} jobs done, about {in_words(left)} left")


def in_words(seconds: float) -> str:
    """Whole minutes, or seconds below two."""
    return f"{seconds / 60:.0f} min" if seconds >= 119.5 else f"{seconds:.0f} s"
