"""MDSS App. D: the facets found of the cone of feasible targets, beside those of Theorem 2."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import COLUMN, GREY, SEQUENCE, footer, legend, panels
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot how many facets q(H) >= m were found for each number of tokens, and the number of all proper subsets H as a curve.

    The footer says how many other facets were found.
    """
    figure, axes = panels(1, 1, width=COLUMN + 0.2, height=1.9)
    ax = axes[0, 0]
    expected = table.drop_duplicates("num_tokens").sort_values("num_tokens")
    ax.plot(
        expected["num_tokens"], expected["expected_subsets"], color=GREY, linestyle="--", label="all proper subsets"
    )
    counts = sorted(table["num_drafts"].unique())
    for style, drafts in zip(SEQUENCE, counts, strict=False):
        rows = table[table["num_drafts"] == drafts]
        x = rows["num_tokens"] + 0.06 * (drafts - counts[len(counts) // 2])
        ax.plot(x, rows["subsets"], style.marker, color=style.colour, label=f"found, K = {drafts}")
    ax.set(xlabel="tokens n", ylabel="facets q(H) ≥ m", yscale="log", xticks=sorted(table["num_tokens"].unique()))
    expected_counts = sorted(table["expected_subsets"].unique())
    ax.set_yticks(expected_counts, list(map(str, expected_counts)))
    ax.minorticks_off()
    legend(figure)
    difference = f"formula and linear program differ by at most {table['largest_difference'].max():.1e}"
    footer(figure, scale, "exact: no interval", f"{int(table['other'].sum())} other facets", difference)
    return figure
