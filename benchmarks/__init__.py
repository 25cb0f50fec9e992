"""Comparisons of speed with other software, and of predictions with measurements. No part of the package.

python -m benchmarks.decode --help        # run from the repository root; each file of this folder is a benchmark
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import tyro
from pydantic import Field

from draftlab.cli import exit_on_error
from draftlab.core.settings import Settings
from draftlab.files.atomic import write_text

T = TypeVar("T")


class Turns(Settings):
    """How often every contender runs, after a turn that warms up: an interval needs two or more."""

    repeats: int = Field(default=4, ge=2)


def take_turns(contenders: Mapping[str, Callable[[], T]], repeats: int) -> tuple[dict[str, list[float]], dict[str, T]]:
    """Run the contenders one after the other, again and again; returns the CPU seconds of each turn, and each contender's last result."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    results: dict[str, T] = {}
    for turn in range(repeats + 1):
        for name, contender in contenders.items():
            begun = time.process_time()
            results[name] = contender()
            if turn:  # the first turn warms up
                seconds[name].append(time.process_time() - begun)
    return seconds, results


def hub_network(folder: Path, dtype: str = "float32") -> Any:
    """A model in transformers without generation settings of its own, which may have a penalty for repetition."""
    import torch
    from transformers import GenerationConfig

    from draftlab.models import hf

    network = hf.load(folder, getattr(torch, dtype)).network
    network.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]
    return network


def run(main: Callable[..., None]) -> None:
    """Call ``main`` with the flags of the command line; an error is one line."""
    exit_on_error(lambda: tyro.cli(main))


def show(frame: pd.DataFrame, text: str, out: Path | None) -> None:
    """Print ``text``, and write ``frame`` to ``out`` as CSV."""
    print(text)
    if out is not None:
        write_text(out, frame.to_csv(index=False, lineterminator="\n"))


def write(frame: pd.DataFrame, page: str, out: Path) -> None:
    """Write ``page`` where OUT ends in .md, else ``frame`` as CSV."""
    write_text(out, page if out.suffix == ".md" else frame.to_csv(index=False, lineterminator="\n"))


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown."""
    first, *others = (f"| {' | '.join(map(str, cells))} |" for cells in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others]) + "\n"
