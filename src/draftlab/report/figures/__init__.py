"""Draws tidy tables: by a module with the experiment's name, by the form that its YAML file asks for, or as an overview.

A module's ``draw`` takes (table, scale, published, **options) and returns a matplotlib ``Figure``; it reads nothing else.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from draftlab import plan
from draftlab.report import tidy
from draftlab.report.figures import forms
from draftlab.report.figures.style import finish, save
from draftlab.report.published import Published


def figure(experiment: str, table: pd.DataFrame, scale: str, published: Published, title: str = "") -> Figure:
    """Draw the experiment's figure, or an overview of its table if none is designed, with ``title`` above it."""
    experiment_plan = tidy.plan_of(experiment)
    block = experiment_plan.figure if experiment_plan else None
    if (module := plan.module_of(experiment, block)) in plan.DESIGNED:
        options = block.like.options if block and block.like else {}
        draw_module = importlib.import_module(f"draftlab.report.figures.{module}").draw
        drawn: Figure = draw_module(table, scale, published, **options)
    elif experiment_plan is not None and block is not None:
        drawn = forms.draw(table, scale, published, block, experiment_plan.stage_kind.measures)
    else:
        drawn = forms.overview(experiment, table, scale)
    finish(drawn, title)
    return drawn


def draw(experiment: str, table: pd.DataFrame, scale: str, published: Published, prefix: Path, title: str = "") -> None:
    """Write ``prefix.pdf`` and ``prefix.png``; the same table gives the same bytes."""
    save(figure(experiment, table, scale, published, title), prefix)
