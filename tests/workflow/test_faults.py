"""What a user's machine does to a run: killed processes, two runs at once, clocks, files that vanish, disks that are full.

The kills take minutes: `make test-faults`. docs/robustness.md tells what was done and what happened.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from draftlab import plan
from draftlab.report import compare
from tests.checkout import copy_checkout, environment, snakemake

pytestmark = pytest.mark.workflow

KILLS = int(os.environ.get("DRAFTLAB_KILLS", "30"))
EXPERIMENTS = os.environ.get(
    "DRAFTLAB_EXPERIMENTS",
    "osd_offline,osd_online,osd_latency_alpha,mdss_acceptance,mdss_draft_temperature,mdss_region",
)
"""Every kind of rule; ``reproduction`` kills the whole DAG and takes longer."""
CONFIG = ("--config", "scale=smoke", f"experiments={EXPERIMENTS}")
PHASES = {
    "training": ("pretrain target", "pretrain draft", "offline", "online"),
    "recording": ("answer", "record-pairs", "live"),
    "exporting": ("latency_alpha", "latency_requests", "latency_length", "latency_update"),
    "figures": ("figure", "collect", "claims", "report"),
}


def differing_figures(one: Path, two: Path) -> list[str]:
    """Figures and formatted tables that are not the same bytes, those of measured times aside."""
    found = []
    for path in (one / "figures").iterdir():
        header = (one / f"{path.stem}.csv").read_text().partition("\n")[0].split(",")
        exact = not any(compare.is_measured(path.stem, column) for column in header)
        if exact and path.read_bytes() != (two / "figures" / path.name).read_bytes():
            found.append(path.name)
    return found


@dataclass
class Run:
    """Snakemake in a session of its own, and the one job that it is running."""

    folder: Path
    config: tuple[str, ...]
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        log = (self.folder / "killed.log").open("ab")
        self.process = subprocess.Popen(
            ["snakemake", "--cores", "1", *(self.config)],
            cwd=self.folder,
            env=environment(self.folder),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def job(self) -> tuple[psutil.Process, str] | None:
        """The running draftlab process and its verb; of a cell its stage."""
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                words = child.cmdline()
            except psutil.Error:
                continue
            if "draftlab.forks" in words:  # what it works on is found by the process that waits for it
                continue
            place = next((i for i, word in enumerate(words[:4]) if Path(word).name == "draftlab"), None)
            if place is not None:
                if words[1] == "-IS":  # it waits for a fork
                    if not (forked := self.forks()):
                        continue
                    child = forked[0]
                verb = [word for word in words[place + 1 : place + 3] if not word.startswith("-")]
                if verb[0] == "run":  # a cell: results/<run>/cells/<experiment>/<cell>/cell.json
                    experiment = Path(verb[1]).parts[-3]
                    return child, plan.load_experiment(plan.WORKFLOW / f"experiments/{experiment}.yaml").stage
                return child, " ".join(verb) if verb[0] in ("pretrain", "data") else verb[0]
        return None

    def forks(self) -> list[psutil.Process]:
        """What the process that forks works on."""
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.process.pid).children():
                if "draftlab.forks" in child.cmdline():
                    return child.children()
        return []

    def next_job(self, seen: set[int]) -> tuple[psutil.Process, str] | None:
        """Wait for a job that has not been seen; None when the run ends first."""
        while self.process.poll() is None:
            found = self.job()
            if found is not None and found[0].pid not in seen:
                seen.add(found[0].pid)
                return found
            time.sleep(0.02)
        return None


def is_writing(job: psutil.Process) -> bool:
    """Whether the job has a file open that is not renamed yet."""
    try:
        return any(Path(file.path).name.startswith(".") for file in job.open_files() if "/results/" in file.path)
    except psutil.Error:
        return False


def wait(job: psutil.Process, seconds: float, *, until_writing: bool) -> str:
    """Let a job run for a while, or until it writes; how it was met."""
    end = time.monotonic() + (20 if until_writing else seconds)
    while time.monotonic() < end and job.is_running():
        if until_writing and is_writing(job):
            return "writing"
        time.sleep(0.002 if until_writing else 0.01)
    return "running"


def kill(run: Run, job: psutil.Process, victim: str) -> None:
    """SIGKILL to the job, to Snakemake (the job lives on), or to all at once."""
    if victim == "job":
        with contextlib.suppress(psutil.NoSuchProcess):
            job.kill()
    elif victim == "snakemake":
        run.process.kill()
    else:
        os.killpg(run.process.pid, signal.SIGKILL)
    run.process.wait(timeout=300)


def spared(kills: list[tuple[str, str, str]]) -> set[str]:
    """The verbs of phases in which too few kills fell so far."""
    counts = Counter(verb for verb, _, _ in kills)
    few = [verbs for verbs in PHASES.values() if sum(counts[verb] for verb in verbs) < min(3, KILLS // 8)]
    return {verb for verbs in few for verb in verbs}


SMALL = ("--config", "scale=smoke", "experiments=mdss_region")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A finished run of one small experiment."""
    folder = copy_checkout(tmp_path_factory.mktemp("whole") / "checkout")
    snakemake(folder, *SMALL, cores=1)
    return folder


@pytest.fixture
def copy(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy", symlinks=True))


def tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "results/smoke").glob("*.csv")}


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    """Something mounted on a folder, where this user may mount."""
    done = subprocess.run(["mount", *options, str(folder)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(whole, copy):
    results = copy / "results"
    shutil.rmtree(results)
    results.mkdir()
    with mounted(results, "-t", "tmpfs", "-o", "size=256k", "tmpfs"):
        output = snakemake(copy, *SMALL, cores=1, check=False)
        assert re.search(r"draftlab: error: \S*results/smoke/\S+: No space left on device: .* \(free space", output), (
            output
        )
        assert "Traceback" not in output
        written = [
            path for path in results.rglob("*") if path.is_file() and path.suffix in (".csv", ".png", ".pdf", ".html")
        ]
        assert written
        for path in written:
            expected = whole / "results" / path.relative_to(results)
            assert path.stat().st_size == expected.stat().st_size, path
    snakemake(copy, *SMALL, cores=1)
    assert tables(copy) == tables(whole)


@pytest.mark.slow
def test_results_that_cannot_be_written_are_one_line(copy):
    results = copy / "results"
    (results / "smoke/report.html").unlink()
    with mounted(results, "--bind", "-o", "ro", str(results)):
        output = snakemake(copy, *SMALL, cores=1, check=False)
    assert re.search(r"Write-protected output files|Read-only file system", output), output
    assert "results/smoke/" in output
    assert "Traceback" not in output


@pytest.mark.slow
def test_a_second_run_in_the_same_folder_is_refused(copy):
    shutil.rmtree(copy / "results")
    first = Run(copy, SMALL)
    assert first.next_job(set()) is not None
    output = snakemake(copy, *SMALL, cores=1, check=False)
    assert output.count("Directory cannot be locked") == 1
    assert "Traceback" not in output
    first.process.terminate()
    first.process.wait(timeout=300)


def set_clock(folder: Path, days: float) -> None:
    """Date the cells' rows that many days from now, as if the clock had been stepped back or forth since."""
    then = time.time() + 86400 * days
    for path in (folder / "results").rglob("rows.csv"):
        os.utime(path, (then, then))
    (folder / "results/smoke/mdss_region.csv").unlink()


@pytest.mark.slow
def test_files_from_the_past_change_no_table(whole, copy):
    set_clock(copy, -400)
    snakemake(copy, *SMALL, "--forcerun", "collect", cores=1)
    assert tables(copy) == tables(whole)
    assert "Nothing to be done" in snakemake(copy, "-n", *SMALL, cores=1)


@pytest.mark.slow
def test_files_from_the_future_are_named_and_nothing_is_made_of_them(whole, copy):
    set_clock(copy, 1)
    output = snakemake(copy, *SMALL, "--forcerun", "collect", cores=1, check=False)
    assert re.search(r"mdss_region.csv has older modification time .* than input .*rows.csv.* clock skew", output), (
        output
    )
    assert not (copy / "results/smoke/mdss_region.csv").exists()
    for path in (copy / "results").rglob("rows.csv"):
        path.touch()
    snakemake(copy, *SMALL, "--forcerun", "collect", cores=1)
    assert tables(copy) == tables(whole)


@pytest.mark.slow
def test_a_vanished_intermediate_is_made_again_and_a_vanished_source_is_named(whole, copy):
    for path in (copy / "results").rglob("rows.csv"):
        path.unlink()
    (copy / "results/smoke/report.html").unlink()
    (copy / "results/smoke/mdss_region.csv").unlink()
    snakemake(copy, *SMALL, cores=1)
    assert tables(copy) == tables(whole)
    output = snakemake(
        copy, "--config", "scale=smoke", "raw=no/such/folder", "experiments=osd_offline", cores=1, check=False
    )
    assert "no/such/folder" in output
    assert "Traceback" not in output
    (copy / "empty").mkdir()
    output = snakemake(copy, "--config", "scale=smoke", "raw=empty", "experiments=osd_offline", cores=1, check=False)
    assert "no raw files of" in output
    assert "InputFunctionException" not in output


@pytest.mark.faults
def test_tables_are_those_of_an_undisturbed_run_after_kills_at_random_moments(tmp_path):
    undisturbed = copy_checkout(tmp_path / "undisturbed")
    snakemake(undisturbed, *CONFIG, cores=1)
    expected = undisturbed / "results/smoke"
    rng = np.random.default_rng(int(os.environ.get("DRAFTLAB_SEED", "0")))
    kills: list[tuple[str, str, str]] = []
    passes = 0
    while len(kills) < KILLS or spared(kills):
        folder = copy_checkout(tmp_path / f"killed{passes}")
        passes += 1
        finished = False
        while not finished:
            run, seen = Run(folder, CONFIG), set[int]()
            skipped = int(rng.integers(0, 4))  # jobs that may finish before one is killed
            until_writing, victim = bool(rng.random() < 0.4), str(rng.choice(["job", "snakemake", "all"]))
            met = None
            for _ in range(skipped + 1):
                met = run.next_job(seen)
            while met is not None and len(kills) >= KILLS and met[1] not in spared(kills):
                met = run.next_job(seen)
            if met is None:
                assert run.process.wait() == 0, (folder / "killed.log").read_text()[-4000:]
                finished = True
                continue
            job, verb = met
            how = wait(job, float(rng.uniform(0, 8)), until_writing=until_writing)
            if not job.is_running():  # between two jobs
                how, victim = "over", "all"
            kills.append((verb, how, victim))
            print(f"kill {len(kills)}: {victim} while {verb} was {how}", flush=True)
            kill(run, job, victim)
            if run.process.returncode < 0:
                snakemake(folder, "--unlock", *CONFIG, cores=1)
        found = folder / "results/smoke"
        assert compare.differences(expected, found) == []
        assert differing_figures(expected, found) == []
    counts = Counter(verb for verb, _, _ in kills)
    print(f"{len(kills)} kills in {passes} passes: {dict(counts)}")
    assert sum(how == "writing" for _, how, _ in kills) >= KILLS // 8
