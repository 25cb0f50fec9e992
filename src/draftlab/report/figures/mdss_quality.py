"""MDSS v1 Tables 5 to 8: the quality of the text against the temperature of the drafts."""

from __future__ import annotations

import itertools

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.curves import curves
from draftlab.report.figures.printed import printed_points
from draftlab.report.figures.style import LOOKS, counted, footer, in_order, legend, level, panels, seeds
from draftlab.report.published import Published
from draftlab.report.tidy import ratio_table, records

METRICS = {"rouge_l": ("xsum", "ROUGE-L, XSum"), "bleu": ("wmt16", "BLEU, WMT16")}
PRINTED = {
    ("rouge_l", True): ("v1T5.rouge_l", "draft_temperature"),
    ("bleu", True): ("v1T6.bleu", "draft_temperature"),
    ("rouge_l", False): ("v1T7.rouge_l", "second_draft_temperature"),
    ("bleu", False): ("v1T8.bleu", "second_draft_temperature"),
}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot ROUGE-L and BLEU in rows, drafts of one temperature and of two in columns; hollow marks are the printed scores."""
    figure, axes = panels(2, 2, height=1.6, sharex="col", sharey="row")
    counts = []
    for (row, metric), (column, identical) in itertools.product(enumerate(METRICS), enumerate((True, False))):
        dataset, label = METRICS[metric]
        ax = axes[row, column]
        estimates = _estimates(table[(table["dataset"] == dataset) & (table["identical"] == identical)], metric)
        counts.append(estimates["n"])
        claim, x = PRINTED[metric, identical]
        rated = estimates[estimates["scheme"] != "plain"]
        curves(ax, rated, "draft_temperature", "scheme", in_order(rated["scheme"], LOOKS), apart=0.03)
        for plain in records(_estimates(table[(table["dataset"] == dataset) & (table["scheme"] == "plain")], metric)):
            level(ax, plain, LOOKS["plain"], alpha=0.12)
        printed = published.of(claim)
        has_x = [x in settings for settings in printed["settings"]]
        printed_points(ax, printed[has_x], x, "scheme")
        if row == 0:
            ax.set_title("drafts of one temperature" if identical else "drafts of two temperatures")
        else:
            ax.set_xlabel("draft temperature" if identical else "temperature of the second draft")
        if column == 0:
            ax.set_ylabel(label)
    legend(figure)
    facts = [] if scale == "paper" else ["our requests are templates, which are easier than the printed datasets"]
    footer(
        figure,
        scale,
        f"{counted(pd.concat(counts))} requests per point",
        "bars and band: 95 % bootstrap",
        seeds(table),
        "hollow: printed",
        *facts,
    )
    return figure


def _estimates(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The mean score of each scheme at each draft temperature."""
    return ratio_table(rows.dropna(subset=[metric]), metric, None, ["scheme", "draft_temperature"])
