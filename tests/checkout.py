"""Copies of the checkout to run the workflow in."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

COPIED = ("Snakefile", "workflow", "profiles", "envs", "src")
LEFT_OUT = ("*.egg-info", "*.pyc.*", "*.json.*")
"""Besides what is no part of it, the names under which other processes write compiled files at this moment."""
TIMEOUT = 2400
"""Seconds that a call of Snakemake may take."""


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run in a copy of the checkout, which uses the package of that copy."""
    return os.environ | {
        "PYTHONPATH": str(folder / "src"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def snakemake(
    folder: Path, *arguments: str, check: bool = True, cores: int | None = 2, env: dict[str, str] | None = None
) -> str:
    """Run Snakemake in a copy of the checkout, or in the environment of one; return what it printed. ``cores`` None: as the arguments say.

    It is a fork of a process that has imported Snakemake, which takes longer than most dry runs.
    """
    forks = _forks()
    assert forks.stdin
    assert forks.stdout
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "output")
        call = {
            "folder": str(folder),
            "environment": env or environment(folder),
            "arguments": [*([] if cores is None else ["--cores", str(cores)]), *arguments],
            "output": str(output),
        }
        forks.stdin.write(json.dumps(call) + "\n")
        forks.stdin.flush()
        is_done, _, _ = select.select([forks.stdout], [], [], TIMEOUT)
        if not is_done:  # another process takes the next call, which must not read this one's answer
            forks.kill()
            _forks.cache_clear()
            raise AssertionError(f"snakemake {arguments} still runs after {TIMEOUT} s")
        code, said = int(forks.stdout.readline()), output.read_text(encoding="utf-8")
    assert not check or code == 0, said[-6000:]
    return said


@functools.cache
def _forks() -> subprocess.Popen[str]:
    """The process that forks for each call of Snakemake; it ends with the tests."""
    program = Path(__file__).with_name("snakemake_forks.py")
    forks = subprocess.Popen([sys.executable, "-I", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert forks.stdin
    atexit.register(forks.wait)
    atexit.register(forks.stdin.close)
    return forks


def stand_in(program: Path, body: str) -> Path:
    """A shell script in the place of a program."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.unlink(missing_ok=True)
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    return program


def jobs(output: str) -> dict[str, int]:
    """The number of jobs by rule, from a dry run's table."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE) if rule != "total"}


@contextlib.contextmanager
def edited(file: Path, old: str, new: str) -> Iterator[None]:
    """A file in which ``new`` stands for ``old`` until the block ends; for an ``old`` of "", the file with ``new`` at its end."""
    text = file.read_text()
    assert old in text
    try:
        file.write_text(text.replace(old, new) if old else text + new)
        yield
    finally:
        file.write_text(text)


def copy_checkout(folder: Path, *more: str) -> Path:
    """Copy the checkout to run in it, without results, and without published results unless they are in ``more``.

    Compiled files come along, so that no copy is compiled again.
    """
    folder.mkdir(parents=True)
    for name in (*COPIED, *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*LEFT_OUT))
        elif (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
    return folder
