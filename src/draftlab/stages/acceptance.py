"""Exact acceptance of multi-draft schemes at recorded positions: no model runs (MDSS, Table 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, NotNegative
from draftlab.stages._inputs import OnPairs, RecordedPairs, locate_pairs, reads_pairs
from draftlab.stages._schemes import Scheme
from draftlab.stages._stage import Bench, Facts, Stage, column

if TYPE_CHECKING:
    import pandas as pd


class Settings(OnPairs):
    """Exact acceptance of multi-draft schemes (MDSS Table 2)."""

    schemes: list[Scheme] = Field(min_length=1)
    num_drafts: list[Count] = Field(min_length=1)
    draft_temperature: list[NotNegative] = Field(min_length=1)
    target_temperature: float = Field(1.0, gt=0)
    path_len: int = Field(gt=0, default=4, description="tokens of a path, for schemes that verify one")


class Row:
    """One row of the table."""

    request: int = column("")
    acceptance_sum: float = column("")
    member_sum: float = column("")
    positions: float = column("")
    dataset: str = column("")
    draft_temperature: float = column("")
    num_drafts: int = column("")
    scheme: str = column("")


MEASURES = {
    "acceptance": Measure("acceptance_sum", "positions", "acceptance", "probability"),
    "shortfall": Measure("shortfall_sum", "positions", "shortfall to the optimum", "probability"),
    "acceptance_member": Measure(
        "member_sum", "positions", "acceptance with residual draws that hit a draft", "probability"
    ),
}


def run(settings: Settings, inputs: RecordedPairs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.multidraft.acceptance import acceptance
    from draftlab.multidraft.pairs import load_all

    return acceptance(load_all(inputs.pairs, settings), settings), {}


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
