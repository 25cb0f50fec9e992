"""The same compute in a larger draft: alpha against the FLOPs of distillation, for drafts of several sizes (asked by reviewer fopk)."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.style import name
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per dataset, a line per size of the draft."""
    return curve_figure(
        table.assign(
            size=[
                f"{name(draft)}, {n / 1e6:.3g} M" for draft, n in zip(table["draft"], table["parameters"], strict=True)
            ]
        ),
        scale,
        x="training_flops",
        above="overlap",
        below="visited",
        series="size",
        panel="dataset",
        xlabel="FLOPs of distillation",
        ylabel="alpha",
        log_x=True,
        facts=["FLOPs: 6 x parameters x tokens read"],
    )
