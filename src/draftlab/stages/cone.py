"""The polyhedral check of the best acceptance, and the formula against a linear program (MDSS, App. D)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Distinct, Seed
from draftlab.core.settings import Settings as Base
from draftlab.stages._stage import Bench, Facts, NoInputs, column, stage_of

if TYPE_CHECKING:
    import pandas as pd


Several = Annotated[int, Field(ge=2)]
"""With one token or one draft there is nothing to choose: both distributions must be equal, and no inequality is left to find."""


class Settings(Base):
    num_tokens: Distinct[Several] = Field(min_length=1, description="numbers of tokens of the vocabulary")
    num_drafts: Distinct[Several] = Field(min_length=1, description="numbers of drafted tokens")
    cases: int = Field(
        gt=0, description="random distributions per size, on which formula and linear program are compared"
    )
    seed: Seed = Field(0, description="seed of these distributions")


class Row:
    """A number of tokens and of drafts."""

    num_tokens: int = column("tokens of the vocabulary")
    num_drafts: int = column("drafted tokens")
    dimension: int = column("dimension of the cone")
    rays: int = column("rays that span the cone")
    nonnegative: int = column("facets stating that a mass is not negative")
    subsets: int = column("facets of Theorem 2: a set of tokens has at least the mass of the drafts inside it")
    other: int = column("other facets")
    expected_subsets: int = column("facets that Theorem 2 names")
    cases: int = column("random distributions on which formula and linear program are compared")
    largest_difference: float = column("largest difference between formula and linear program")
    inequalities: str = column("the facets as inequalities, up to three tokens")


class Derived:
    missing_subsets: int = column("facets of Theorem 2 that were not found")


WRITTEN_OUT = 3
"""The largest vocabulary whose facets are also written as text."""

MEASURES = {
    "found": Measure("subsets", "expected_subsets", "conditions found over those of Theorem 2"),
    "other": Measure("other", None, "further conditions"),
    "other_per_case": Measure("other", "cases", "further conditions per case"),
    "missing": Measure("missing_subsets", None, "conditions of Theorem 2 that were not found"),
    "largest_difference": Measure("largest_difference", None, "largest difference between formula and linear program"),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Count the facets of each cone, and compare the formula with the linear program."""
    import pandas as pd

    from draftlab.core.verify.polyhedral import acceptance_cone

    rows = []
    for tokens, drafts in itertools.product(settings.num_tokens, settings.num_drafts):
        cone = acceptance_cone(tokens, drafts)
        counts = {key: getattr(cone, key) for key in ("dimension", "rays", "nonnegative", "subsets", "other")}
        row = {
            "num_tokens": tokens,
            "num_drafts": drafts,
            **counts,
            "expected_subsets": 2**tokens - 2,
            "cases": settings.cases,
            "largest_difference": largest_difference(tokens, drafts, settings.cases, settings.seed),
            "inequalities": "; ".join(cone.inequalities) if tokens <= WRITTEN_OUT else "",
        }
        rows.append(row)
    return pd.DataFrame(rows), {}


def largest_difference(num_tokens: int, num_drafts: int, cases: int, seed: int) -> float:
    """Largest difference between ``min_H 1 + q(H) - p(H)^K`` (Theorem 3) and the linear program over random distributions."""
    import torch

    from draftlab.core.verify.joint import joint_distribution
    from draftlab.core.verify.optimum import optimum_by_lp, optimum_iid

    generator = torch.Generator().manual_seed(seed)
    weights = torch.rand(cases, 2, num_tokens, dtype=torch.float64, generator=generator) ** 3
    distributions = weights / weights.sum(-1, keepdim=True)
    formula = optimum_iid(distributions[:, 0], distributions[:, 1], num_drafts).tolist()
    programs = (optimum_by_lp(q, joint_distribution(p.expand(num_drafts, -1), "iid")) for q, p in distributions)
    return float(max(abs(one - two) for one, two in zip(formula, programs, strict=True)))


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Count the facets of Theorem 2 that are missing."""
    return rows.assign(missing_subsets=rows["expected_subsets"] - rows["subsets"])


STAGE = stage_of(__name__)
