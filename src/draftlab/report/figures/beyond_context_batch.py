"""Where Eq. 1 misleads: the cost of verifying several tokens at context lengths and batch sizes (asked by reviewer fopk)."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.style import GREY
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per batch size, a line per context: the time to verify n tokens over one plain step; Eq. 1 takes it for 1."""

    def eq1(ax: Axes, _: object) -> None:
        ax.axhline(1, color=GREY, linestyle="--", linewidth=1, label="Eq. 1")

    return curve_figure(
        table.assign(
            panel=[f"batch of {batch}" for batch in table["batch"]],
            series=[f"context of {context}" for context in table["context"]],
        ),
        scale,
        x="verified",
        above="verify_seconds",
        below="plain_seconds",
        series="series",
        panel="panel",
        xlabel="tokens verified in one call",
        ylabel="time over one plain step",
        marks=eq1,
    )
