"""Acceptance over a toy simplex, exactly: no model, no data (MDSS, Fig. 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count
from draftlab.core.settings import Settings as Base
from draftlab.stages._stage import Bench, Facts, NoInputs, Stage, column

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """Acceptance over the toy simplex of MDSS Fig. 2, exactly."""

    num_drafts: list[Count] = Field(min_length=1)
    points: int = Field(gt=1)


class Row:
    """One row of the table."""

    q2: float = column("")
    acceptance: float = column("")
    distribution_error: float = column("")
    panel: str = column("")
    num_drafts: int = column("")
    scheme: str = column("")


MEASURES = {
    "acceptance": Measure("acceptance", None, "acceptance", "probability"),
    "certain": Measure("certain", "one", "share of the targets that are never rejected"),
    "q2": Measure("q2", None, "second probability of the target"),
    "distribution_error": Measure(
        "distribution_error", None, "largest difference between the target and the emitted distribution"
    ),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.multidraft.region import region

    return region(settings.num_drafts, settings.points), {}


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Whether nothing is ever rejected at a target."""
    return rows.assign(certain=(rows["acceptance"] > 1 - 1e-9).astype(float), one=1.0)


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    derive=derive,
)
