"""The clock that waits for a GPU; tests/gpu times one."""

from __future__ import annotations

import time

import pytest
import torch

from draftlab.models.clock import clock_of


def test_a_cpu_is_timed_by_the_clock_that_is_asked_for() -> None:
    assert clock_of("cpu") is time.process_time
    assert clock_of(torch.device("cpu"), time.thread_time) is time.thread_time


def test_a_gpu_has_finished_before_its_time_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: order.append(str(device)))
    monkeypatch.setattr(time, "perf_counter", lambda: order.append("read") or 1.0)
    assert clock_of("cuda:1")() == 1.0
    assert order == ["cuda:1", "read"]
