"""OSD Table 4: heads on the target and a draft, each before and after online distillation."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report import tidy
from draftlab.report.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Look,
    counted,
    diamonds,
    footer,
    in_order,
    legend,
    marks,
    name,
    panels,
    seeds,
)
from draftlab.report.published import Published

CONTENDERS = {
    "draft": Look("draft", RED, "--", "s"),
    "draft_osd": Look("draft + OSD", BLUE, "-", "o"),
    "medusa": Look("Medusa", ORANGE, "-.", "^"),
    "medusa_osd": Look("Medusa + OSD", GREEN, "-", "D"),
}
PRINTED = {"medusa": "medusa-7b", "medusa_osd": "medusa-7b+osd", "draft_osd": "draft+osd"}
DATASETS = {"spider": "spider", "arena": "chatbot_arena"}
MEASURES = {
    ("emitted", "blocks"): "tokens per target call",
    ("plain_seconds", "seconds"): "speed-up over the target alone",
}


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """Plot one row per dataset and way to decode.

    Open marks are other ways to verify the tree at temperature 1, diamonds the printed speed-ups.
    """
    table = table.assign(dataset=table.get("dataset", "requests"))
    table = table[table["contender"] != "plain"]
    table = table.assign(
        way=table["contender"].where(table["temperature"] == 0, table["contender"] + ", " + table["verifier"])
    )
    keys = ["dataset", "contender", "way", "temperature"]
    ways = list(dict.fromkeys(table["way"]))
    datasets = in_order(table["dataset"], DATASETS)
    figure, axes = panels(1, 2, height=0.5 + 0.16 * len(ways) * len(datasets), sharey=True)
    for ax, ((above, below), label) in zip(axes[0], MEASURES.items(), strict=True):
        estimates = tidy.ratio_table(table, above, below, keys)
        for row in tidy.records(estimates):
            dataset, contender, way, temperature = (row[key] for key in keys)
            y = datasets.index(dataset) * (len(ways) + 1) + ways.index(way)
            style = CONTENDERS[contender]
            open_mark = {"mfc": "none", "label": None} if temperature else {}
            marks(ax, pd.DataFrame([row]), y, style, ms=4, **open_mark)
            variant = {"dataset": DATASETS.get(dataset, ""), "variant": PRINTED.get(contender, "")}
            printed = published.of("T4.medusa_speedup", **variant)
            if above == "plain_seconds" and not temperature and len(printed):
                diamonds(ax, printed["value"], [y], "printed (7B)")
        ax.axvline(1, color=GREY, linewidth=0.6)
        ax.set(xlabel=label)
    places = [place * (len(ways) + 1) + number for place in range(len(datasets)) for number in range(len(ways))]
    labels = [
        ("" if number else f"{name(dataset)}: ") + _describe(way)
        for dataset in datasets
        for number, way in enumerate(ways)
    ]
    axes[0, 0].set_yticks(places, labels)
    axes[0, 0].set_ylim(places[-1] + 0.7, -0.7)
    legend(figure)
    per_block = int(table["requests"].max())
    facts = f"{counted(estimates['n'])} blocks of {per_block} requests, open marks: temperature 1"
    footer(figure, scale, facts, seeds(table), "bars: 95 % bootstrap over blocks", "typical acceptance is not lossless")
    return figure


def _describe(way: str) -> str:
    contender, _, verifier = way.partition(", ")
    return CONTENDERS[contender].label + (f", {name(verifier)}" if verifier else "")
