"""OSD, ICLR thread, answer to W4: alpha after 0, 1 and 2 epochs of offline distillation, and inside them."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure, printed_level
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per dataset; diamonds: the printed values."""

    def printed(ax: Axes, dataset: str) -> None:
        printed_level(ax, published.of("R.alpha_by_epoch", dataset=dataset), "epoch")

    return curve_figure(
        table,
        scale,
        x="epoch",
        above="overlap",
        below="visited",
        panel="dataset",
        xlabel="epochs",
        ylabel="alpha",
        marks=printed,
    )
