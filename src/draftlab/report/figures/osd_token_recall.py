"""OSD Fig. 7 and Table 6: precision and recall of the draft on the commonest tokens, before and after distillation."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from draftlab.plan.figure import Curves
from draftlab.report.figures.forms import curve_figure
from draftlab.report.figures.style import name
from draftlab.report.published import Published


def draw(table: pd.DataFrame, scale: str, published: Published) -> Figure:
    """A panel per dataset over the rank of the token, ten ranks to a point; the tokens that gain most stand below."""
    common = table[table["common"] & (table["statistic"] == "recall")].assign(
        tens=lambda rows: (rows["rank"] - 1) // 10 * 10 + 5
    )
    form = Curves(
        x="tens",
        xlabel="rank of the token",
        above="accepted",
        below="proposed",
        ylabel="precision",
        also=[("recall", "accepted", "generated")],
        series="method",
        panel="dataset",
    )
    facts = [f"{name(dataset)}, largest gains in recall: {tokens}" for dataset, tokens in gains(common).items()]
    return curve_figure(common, scale, published, form, facts=facts)


def gains(common: pd.DataFrame, count: int = 8) -> dict[str, str]:
    """Dataset -> its tokens with the largest gain in recall, the largest first (OSD, Table 6)."""
    sums = common.groupby(["dataset", "text", "method"])[["accepted", "generated"]].sum()
    recall = (sums["accepted"] / sums["generated"].where(sums["generated"] > 0)).unstack("method")
    gain = (recall["distilled"] - recall["original"].fillna(0)).dropna()
    return {
        str(dataset): ", ".join(repr(text) for _, text in own.nlargest(count).index)
        for dataset, own in gain.groupby(level="dataset", sort=False)
    }
