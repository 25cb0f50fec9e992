"""OSD Table 8: the speed-up at a set acceptance against the length of the answer."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.style import SEQUENCE
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A line per alpha; hollow marks: the printed values (Vicuna-7B / LLaMA-160M)."""
    alphas = sorted(table["alpha"].unique())

    def printed(ax: Axes, _: object) -> None:
        for place, alpha in enumerate(alphas):
            rows = published.of("T8.speedup_by_genlen", alpha=alpha)
            style = SEQUENCE[place % len(SEQUENCE)]
            lengths = [float(settings["length"]) for settings in rows["settings"]]
            ax.plot(lengths, rows["value"], style.marker, mfc="none", mec=style.colour, ms=4)

    return curve_figure(
        table.assign(series=[f"alpha = {alpha:g}" for alpha in table["alpha"]]),
        scale,
        x="length",
        above="plain",
        below="speculative",
        series="series",
        order=[f"alpha = {alpha:g}" for alpha in alphas],
        xlabel="tokens of the answer",
        ylabel="speed-up over the target alone",
        log_x=True,
        level=1,
        marks=printed,
        facts=[f"k = {int(table['draft_len'].iloc[0])}", "hollow: printed"],
    )
