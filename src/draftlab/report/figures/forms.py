"""The forms of figure that experiments share; an experiment chooses one in the ``figure:`` block of its file (``draftlab.plan.figure``)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from draftlab import plan
from draftlab.core.measure import Measure
from draftlab.errors import UserError
from draftlab.report import tables, tidy
from draftlab.report.figures.curves import curve_figure, live_figure
from draftlab.report.figures.gaps import gap_figure
from draftlab.report.figures.stream import stream_figure
from draftlab.report.figures.style import (
    EXACT,
    counted,
    footer,
    key_name,
    legend,
    looks,
    marks,
    panels,
    seeds,
    setting,
    wrap,
)
from draftlab.report.published import Published


def draw(
    table: pd.DataFrame, scale: str, published: Published, block: plan.Figure, measures: Mapping[str, Measure]
) -> Figure:
    """Draw the form that an experiment's ``figure:`` block chooses; ``measures`` are those of its stage."""
    if block.live:
        return live_figure(table, scale, published, block.live)
    if block.stream:
        return stream_figure(table, scale, published, block.stream)
    if block.gaps:
        return gap_figure(table, scale, published, block.gaps)
    assert block.curves
    return curve_figure(table, scale, published, block.curves, measures)


def overview(experiment: str, table: pd.DataFrame, scale: str) -> Figure:
    """Plot the cells of an experiment's printed table as marks with intervals, for experiments without a designed figure."""
    layout = tables.layout_of(experiment, table)
    measure = tidy.plan_of(experiment).measure()
    cells = tables.summary(table, layout, measure)
    if cells.empty:
        remedy = "change `where` or `window` of the `layout`"
        raise UserError("no row of the table is selected", file=tidy.file_of(experiment), remedy=remedy)
    rows = list(dict.fromkeys(cells[list(layout.rows)].itertuples(index=False, name=None)))
    series = list(dict.fromkeys(cells[list(layout.columns)].itertuples(index=False, name=None))) or [()]
    series_height = 0.06  # inches, so that the marks of two series do not hide each other
    row_height = max(0.25, series_height * (len(series) + 2))
    figure, axes = panels(1, 1, width=5.0, height=0.5 + row_height * len(rows))
    ax = axes[0, 0]
    styles = list(looks(values[0] if len(values) == 1 else values for values in series).values())
    for number, values in enumerate(series):
        settings = dict(zip(layout.columns, values, strict=True))
        label = ", ".join(dict.fromkeys(itertools.starmap(setting, settings.items())))
        line = cells
        for key, value in settings.items():
            line = line[line[key] == value]
        places = [rows.index(tuple(cell)) for cell in line[list(layout.rows)].itertuples(index=False, name=None)]
        y = np.asarray(places) + (number - (len(series) - 1) / 2) * series_height / row_height
        marks(ax, line, y, styles[number], label=label)
    ax.set(xlabel=wrap(str(measure), 50), ylim=(len(rows) - 0.5, -0.5))
    names = [", ".join(map(setting, layout.rows, row)) for row in rows]
    ax.set_yticks(range(len(rows)), names)
    are_words = all(isinstance(value, str) for row in rows for value in row)
    if len(layout.rows) == 1 and are_words:  # a number comes with the name of its setting
        ax.set_ylabel(key_name(layout.rows[0]))
    if len(series) > 1:
        legend(figure)
    units = tidy.resampled_name(table)
    interval = f"{counted(cells['n'])} {units} per mark, bars: 95 % bootstrap" if units else EXACT
    footer(figure, scale, interval, seeds(table), label if len(series) == 1 else "")
    return figure
