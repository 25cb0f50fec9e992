"""The project beside others and beside itself: speed with contenders in turns, predictions with what was measured. No part of the package.

python -m benchmarks.decode --help        # run from the repository root; each file of this folder is a benchmark
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


def write(frame: pd.DataFrame, as_markdown: Callable[[pd.DataFrame], str], out: Path) -> None:
    """Write a table as its page where OUT ends in .md, else as CSV."""
    write_text(out, as_markdown(frame) if out.suffix == ".md" else frame.to_csv(index=False, lineterminator="\n"))
