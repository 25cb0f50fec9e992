"""The polyhedral check of the best acceptance, and the formula against a linear program (MDSS, App. D)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Whole
from draftlab.core.settings import Settings as Base
from draftlab.stages._stage import Bench, Facts, NoInputs, Stage, column

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """The polyhedral check of the best acceptance (MDSS App. D), and the linear program against the formula."""

    num_tokens: list[Count] = Field(min_length=1)
    num_drafts: list[Count] = Field(min_length=1)
    cases: int = Field(gt=0, description="random distributions per size, on which both are computed")
    seed: Whole = 0


class Row:
    """One row of the table."""

    num_tokens: int = column("")
    num_drafts: int = column("")
    dimension: int = column("")
    rays: int = column("")
    nonnegative: int = column("")
    subsets: int = column("")
    other: int = column("")
    expected_subsets: int = column("")
    cases: int = column("")
    largest_difference: float = column("")
    inequalities: str = column("")


MEASURES = {
    "found": Measure("subsets", "expected_subsets", "conditions found over those of Theorem 2"),
    "other": Measure("other", None, "further conditions"),
    "other_per_case": Measure("other", "cases", "further conditions per case"),
    "missing": Measure("missing_subsets", None, "conditions of Theorem 2 that were not found"),
    "largest_difference": Measure("largest_difference", None, "largest difference between formula and linear program"),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.multidraft.cone import cone

    return cone(settings), {}


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """How many of the facets that Theorem 2 names were not found."""
    return rows.assign(missing_subsets=rows["expected_subsets"] - rows["subsets"])


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    derive=derive,
)
