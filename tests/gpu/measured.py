"""One measurement on a GPU, by its verb, on architectures an eighth as wide and deep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT


def measured(verb: str, words: str, out: Path) -> str:
    """The record beside the table: it names the device, and the clock is one that waits for it."""
    models = ["--target", "vicuna-7b/8", "--draft", "llama-160m/8", "--out", str(out)]
    command = [sys.executable, "-m", "draftlab", verb, *words.split(), *models]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    record = (out / "run.json").read_text(encoding="utf-8")
    assert '"clock": "perf_counter"' in record
    return record
