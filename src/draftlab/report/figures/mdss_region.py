"""MDSS Fig. 2: acceptance over a toy simplex, two drafts from a uniform draft model on three tokens."""

from __future__ import annotations

import itertools

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import footer, in_order, legend, look, panels, setting
from draftlab.report.published import Published

FAMILIES = ("left", "right")
SCHEMES = ("optimal", "k_seq", "specinfer", "single")


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot a column per family of targets and a row per K; the full linear program equals the optimum and is left out."""
    counts = sorted(table["num_drafts"].unique())
    families = in_order(table["panel"], FAMILIES)
    figure, axes = panels(len(counts), len(families), height=1.7, sharey=True, sharex="col")
    for (row, drafts), (column, panel) in itertools.product(enumerate(counts), enumerate(families)):
        ax = axes[row, column]
        rows = table[(table["panel"] == panel) & (table["num_drafts"] == drafts)]
        for place, scheme in enumerate(in_order(rows["scheme"], SCHEMES)):
            if scheme == "importance":
                continue
            line = rows[rows["scheme"] == scheme].sort_values("q2")
            ax.plot(line["q2"], line["acceptance"], **look(scheme, place).options(marker=""))
        if row == 0:
            ax.set_title(setting("panel", panel))
        if row == len(counts) - 1:
            ax.set_xlabel("q2")
        if column == 0:
            ax.set_ylabel(f"acceptance, K = {drafts}")
    legend(figure)
    footer(
        figure, scale, "draft (1/3, 1/3, 1/3)", "exact: no sampling, so no n and no interval", "the paper prints K = 2"
    )
    return figure
