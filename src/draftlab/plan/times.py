"""How long a run's jobs take: measured as they end, kept for the next run, and shown as the remaining time."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

FILE = "times.tsv"
TRUSTED = 20.0
"""Seconds of finished jobs after which their speed counts as much as the remembered one."""
EVERY = 5.0
"""Seconds between two lines."""


@dataclass(frozen=True)
class TimedJob:
    """A job of a run: the ``name`` of its log, its rule, and whether it needs the machine to itself."""

    name: str
    rule: str
    alone: bool = False


def read_times(files: Iterable[Path]) -> dict[str, float]:
    """Seconds of each job by its name; later files and lines replace earlier ones."""
    times: dict[str, float] = {}
    for file in filter(Path.is_file, files):
        text = file.read_text(encoding="utf-8", errors="replace").replace("\0", "")
        for line in text.splitlines():
            name, _, seconds = line.partition("\t")
            with contextlib.suppress(ValueError):  # a line that a power failure cut, or one without a time
                if math.isfinite(taken := float(seconds)):
                    times[name] = taken
    return times


def remembered(scale: str, name: str, logs: Path) -> dict[str, float]:
    """Seconds of each job as published for this scale, as published for a run of this name, and as in the ``logs``; later ones prevail."""
    published = [Path("paper_figures", folder, "data", FILE) for folder in (scale, name)]
    return read_times([*published, logs / FILE])


def expected(jobs: Mapping[int, TimedJob], known: Mapping[str, float]) -> dict[int, float]:
    """Seconds that each job should take: its known time, else the mean of its rule, else the mean of all jobs; 1 where nothing is known."""
    by_rule: dict[str, list[float]] = {}
    for job in jobs.values():
        if job.name in known:
            by_rule.setdefault(job.rule, []).append(known[job.name])
    mean = fmean([seconds for times in by_rule.values() for seconds in times] or [1.0])
    of_rule = {rule: fmean(times) for rule, times in by_rule.items()}
    return {number: known.get(job.name, of_rule.get(job.rule, mean)) for number, job in jobs.items()}


def seconds_left(
    jobs: Mapping[int, TimedJob],
    took: Mapping[int, float],
    since: Mapping[int, float],
    known: Mapping[str, float],
    cores: int,
) -> float:
    """Seconds that the unfinished jobs will take on ``cores``: jobs that need the whole machine one by one, the others side by side.

    ``took``: seconds of finished jobs; ``since``: seconds since running jobs began. Expected seconds are scaled by the ratio of measured to
    expected seconds of the finished jobs.
    """
    seconds = expected(jobs, known)
    prior = TRUSTED if known else 0.0
    scale = (sum(took.values()) + prior or 1.0) / (sum(seconds[number] for number in took) + prior or 1.0)
    rest = {n: max(scale * seconds[n] - since.get(n, 0.0), 0.0) for n in jobs if n not in took}
    alone = sum(left for number, left in rest.items() if jobs[number].alone)
    longest = max((left for number, left in rest.items() if not jobs[number].alone), default=0.0)
    return alone + max((sum(rest.values()) - alone) / cores, longest)


class TimeLeft(logging.Handler):
    """Listens to Snakemake: writes the seconds of each job into ``file``, and the remaining time with ``tell``."""

    def __init__(
        self,
        jobs: Mapping[int, TimedJob],
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
                about = "" if self.guesses else f", about {in_words(left)} left"
                self.tell(f"{record.done} of {record.total} jobs done{about}")

    @property
    def guesses(self) -> bool:
        """Whether nothing is known about the time of some job that is not done: neither a remembered time nor one of its rule."""
        timed = {self.jobs[number].rule for number in self.took}
        return not self.known and any(job.rule not in timed for n, job in self.jobs.items() if n not in self.took)


def in_words(seconds: float) -> str:
    """Whole minutes, or seconds below two."""
    return f"{seconds / 60:.0f} min" if seconds >= 119.5 else f"{seconds:.0f} s"
