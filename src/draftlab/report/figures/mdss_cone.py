"""MDSS App. D: the facets of the cone of feasible targets, against those that Theorem 2 names."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import COLUMN, GREY, SEQUENCE, footer, legend, panels
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Facets q(H) >= m found for each number of tokens, on the curve of all proper subsets; the footer counts any others."""
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
    counted = sorted(table["expected_subsets"].unique())
    ax.set_yticks(counted, [str(count) for count in counted])
    ax.minorticks_off()
    legend(figure, [ax])
    apart = f"formula and linear program differ by at most {table['largest_difference'].max():.1e}"
    footer(figure, scale, "exact: no interval", f"{int(table['other'].sum())} other facets", apart)
    return figure
