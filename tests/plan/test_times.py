"""The time that is left: expected seconds, what finished jobs say of the machine, lines on the terminal; against simulated runs."""

from __future__ import annotations

import heapq
import logging
import random
from pathlib import Path

import pytest

from draftlab.plan.times import TimedJob, TimeLeft, expected, in_words, read_times, remembered, seconds_left


def test_the_last_word_on_a_job_counts(tmp_path: Path) -> None:
    (tmp_path / "published").write_text("a/x\t3.0\nb/y\t4.0\n")
    (tmp_path / "own").write_text("a/x\t5.0\na/x\t6.0\nc/z\t\nd/w\t\0\0\n\ncut sho")
    found = read_times([tmp_path / "published", tmp_path / "absent", tmp_path / "own"])
    assert found == {"a/x": 6.0, "b/y": 4.0}
    (tmp_path / "damaged").write_text("a/x\t3.0\n" + "x" * 200_000 + "\na/x\tnan\nb/y\tinf\n")
    assert read_times([tmp_path / "damaged"]) == {"a/x": 3.0}


def test_a_run_under_another_name_knows_the_times_of_its_scale(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, lines in (
        ("paper_figures/laptop/data", "a\t1\nb\t1\nc\t1\n"), ("paper_figures/mine/data", "b\t2\nc\t2\n"), ("logs", "c\t3\n")
    ):  # fmt: skip
        Path(folder).mkdir(parents=True)
        Path(folder, "times.tsv").write_text(lines)
    assert remembered("laptop", "mine", Path("logs")) == {"a": 1, "b": 2, "c": 3}
    assert remembered("laptop", "other", Path("none")) == {"a": 1, "b": 1, "c": 1}


def test_a_job_never_seen_takes_what_its_rule_takes_else_what_all_take() -> None:
    rules = {"a": "train", "b": "train", "c": "train", "d": "draw", "e": "join"}
    jobs = {number: TimedJob(*job) for number, job in enumerate(rules.items(), 1)}
    assert expected(jobs, {"a": 10.0, "b": 30.0, "d": 2.0}) == {1: 10.0, 2: 30.0, 3: 20.0, 4: 2.0, 5: 14.0}
    assert set(expected(jobs, {}).values()) == {1.0}


def test_measurements_are_added_and_the_others_shared_but_the_longest_is_not() -> None:
    jobs = {1: TimedJob("a", "r"), 2: TimedJob("b", "r"), 3: TimedJob("c", "m", alone=True)}
    assert seconds_left(jobs, {}, {}, {"a": 10.0, "b": 10.0, "c": 7.0}, 2) == pytest.approx(17)
    assert seconds_left(jobs, {}, {}, {"a": 1.0, "b": 1.0, "c": 7.0}, 2) == pytest.approx(8)
    assert seconds_left(jobs, {}, {}, {"a": 90.0, "b": 10.0, "c": 7.0}, 2) == pytest.approx(97)
    assert seconds_left(jobs, {}, {1: 85.0}, {"a": 90.0, "b": 10.0, "c": 7.0}, 2) == pytest.approx(17)


@pytest.mark.parametrize("slower", [0.5, 1.0, 2.5])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_right_within_a_third_on_another_machine(slower: float, seed: int, tmp_path: Path) -> None:
    """From the 90th second on, while more than a minute is left: 200 jobs on two cores, each up to a fifth off what it took before."""
    rng = random.Random(seed)
    known = {f"job{number}": rng.choice([1.0, 2.0, 5.0, 20.0, 60.0]) for number in range(200)}
    jobs = {number: TimedJob(name, "rule") for number, name in enumerate(known)}
    clock, said = [0.0], []
    listener = TimeLeft(jobs, 2, tmp_path / "times.tsv", known, said.append, lambda: clock[0])
    waiting, running, lines = list(jobs), [], []
    while waiting or running:
        while waiting and len(running) < 2:
            number = waiting.pop()
            took = slower * known[jobs[number].name] * rng.uniform(0.8, 1.2)
            heapq.heappush(running, (clock[0] + took, number))
            listener.emit(record(event="job_started", jobs=[number]))
        clock[0], number = heapq.heappop(running)
        listener.emit(record(event="job_finished", job_id=number))
        if clock[0] > 90:
            left = seconds_left(jobs, listener.took, {n: clock[0] - b for n, b in listener.began.items()}, known, 2)
            lines.append((clock[0], left))
        listener.emit(record(event="progress", done=len(listener.took), total=len(jobs)))
    for now, left in lines:
        if clock[0] - now > 60:
            assert left == pytest.approx(clock[0] - now, rel=1 / 3)
    assert len(said) > 20
    assert all(line.endswith(" left") for line in said)
    assert read_times([tmp_path / "times.tsv"]) == pytest.approx(
        {jobs[n].name: took for n, took in listener.took.items()}, abs=0.01
    )


def test_a_first_run_does_not_guess_the_time_of_jobs_like_none_before(tmp_path: Path) -> None:
    """Two short downloads say nothing about the training that follows, but another download would take as long."""
    jobs = {1: TimedJob("a", "fetch"), 2: TimedJob("b", "fetch"), 3: TimedJob("c", "train")}
    for known, later, says in (
        ({}, jobs, "1 of 3 jobs done"),
        ({"a": 4.0, "b": 4.0, "c": 300.0}, jobs, "1 of 3 jobs done, about 5 min left"),
        ({}, {1: jobs[1], 2: jobs[2]}, "1 of 2 jobs done, about 4 s left"),
    ):
        said: list[str] = []
        clock = [0.0]
        listener = TimeLeft(later, 1, tmp_path / "t", known, said.append, lambda: clock[0])  # noqa: B023
        listener.emit(record(event="job_started", jobs=[1]))
        clock[0] = 4.0
        listener.emit(record(event="job_finished", job_id=1))
        listener.emit(record(event="progress", done=1, total=len(later)))
        assert said == [says]


def test_lines_are_seconds_apart(tmp_path: Path) -> None:
    said: list[str] = []
    clock = [0.0]
    listener = TimeLeft(
        {1: TimedJob("a", "r"), 2: TimedJob("b", "r")}, 1, tmp_path / "t", {}, said.append, lambda: clock[0]
    )
    for clock[0] in (0.0, 1.0, 4.9, 5.0):
        listener.emit(record(event="progress", done=1, total=9))
    listener.emit(record(event="progress", done=9, total=9))
    assert said == ["1 of 9 jobs done"] * 2


def test_words() -> None:
    assert [in_words(seconds) for seconds in (0.2, 119.0, 120.0, 634.0)] == ["0 s", "119 s", "2 min", "11 min"]


def record(**fields: object) -> logging.LogRecord:
    return logging.makeLogRecord(fields)
