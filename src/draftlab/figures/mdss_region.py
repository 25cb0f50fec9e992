"""MDSS Fig. 2: acceptance over a toy simplex, two drafts from a uniform draft model on three tokens."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.figures.style import footer, in_order, legend, look, panels
from draftlab.published import Published

TARGETS = {"left": "target (1/3, q2, 2/3 − q2)", "right": "target (1/6, q2, 5/6 − q2)"}
SCHEMES = ("optimal", "k_seq", "specinfer", "single")


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """One panel per family of targets; the full linear program coincides with the optimum, so it is left out."""
    table = table[table["num_drafts"] == table["num_drafts"].min()]
    figure, axes = panels(1, table["panel"].nunique(), height=2.0, sharey=True)
    for ax, panel in zip(axes[0], in_order(table["panel"].tolist(), TARGETS), strict=True):
        rows = table[table["panel"] == panel]
        for place, scheme in enumerate(in_order(rows["scheme"].tolist(), SCHEMES)):
            if scheme == "importance":
                continue
            line = rows[rows["scheme"] == scheme].sort_values("q2")
            ax.plot(line["q2"], line["acceptance"], **look(scheme, place).options(marker=""))
        ax.set(title=TARGETS.get(panel, panel), xlabel="q2")
    axes[0, 0].set_ylabel("acceptance")
    legend(figure, list(axes[0]))
    drafts = int(table["num_drafts"].iloc[0])
    footer(figure, scale, f"K = {drafts}, draft (1/3, 1/3, 1/3)", "exact: no sampling, so no n and no interval")
    return figure
