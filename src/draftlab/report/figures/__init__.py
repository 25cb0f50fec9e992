"""Draws tidy tables: by a module with the experiment's name, by the form that its YAML file asks for, or as an overview.

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
"""The experiments whose figure has its own module."""


def figure(experiment: str, table: pd.DataFrame, scale: str, published: Published, title: str = "") -> Figure:
    """Draw the experiment's figure, or an overview of its table if none is designed, with ``title`` above it."""
    plan = tidy.plan_of(experiment)
    if experiment in DESIGNED:
        drawn: Figure = importlib.import_module(f"draftlab.report.figures.{experiment}").draw(table, scale, published)
    elif plan is not None and plan.figure is not None:
        drawn = forms.draw(table, scale, published, plan.figure, plan.of_stage.measures)
    else:
        drawn = forms.overview(experiment, table, scale)
    finish(drawn, title)
    return drawn


def draw(experiment: str, table: pd.DataFrame, scale: str, published: Published, prefix: Path, title: str = "") -> None:
    """Write ``prefix.pdf`` and ``prefix.png``; the same table gives the same bytes."""
    save(figure(experiment, table, scale, published, title), prefix)
