"""Copies of the checkout to run the workflow in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

COPIED = ("Snakefile", "workflow", "profiles", "envs", "src")


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run in a copy of the checkout, which uses the package of that copy."""
    return os.environ | {
        "PYTHONPATH": str(folder / "src"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def snakemake(folder: Path, *arguments: str, check: bool = True, cores: int = 2) -> str:
    """Run Snakemake in a copy of the checkout; return what it printed."""
    done = subprocess.run(
        ["snakemake", "--cores", str(cores), *arguments],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=1500,
    )
    output = done.stdout + done.stderr
    assert not check or done.returncode == 0, output[-6000:]
    return output


def jobs(output: str) -> dict[str, int]:
    """The number of jobs by rule, from a dry run's table."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE) if rule != "total"}


def copy_checkout(folder: Path, *more: str) -> Path:
    """Copy the checkout to run in it, without results, and without published results unless they are in ``more``."""
    folder.mkdir(parents=True)
    for name in (*COPIED, *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
    return folder
