"""Tidy table -> picture: the form that an experiment's file asks for, a module named as the experiment, or an overview.

A module's ``draw`` takes (table, scale, published) and returns a matplotlib ``Figure``; it reads nothing else.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report import tidy
from draftlab.report.figures import forms
from draftlab.report.figures.style import finish, save
from draftlab.report.published import Published

DESIGNED = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*_*.py"))
"""The experiments that have a module of their own."""


def figure(experiment: str, table: pd.DataFrame, scale: str, published: Published, title: str = "") -> Figure:
    """The experiment's own figure, or an overview of its table, under its takeaway."""
    said = tidy.plan_of(experiment)
    if experiment in DESIGNED:
        drawn: Figure = importlib.import_module(f"draftlab.report.figures.{experiment}").draw(table, scale, published)
    elif said is not None and said.figure is not None:
        drawn = forms.draw(table, scale, published, said.figure, said.of_stage.measures)
    else:
        drawn = forms.overview(experiment, table, scale)
    finish(drawn, title)
    return drawn


def draw(experiment: str, table: pd.DataFrame, scale: str, published: Published, prefix: Path, title: str = "") -> None:
    """Write ``prefix.pdf`` and ``prefix.png``; the same table gives the same bytes."""
    save(figure(experiment, table, scale, published, title), prefix)
