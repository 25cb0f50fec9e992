"""Which tokens a draft proposes, has accepted and lacks, before and after distillation (OSD, Fig. 7 and Table 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.stages._inputs import Distillation, locate_distillation, reads_distillation
from draftlab.stages._stage import Bench, Facts, Stage, column
from draftlab.train.settings import Training

if TYPE_CHECKING:
    import pandas as pd


class Settings(Training):
    """Which tokens a draft proposes, has accepted and lacks, before and after offline distillation (OSD, Fig. 7 and Table 6)."""

    epochs: int = Field(gt=0)
    temperature: float = Field(0.0, ge=0, le=0)


class Row:
    """One row of the table."""

    request: int = column("")
    token: int = column("")
    proposed: int = column("")
    accepted: int = column("")
    generated: int = column("")
    method: str = column("")
    seed: int = column("")
    dataset: str = column("")
    text: str = column("")


MEASURES = {
    "precision_or_recall": Measure("accepted", "over", "precision or recall"),
    "coverage": Measure("common_generated", "generated", "share of the tokens that are common"),
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.train.jobs import tokens

    return tokens(settings, inputs, bench)


def recall(rows: pd.DataFrame) -> pd.DataFrame:
    """The rank of each token by how often the target writes it, per dataset, from 1; and each row once per ``statistic``, whose
    denominator is ``over``: precision over what was proposed, recall over what was written."""

    import numpy as np
    import pandas as pd

    written = rows[rows["method"] == "original"].groupby(["dataset", "token"])["generated"].sum()
    rank = written.groupby(level="dataset").rank(method="first", ascending=False)
    found = rank.reindex(pd.MultiIndex.from_frame(rows[["dataset", "token"]])).fillna(np.inf).to_numpy()
    common = found <= 100
    rows = rows.assign(rank=found, common=common, common_generated=rows["generated"].where(common, 0))
    statistics = {"precision": "proposed", "recall": "generated"}
    return pd.concat(
        [rows.assign(statistic=name, over=rows[key]) for name, key in statistics.items()], ignore_index=True
    )


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Distillation,
    locate=locate_distillation,
    reads=reads_distillation,
    views={"recall": recall},
)
