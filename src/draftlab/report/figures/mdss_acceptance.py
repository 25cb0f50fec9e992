"""MDSS Table 2: acceptance of multi-draft schemes against the number of drafts, at several draft temperatures."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report import tidy
from draftlab.report.figures.style import counted, footer, in_order, legend, looks, name, panels, points, seeds
from draftlab.report.published import Published

SCHEMES = ("optimal", "importance_truncated", "k_seq", "specinfer", "rrs", "single")
PATHS = ("single_path", "block")  # accepted among visited tokens of a path: another quantity, in the table only
SYNTHETIC = "synthetic"


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot the shortfall from the optimum above and acceptance below; first ours by draft temperature, then the printed datasets."""
    table = table[(table["dataset"] != SYNTHETIC) & ~table["scheme"].isin(PATHS)]
    keys = ["draft_temperature", "num_drafts", "scheme"]
    short, accepted = (
        tidy.ratio_table(table, f"{sums}_sum", "positions", keys) for sums in ("shortfall", "acceptance")
    )
    temperatures = sorted(accepted["draft_temperature"].unique())
    printed = published.of("T2.acceptance")
    printed = pd.DataFrame(printed["settings"].tolist()).assign(
        estimate=printed["value"].to_numpy(), ci_low=float("nan"), ci_high=float("nan")
    )
    printed["num_drafts"] = printed["num_drafts"].astype(int)
    datasets = list(dict.fromkeys(printed["dataset"]))
    figure, axes = panels(2, len(temperatures) + len(datasets), height=1.5, sharex=True, sharey="row")
    for column, temperature in enumerate(temperatures):
        axes[0, column].set_title(f"ours, draft T = {temperature:g}", fontsize=7)
        for row, estimates in enumerate((short, accepted)):
            _draw_lines(axes[row, column], estimates[estimates["draft_temperature"] == temperature])
    for column, dataset in enumerate(datasets, start=len(temperatures)):
        axes[0, column].set_title(f"printed, {name(dataset)}", fontsize=7)
        rows = printed[printed["dataset"] == dataset]
        best = rows[rows["scheme"] == "optimal"].set_index("num_drafts")["estimate"]
        _draw_lines(axes[0, column], rows.assign(estimate=rows["num_drafts"].map(best) - rows["estimate"]))
        _draw_lines(axes[1, column], rows)
    for ax in axes[1]:
        ax.set(xlabel="drafts K", xscale="log")
        ax.set_xticks([2, 4, 8], ["2", "4", "8"], minor=False)
        ax.minorticks_off()
    axes[0, 0].set(ylabel="shortfall from the optimum")
    axes[0, 0].set_yscale("symlog", linthresh=1e-3)
    axes[0, 0].margins(y=0.08)
    axes[1, 0].set_ylabel("acceptance")
    legend(figure)
    footer(
        figure,
        scale,
        f"{counted(accepted['n'])} requests of {table['dataset'].nunique()} datasets per point",
        seeds(table),
        "bars: 95 % bootstrap over requests",
        "top-k 5",
        "upper axis linear below 0.001",
        "RRS draws distinct tokens, so it may beat the optimum of i.i.d. drafts",
    )
    return figure


def _draw_lines(ax: Axes, rows: pd.DataFrame) -> None:
    """Draw one line per scheme, slightly shifted so that intervals do not hide each other."""
    for place, (scheme, style) in enumerate(looks(in_order(rows["scheme"], SCHEMES)).items()):
        line = rows[rows["scheme"] == scheme].sort_values("num_drafts")
        points(ax, line["num_drafts"] * 1.04 ** (place - 2), line, style, markersize=3)
