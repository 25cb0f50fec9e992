"""GPUs of one machine are shared out among jobs, shown with a stand-in for the driver's tool and for the jobs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import stand_in

JOB = "import os, sys; print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); sys.stdin.read()"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts a job on some GPUs of a machine that has GPU-a, GPU-b and GPU-c; it prints those it may use, and ends with its input."""
    stand_in(tmp_path / "nvidia-smi", "printf 'GPU-a\\nGPU-b\\nGPU-c\\n'")
    plain = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    env = plain | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    jobs = []

    def job(count: int, **more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "draftlab.files.gpus", str(count), sys.executable, "-c", JOB]
        pipe = subprocess.PIPE
        jobs.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env | more))
        return jobs[-1]

    yield job
    for running in jobs:
        running.kill()
        running.communicate()


def gpus(job: subprocess.Popen[str]) -> set[str]:
    assert job.stdout is not None
    return set(job.stdout.readline().strip().split(","))


def test_each_job_has_gpus_of_its_own_until_it_ends(start: Any) -> None:
    first, second = start(1), start(2)
    held = gpus(first)
    assert len(held) == 1
    assert gpus(second) == {"GPU-a", "GPU-b", "GPU-c"} - held
    third = start(1)
    with pytest.raises(subprocess.TimeoutExpired):
        third.wait(2)
    first.kill()  # as Snakemake or the system would
    assert gpus(third) == held


def test_a_job_that_needs_every_gpu_waits_for_the_others(start: Any) -> None:
    held = start(3)
    assert gpus(held) == {"GPU-a", "GPU-b", "GPU-c"}
    waiting = start(3)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(2)
    held.kill()
    assert gpus(waiting) == {"GPU-a", "GPU-b", "GPU-c"}


def test_the_choice_of_a_scheduler_is_left_as_it_is(start: Any) -> None:
    jobs = [start(1, CUDA_VISIBLE_DEVICES="0") for _ in range(2)]  # device 0 of each job is another one
    assert [gpus(job) for job in jobs] == [{"0"}, {"0"}]
    assert gpus(start(1, CUDA_VISIBLE_DEVICES="4,5")) <= {"4", "5"}
