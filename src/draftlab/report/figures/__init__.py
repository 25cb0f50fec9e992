"""Draws tidy tables: by a module with the experiment's name, by the form that its YAML file asks for, or as an overview.

A module's ``draw`` takes (table, scale, published, **options) and returns a matplotlib ``Figure``; it reads nothing else.
"""

from __future__ import annotations

import importlib

import pandas as pd
from matplotlib.figure import Figure

from draftlab import plan
from draftlab.report import tidy
from draftlab.report.figures import forms
from draftlab.report.figures.style import finish
from draftlab.report.published import Published


def figure(experiment: str, table: pd.DataFrame, scale: str, published: Published, title: str = "") -> Figure:
    """Draw the experiment's figure, or an overview of its table if none is designed, with ``title`` above it."""
    known = tidy.plan_of(experiment)
    block = known.figure
    if (module := plan.module_of(experiment, block)) in plan.DESIGNED:
        options = block.like.options if block and block.like else {}
        draw_module = importlib.import_module(f"draftlab.report.figures.{module}").draw
        drawn: Figure = draw_module(table, scale, published, **options)
    elif block is not None:
        drawn = forms.draw(table, scale, published, block, known.stage_kind.measures)
    else:
        drawn = forms.overview(experiment, table, scale)
    finish(drawn, title)
    return drawn
