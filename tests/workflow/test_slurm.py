"""A run through profiles/slurm on a Slurm of this machine's own: `make test-slurm`.

Needs Debian's slurmctld, slurmd, slurm-client and munge; SLURM_INSTALL=1 lets tests/slurm/up.sh install them (as root).
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from draftlab.report import compare
from tests.checkout import copy_checkout, environment, snakemake
from tests.conftest import ROOT
from tests.workflow.test_faults import differing_figures

pytestmark = [pytest.mark.slurm, pytest.mark.workflow]

EXPERIMENTS = "osd_offline,osd_latency_alpha,mdss_region"
"""Data, models, answers, training, latency, an exact table; the rest of the DAG is more of the same for a scheduler."""

CONFIG = ("--config", "scale=smoke", f"experiments={EXPERIMENTS}")
PATIENCE = (
    "--slurm-status-command=squeue",  # no accounting here
    "--slurm-init-seconds-before-status-checks=6",
    "--latency-wait=10",
    # A submission costs seconds, so that more than the profile groups is grouped.
    *("--groups", "clean=data", "answer=answers", "offline=drafts", "figure=figures"),
    *("--group-components", "data=8", "answers=8", "drafts=4", "figures=8"),
)

STAND_IN = """#!{python}
import os, pathlib, sys, time
marker = pathlib.Path({folder!r}, "failed-once")
if sys.argv[1:3] == ["pretrain", "draft"] and not marker.exists():
    marker.touch()
    sys.exit("no luck the first time")
if sys.argv[1:2] == ["run"] and "mdss_region" in sys.argv[2]:
    held = bytearray(2_500_000_000)  # more than the 2000 MB that its rule asks for, less than twice as much
    held[::4096] = b"x" * len(held[::4096])
    time.sleep(3)
os.execv({draftlab!r}, ["draftlab", *sys.argv[1:]])
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[dict[str, str]]:
    """The environment of a client of a running Slurm."""
    install = ["--install"] if os.environ.get("SLURM_INSTALL") else []
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "munged") if shutil.which(name) is None]
    if missing and not install:
        pytest.skip(
            f"{missing[0]} is not installed (apt install slurmctld slurmd slurm-client munge, or SLURM_INSTALL=1)"
        )
    folder = tmp_path_factory.mktemp("slurm")
    subprocess.run([ROOT / "tests/slurm/up.sh", *install, folder], check=True)
    yield {
        "SLURM_CONF": f"{folder}/slurm.conf",
        "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    subprocess.run([ROOT / "tests/slurm/down.sh", folder], check=True)


def unlucky(folder: Path) -> Path:
    """A ``draftlab`` that fails once and takes too much memory once."""
    stand_in = folder / "bin" / "draftlab"
    stand_in.parent.mkdir()
    draftlab = str(Path(sys.executable).parent / "draftlab")
    stand_in.write_text(STAND_IN.format(python=sys.executable, folder=str(folder), draftlab=draftlab))
    stand_in.chmod(0o755)
    return stand_in


def through(profile: str, folder: Path, cluster: dict[str, str], *words: str) -> str:
    """Run a copy of the checkout through a profile; what was printed."""
    words = ("--workflow-profile", f"profiles/{profile}", *words)
    return snakemake(folder, *words, cores=1, env=environment(folder) | cluster)


def restart_controller(cluster: dict[str, str], done: threading.Event, restarts: list[str]) -> None:
    """Stop slurmctld for five seconds once a job has run for some, and note which job that was."""
    folder, env = Path(cluster["SLURM_CONF"]).parent, os.environ | cluster
    while not done.wait(0.5):
        queue = subprocess.run(
            ["squeue", "-h", "-t", "R", "-o", "%i %M"], env=env, capture_output=True, text=True
        ).stdout
        running = [job for job, age in (line.split() for line in queue.splitlines()) if int(age.split(":")[-1]) >= 4]
        if running:
            os.kill(int((folder / "run/slurmctld.pid").read_text()), signal.SIGTERM)
            time.sleep(5)
            subprocess.run(["slurmctld"], env=env, check=True)
            restarts += running
            return


def test_tables_are_those_of_a_local_run_though_jobs_fail_and_the_controller_restarts(tmp_path, cluster):
    local, remote = (copy_checkout(tmp_path / name) for name in ("local", "remote"))
    snakemake(local, *CONFIG, cores=1)
    env = cluster | {"PATH": f"{unlucky(tmp_path).parent}:{cluster['PATH']}"}
    done, restarts = threading.Event(), list[str]()
    watcher = threading.Thread(target=restart_controller, args=(cluster, done, restarts))
    watcher.start()
    try:
        begun = time.monotonic()
        output = through("slurm", remote, env, *PATIENCE, *CONFIG)
        print(f"{time.monotonic() - begun:.0f} s through Slurm")
    finally:
        done.set()
        watcher.join()
    assert restarts
    assert (tmp_path / "failed-once").exists()
    again = re.findall(r"Trying to restart job \d+", output)
    assert len(again) == 2, output[-6000:]  # the unlucky one and the one killed for memory
    state = subprocess.run(
        ["squeue", "-h", "-t", "all", "-o", "%T"], env=os.environ | cluster, capture_output=True, text=True
    )
    ended = state.stdout.split()
    assert ended.count("COMPLETED") == len(ended) - 2 >= 10  # submissions, most of them groups of jobs
    one, two = (folder / "results/smoke" for folder in (local, remote))
    assert compare.differences(one, two) == []
    assert differing_figures(one, two) == []


def test_the_profile_for_other_schedulers_runs_with_its_commands_and_notices_a_kill(tmp_path, cluster):
    folder = copy_checkout(tmp_path / "generic")
    env = cluster | {"PATH": f"{unlucky(tmp_path).parent}:{cluster['PATH']}"}
    words = ("--seconds-between-status-checks=1", "--latency-wait=10")
    output = through("generic", folder, env, *words, "--config", "scale=smoke", "experiments=mdss_region")
    assert len(re.findall(r"Trying to restart job \d+", output)) == 1  # killed for memory
    assert (folder / "results/smoke/report.html").stat().st_size > 10_000
    assert list((folder / "logs/jobs").glob("*.out"))
