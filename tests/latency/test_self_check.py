"""An installed llama.cpp that crashes on a batch is refused, with the command that fixes it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from draftlab.errors import UserError
from draftlab.latency.self_check import self_check


def test_self_check_passes_here() -> None:
    self_check()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "dies .SIGSEGV.*GGML_NATIVE=OFF"),
        ("raise SystemExit('no libllama')", "fails its self-check: no libllama.*GGML_NATIVE=OFF"),
    ],
)
def test_a_build_that_crashes_is_refused_with_its_remedy(tmp_path: Path, script: str, message: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{script}\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match=message):
        self_check(str(python))
