"""A killed process leaves neither scratch folders nor children behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from draftlab.files.scratch import scratch

HOLD = (
    "from draftlab.files.scratch import end_in_order, scratch; import time; end_in_order()\n"
    "with scratch() as folder: (folder / 'large').write_text('x'); print(folder, flush=True); time.sleep(60)"
)


def started(code: str, folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(folder)}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout
    return process, process.stdout.readline().strip()


def test_a_time_limit_removes_scratch(tmp_path: Path) -> None:
    process, name = started(HOLD, tmp_path)
    assert (Path(name) / "large").exists()
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_what_a_kill_left_is_removed_by_the_next_and_only_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    living, mine = started(HOLD, tmp_path)
    killed, name = started(HOLD, tmp_path)
    killed.kill()
    killed.wait(30)
    assert (Path(name) / "large").exists()
    with scratch() as own:
        assert {path.name for path in tmp_path.iterdir()} == {Path(mine).name, own.name}
    living.kill()
    living.wait(30)


def test_two_jobs_may_clean_up_the_same_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old = tmp_path / f"draftlab-{socket.gethostname()}-99999999-x"
    old.mkdir()

    def removed_meanwhile(_: int) -> bool:
        old.rmdir()
        return False

    monkeypatch.setattr("draftlab.files.scratch._lives", removed_meanwhile)
    with scratch() as own:
        assert list(tmp_path.iterdir()) == [own]


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path, system: str) -> None:
    child = f"import sys; sys.platform = {system!r}; from draftlab.files.scratch import die_with_parent; import sys, time; die_with_parent(int(sys.argv[1])); print(1, flush=True); time.sleep(60)"
    parent = (
        f"import os, subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {child!r}, str(os.getpid())], "
        "stdout=subprocess.PIPE); child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)"
    )
    process, child_id = started(parent, tmp_path)
    process.kill()
    process.wait(30)
    until = time.monotonic() + 20
    while psutil.pid_exists(int(child_id)) and psutil.Process(int(child_id)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < until, "the child lives on"
        time.sleep(0.05)


ENDS = """
import atexit, sys
from draftlab.files.scratch import run_and_end
class Kept:
    def __del__(self):
        print("taken apart")
kept = Kept()
atexit.register(print, "registered")
def command():
    print("out")
    {end}
run_and_end(command)
"""


@pytest.mark.parametrize(
    ("end", "code", "err"),
    [("pass", 0, ""), ("sys.exit('wrong')", 1, "wrong\n"), ("sys.exit(7)", 7, ""), ("sys.exit()", 0, "")],
)
def test_a_command_ends_with_its_code_its_output_and_what_was_registered(end: str, code: int, err: str) -> None:
    done = subprocess.run([sys.executable, "-c", ENDS.format(end=end)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "out\nregistered\n", err)


def test_closed_streams_do_not_change_how_a_command_ends() -> None:
    done = subprocess.run(["sh", "-c", f'exec {sys.executable} -c "$0" >&- 2>&-', ENDS.format(end="sys.exit(7)")])
    assert done.returncode == 7
