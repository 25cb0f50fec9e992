"""Maps of differences: how much more one method accepts than another, by group and setting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.core.measure import Measure
from draftlab.core.stats import Interval
from draftlab.errors import UserError
from draftlab.plan.figure import Gaps
from draftlab.report import tidy
from draftlab.report.contrast import Contrast, Selection, Tables, compute_each
from draftlab.report.figures.style import INK, NAMES, counted, footer, in_order, in_points, name, panels, seeds
from draftlab.report.intervals import decide
from draftlab.report.published import Published


def gap_figure(table: pd.DataFrame, scale: str, published: Published, form: Gaps) -> Figure:
    """Draw a map per value of ``panel``: how much more one method accepts than another (``pairs``), by value of ``x``."""
    alpha, tables = Measure("overlap", "visited"), Tables({"": table})
    gaps: dict[tuple[str, str, str], Interval] = {}
    for pair, methods in form.pairs.items():
        left, right = (Selection("", alpha, {"method": method}) for method in methods)
        for result in compute_each(Contrast(left, right, each=[form.panel, form.x]), tables):
            if math.isfinite(result.value.estimate):  # else nothing was counted there
                gaps[result.group[form.panel], result.group[form.x], pair] = result.value
    if not gaps:
        remedy = "change `pairs` in its YAML file, or leave `figure` out"
        raise UserError("figure: no group has values of both methods of a pair", remedy=remedy)
    shown = in_order((panel for panel, _, _ in gaps), NAMES)
    figure, axes = panels(1, len(shown), height=0.6 + 0.25 * len(form.pairs), sharey=True)
    for ax, value in zip(axes[0], shown, strict=True):
        _draw_map(ax, {(x, pair): gap for (panel, x, pair), gap in gaps.items() if panel == value}, form)
        ax.set(title=name(value), xlabel=form.xlabel)
    facts = []
    if printed := form.printed:
        ours, other = (
            published.of(printed.claim, **side)["value"].to_numpy() for side in (printed.left, printed.right)
        )
        points = 100 * (ours - other)
        facts.append(printed.text.format(low=points.min(), high=points.max()))
    footer(
        figure,
        scale,
        "differences of alpha in points; (in brackets): the 95 % interval includes 0",
        *form.facts,
        f"{counted(pd.Series([gap.n for gap in gaps.values()]))} {tidy.resampled_name(table)} per cell",
        seeds(table),
        *facts,
    )
    return figure


def _draw_map(ax: Axes, gaps: Mapping[tuple[str, str], Interval], form: Gaps) -> None:
    """Draw differences by value of ``x`` and pair; those whose interval includes 0 are in brackets."""
    across, down = in_order((x for x, _ in gaps), NAMES), in_order((pair for _, pair in gaps), form.pairs)
    shown = np.full((len(down), len(across)), np.nan)
    for x, pair in itertools.product(dict.fromkeys(x for x, _ in gaps), down):
        if gap := gaps.get((x, pair)):
            row, column = down.index(pair), across.index(x)
            shown[row, column] = gap.estimate
            text = in_points(gap.estimate)
            text = f"({text})" if decide(gap) == "level" else text
            colour = "white" if abs(gap.estimate) > 0.7 * form.span else INK
            ax.text(column, row, text, ha="center", va="center", fontsize=6, color=colour)
    ax.imshow(shown, cmap="PuOr", vmin=-form.span, vmax=form.span, aspect="auto", alpha=0.7)
    ax.set_xticks(range(len(across)), list(map(name, across)), fontsize=5.5)  # wider names would touch
    ax.set_yticks(range(len(down)), [name(value) for value in down])
    ax.grid(False)
