"""Describes the machine and the packages that produced a number."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

from draftlab.files.checkout import ROOT

CPUINFO = Path("/proc/cpuinfo")
"""Where Linux describes the processors."""


def machine() -> dict[str, Any]:
    """Describe the processor, threads, system, package versions and git commit of this process."""
    packages = ("torch", "transformers", "llama-cpp-python", "numpy", "scipy", "snakemake")
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": _threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
        "commit": _commit(),
    }


def peak_mb() -> float:
    """The peak memory of this process, in MB."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(largest / (1024**2 if sys.platform == "darwin" else 1024), 1)  # macOS counts in bytes


def _threads() -> str | None:
    """The threads of torch's products, or what the environment says if torch is not loaded: torch may follow another variable."""
    torch = sys.modules.get("torch")
    return str(torch.get_num_threads()) if torch else os.environ.get("OMP_NUM_THREADS")


def _processor() -> str:
    """The name of the processor, with its family and model on x86: in a virtual machine, Zen 4 and Zen 5 may both be an "AMD EPYC"."""
    with contextlib.suppress(OSError):
        first = CPUINFO.read_text(encoding="utf-8").partition("\n\n")[0]
        lines = (line.partition(":") for line in first.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in lines}
        if "model name" in fields:
            is_x86 = {"cpu family", "model"} <= fields.keys()
            kind = f" (family {fields['cpu family']} model {fields['model']})" if is_x86 else ""
            return fields["model name"] + kind
    if sys.platform == "darwin":  # where platform.processor() is "arm" for each of them
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    """The git commit of the checkout, with ``-dirty`` if it was modified; None for an installed wheel, also below another repository."""
    if not (ROOT / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
