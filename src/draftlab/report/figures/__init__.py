"""Tidy table -> picture: one module per figure, named as its experiment.

A module's ``draw`` takes (table, scale, published) and returns a matplotlib ``Figure``; it reads nothing else.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import overview
from draftlab.report.figures.style import save
from draftlab.report.published import Published

DESIGNED = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*_*.py"))
"""The experiments that have a figure of their own."""


def figure(experiment: str, table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """The experiment's own figure, or an overview of its table."""
    if experiment not in DESIGNED:
        return overview(experiment, table, scale)
    drawn: Figure = importlib.import_module(f"draftlab.report.figures.{experiment}").draw(table, scale, published)
    return drawn


def draw(experiment: str, table: pd.DataFrame, scale: str, published: Published, prefix: Path) -> None:
    """Write ``prefix.pdf`` and ``prefix.png``; the same table gives the same bytes."""
    save(figure(experiment, table, scale, published), prefix)
