"""MDSS App. G: the cost of one decision with each scheme, by filter, vocabulary and number of drafts."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from draftlab.report.figures.style import SEQUENCE, footer, legend, name, panels
from draftlab.report.published import Published

SHORT_NAMES = {
    "importance_truncated s=5, first": "… without a full sort",
    "importance_truncated s=5, highs": "… its program by HiGHS",
}
PRINTED = "Global Resolution, printed"


def draw(table: pd.DataFrame, scale: str, published: Published, claim: str = "", solver: str = "") -> Figure:
    """Plot a panel per filter and a row per scheme; marks are median times of one thread or a GPU, bars end at the 90th percentile.

    Times that ``claim`` prints for ``solver`` after the same top-k and with as many drafts get a row of hollow marks.
    """
    table = table[table["batch"] == table["batch"].min()]
    filters, schemes = list(dict.fromkeys(table["filter"])), list(dict.fromkeys(table["scheme"]))
    names = [SHORT_NAMES.get(scheme, name(scheme)) for scheme in schemes] + [PRINTED] * bool(claim)
    figure, axes = panels(1, len(filters), height=0.5 + 0.2 * len(names), sharey=True, sharex=True)
    sizes = list(dict.fromkeys(table[["vocab", "num_drafts"]].itertuples(index=False, name=None)))
    for ax, kept in zip(axes[0], filters, strict=True):
        for number, (vocab, drafts) in enumerate(sizes):
            rows = table[(table["filter"] == kept) & (table["vocab"] == vocab) & (table["num_drafts"] == drafts)]
            y = np.array([schemes.index(scheme) for scheme in rows["scheme"]]) + 0.18 * (number - (len(sizes) - 1) / 2)
            error = np.stack([np.zeros(len(rows)), np.clip(rows["ms_p90"] - rows["ms"], 0, None)])
            style = SEQUENCE[number % len(SEQUENCE)]
            label = f"{vocab // 1000}k tokens, K = {drafts}"
            ax.errorbar(
                rows["ms"], y, xerr=error, fmt=style.marker, color=style.colour, ms=3, elinewidth=0.8, label=label
            )
            printed = published.of(claim, solver=solver, num_drafts=drafts, top_k=kept.removeprefix("top-k "))["value"]
            ax.plot(printed, [len(schemes)] * len(printed), style.marker, mfc="none", mec=style.colour, ms=4)
        ax.set(title=kept, xlabel="ms per decision", xscale="log", ylim=(len(names) - 0.5, -0.5))
        ax.set_yticks(range(len(names)), names)
    legend(figure)
    beside = "hollow: on another machine, to a tolerance of 0.001" if claim else ""
    where = "one thread" if scale in ("smoke", "laptop") else "a GPU"
    footer(
        figure,
        scale,
        f"{where}, batch of 1, contenders interleaved",
        "mark: median, bar: to the 90th percentile",
        beside,
    )
    return figure
