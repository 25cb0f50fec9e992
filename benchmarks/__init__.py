"""Speed beside other implementations: contenders take turns in one process, and their texts are compared. No part of the package.

python -m benchmarks.decode --help        # run from the repository root; also benchmarks.llama_cpp and benchmarks.online
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import tyro
from pydantic import Field

from draftlab.cli import exit_on_error
from draftlab.core.settings import Settings
from draftlab.files.atomic import write_text


class Turns(Settings):
    """How often every contender runs, after a turn that warms up: an interval needs two or more."""

    repeats: int = Field(default=4, ge=2)


def run(main: Callable[..., None]) -> None:
    """Call ``main`` with the flags of the command line; an error is one line."""
    exit_on_error(lambda: tyro.cli(main))


def show(frame: pd.DataFrame, text: str, out: Path | None) -> None:
    """Print ``text``, and write ``frame`` to ``out`` as CSV."""
    print(text)
    if out is not None:
        write_text(out, frame.to_csv(index=False, lineterminator="\n"))
