"""Copies of the checkout to run the workflow in."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.conftest import ROOT

COPIED = ("Snakefile", "workflow", "profiles", "envs", "src")


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run in a copy of the checkout, which uses the package of that copy."""
    return os.environ | {
        "PYTHONPATH": str(folder / "src"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def snakemake(
    folder: Path, *arguments: str, check: bool = True, cores: int = 2, env: dict[str, str] | None = None
) -> str:
    """Run Snakemake in a copy of the checkout, or in the environment of one; return what it printed."""
    command = ["snakemake", "--cores", str(cores), *arguments]
    done = subprocess.run(
        command, cwd=folder, env=env or environment(folder), capture_output=True, text=True, timeout=2400
    )
    output = done.stdout + done.stderr
    assert not check or done.returncode == 0, output[-6000:]
    return output


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
    """Copy the checkout to run in it, without results, and without published results unless they are in ``more``."""
    folder.mkdir(parents=True)
    for name in (*COPIED, *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
    return folder
