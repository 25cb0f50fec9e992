"""Lines in a log say how far a long loop is; a terminal gets a bar."""

from __future__ import annotations

import sys

import pytest

from draftlab import progress as module
from draftlab.progress import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_every_ten_seconds_and_one_at_the_end(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []
    for item in progress("abcde", "letters"):
        seen.append(item)
        clock[0] += 6
    assert seen == list("abcde")
    lines = ["letters: 2 of 5, 12 s", "letters: 4 of 5, 24 s", "letters: 5 of 5, 30 s"]
    assert capsys.readouterr().err.splitlines() == lines


def test_a_resumed_loop_counts_what_was_done_before(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    list(progress(iter(range(7, 10)), "steps", total=10, initial=7))
    assert capsys.readouterr().err == "steps: 10 of 10, 0 s\n"


def test_a_loop_of_one_says_nothing_unless_it_is_long(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    list(progress([1], "probes"))
    assert not capsys.readouterr().err
    for _ in progress([1], "probes"):
        clock[0] += 11
    assert capsys.readouterr().err == "probes: 1 of 1, 11 s\n"


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert list(progress(range(3), "steps")) == [0, 1, 2]
    shown = capsys.readouterr().err
    assert "steps: 100%" in shown
    assert "3/3" in shown
    for _ in progress(range(2), "batches"):
        assert list(progress(range(5), "contenders")) == [0, 1, 2, 3, 4]
    shown = capsys.readouterr().err
    assert "contenders:" in shown
    assert "contenders: 100%" not in shown, "a bar below another one is wiped out at its end"
    assert "batches: 100%" in shown
