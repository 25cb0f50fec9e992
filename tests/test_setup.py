"""What `make` says where .venv cannot be made: one line with a remedy, and no half of a .venv that the next `make` would take for whole."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

TOOLS = ("sh", "dirname", "df", "awk", "grep", "cut", "cksum", "ls", "touch", "mkdir", "env", "cat", "getconf")


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with the script, and ``bin``: the only tools that it will find."""
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    (tools / "python3").symlink_to(sys.executable)
    stand_in(tmp_path, "c++", "exit 0")
    return tmp_path


def stand_in(checkout: Path, name: str, body: str) -> Path:
    """A tool of that name which does something else."""
    path = checkout / "bin" / name
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def failure(checkout: Path, **more: str) -> str:
    """The one line on stderr of a run that must fail."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    done = subprocess.run(
        ["envs/setup.sh"],
        cwd=checkout,
        env=plain | {"PATH": str(checkout / "bin"), "HOME": str(checkout)} | more,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert not (checkout / ".venv/ready").exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("draftlab: error: ")
    return line


def test_no_compiler(checkout):
    (checkout / "bin/c++").unlink()
    assert "no C++ compiler found" in failure(checkout)


def test_an_old_python_found_or_named(checkout):
    old = stand_in(checkout, "python3", "exit 1")
    assert "no Python 3.11 or newer found" in failure(checkout)
    assert f"{old} is not Python 3.11 or newer" in failure(checkout, PYTHON=str(old))


def test_a_python_without_venv(checkout):
    bare = stand_in(checkout, "bare", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    assert "apt install python3-venv" in failure(checkout, PYTHON=str(bare))


def test_a_full_disk(checkout):
    stand_in(checkout, "df", "echo header; echo disk 1 1 250 1% /")
    assert "only 250 MB free here" in failure(checkout)


def test_no_network(checkout):
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    assert "the package index cannot be reached" in failure(checkout, **nowhere)
