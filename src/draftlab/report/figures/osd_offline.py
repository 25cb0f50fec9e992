"""OSD Table 1: alpha before and after offline distillation, by dataset, sample source and loss."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import (
    LOOKS,
    NAMES,
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
from draftlab.report.tidy import ratio_table

PRINTED = {  # sample source, loss -> the variant of the printed table
    ("none", "none"): "original",
    ("teacher", "hard_label"): "ft",
    ("teacher", "forward_kl"): "teacher_fwd",
    ("student", "forward_kl"): "student_fwd",
    ("mix_token", "forward_kl"): "mix_token_fwd",
}


def draw(
    table: pd.DataFrame,
    scale: str,
    published: Published,
    pair: str = "vicuna-7b/llama-160m",
    printed_name: str = "Vicuna-7B / LLaMA-160M",
) -> Figure:
    """Plot a panel per dataset and a row per variant: ours with its interval, and the printed value of ``pair`` as a diamond."""
    table = table.fillna({"sample_source": "none", "loss": "none"})
    alphas = ratio_table(table, "overlap", "visited", ["dataset", "sample_source", "loss"])
    datasets = in_order(alphas["dataset"], NAMES)
    variants = in_order(zip(alphas["sample_source"], alphas["loss"], strict=True), PRINTED)
    figure, axes = panels(1, len(datasets), height=0.5 + 0.2 * len(variants), sharey=True, sharex=True)
    for ax, dataset in zip(axes[0], datasets, strict=True):
        rows = alphas[alphas["dataset"] == dataset].set_index(["sample_source", "loss"])
        for place, variant in enumerate(variants):
            printed = published.of("T1.alpha_offline", pair=pair, dataset=dataset, variant=PRINTED.get(variant, ""))
            diamonds(ax, printed["value"], [place] * len(printed), f"printed, {printed_name}", mew=0.9, ms=5)
            if variant in rows.index:
                marks(ax, rows.loc[[variant]], place, LOOKS["ours"], ms=3, capsize=2, elinewidth=1)
        ax.set(title=name(dataset), xlabel="alpha", xlim=(-0.02, 1), ylim=(len(variants) - 0.5, -0.5))
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "", "0.5", "", "1"])
        ax.set_yticks(range(len(variants)), [_label(*variant) for variant in variants])
    legend(figure)
    footer(
        figure,
        scale,
        f"{counted(alphas['n'])} held-out requests per point",
        seeds(table),
        "bars: 95 % bootstrap over requests",
    )
    return figure


def _label(source: str, loss: str) -> str:
    return "undistilled" if source == "none" else f"{name(source)}, {name(loss)}"
