"""Entropic optimal transport instead of the linear program: acceptance and cost against iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, NotNegative, Whole
from draftlab.stages._inputs import OnPairs, RecordedPairs, locate_pairs, reads_pairs
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(OnPairs):
    """Entropic optimal transport instead of the linear program: acceptance and cost against iterations."""

    num_drafts: list[Count] = Field(min_length=1)
    draft_temperature: list[NotNegative] = Field(min_length=1)
    iterations: list[Whole] = Field(min_length=1)
    sharpness: list[NotNegative] = Field(min_length=1)
    rounds: int = Field(gt=0)


class Row:
    """One row of the table."""

    request: int = column("")
    acceptance_sum: float = column("")
    positions: int = column("")
    seconds: float = timing("")
    scheme: str = column("")
    iterations: int = column("")
    sharpness: float = column("")
    dataset: str = column("")
    draft_temperature: float = column("")
    num_drafts: int = column("")


MEASURES = {
    "acceptance": Measure("acceptance_sum", "positions", "acceptance", "probability"),
    "shortfall": Measure("shortfall_sum", "positions", "shortfall to the optimum", "probability"),
}


def run(settings: Settings, inputs: RecordedPairs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.multidraft.pairs import load_all
    from draftlab.multidraft.sinkhorn import sinkhorn

    return sinkhorn(load_all(inputs.pairs, settings), settings), {}


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """What each row lacks to the optimal scheme on the same request, temperature and number of drafts."""

    import pandas as pd

    keys = ["dataset", "request", "draft_temperature", "num_drafts"]
    best = rows[rows["scheme"] == "optimal"].set_index(keys)["acceptance_sum"]
    return rows.assign(
        shortfall_sum=best.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy() - rows["acceptance_sum"]
    )


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=RecordedPairs,
    locate=locate_pairs,
    reads=reads_pairs,
    derive=derive,
)
