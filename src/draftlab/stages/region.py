"""Acceptance over a toy simplex, exactly: no model, no data (MDSS, Fig. 2)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct
from draftlab.core.settings import Settings as Base
from draftlab.stages._stage import Bench, Facts, NoInputs, column, stage_of

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    num_drafts: Distinct[Count] = Field(min_length=1, description="numbers of drafted tokens")
    points: int = Field(gt=1, description="evenly spaced targets of each panel")


class Row:
    """A target of the simplex under a scheme."""

    q2: float = column("second probability of the target")
    acceptance: float = column("probability that the emitted token is among the drafts", "probability")
    distribution_error: float = column("largest difference between the target and the emitted distribution")
    panel: str = column("panel of the figure: left holds the target's first probability at 1/3, right at 1/6")
    num_drafts: int = column("drafted tokens")
    scheme: str = column("how drafts are verified")


class Derived:
    certain: float = column("1 where nothing is ever rejected, else 0")
    one: float = column("1: a target")


PANELS = {"left": 1 / 3, "right": 1 / 6}
SCHEMES = ("optimal", "importance", "k_seq", "specinfer", "single")

MEASURES = {
    "acceptance": Measure("acceptance", None, "acceptance", "probability"),
    "certain": Measure("certain", "one", "share of the targets that are never rejected"),
    "q2": Measure("q2", None, "second probability of the target"),
    "distribution_error": Measure(
        "distribution_error", None, "largest difference between the target and the emitted distribution"
    ),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Acceptance of each scheme for targets ``(q1, q2, 1 - q1 - q2)`` and a draft uniform on three tokens."""
    import pandas as pd
    import torch

    from draftlab.core.verify import token_verifier
    from draftlab.core.verify.acceptance import distribution_error

    frames = []
    for panel, first in PANELS.items():
        second = torch.linspace(0, 1 - first, settings.points, dtype=torch.float64)
        target = torch.stack([torch.full_like(second, first), second, (1 - first - second).clamp_min(0)], -1)
        for drafts, name in itertools.product(settings.num_drafts, SCHEMES):
            # One draft for "single": with more, its residual token might be one of the drafts that it never looked at.
            count = 1 if name == "single" else drafts
            verifier, draft = token_verifier(name), torch.full((settings.points, count, 3), 1 / 3, dtype=torch.float64)
            columns = {
                "q2": second,
                "acceptance": verifier.acceptance(target, draft).member,
                "distribution_error": distribution_error(verifier, target, draft),
            }
            frames.append(pd.DataFrame(columns).assign(panel=panel, num_drafts=drafts, scheme=name))
    return pd.concat(frames, ignore_index=True), {}


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Mark the targets at which nothing is ever rejected."""
    return rows.assign(certain=(rows["acceptance"] > 1 - 1e-9).astype(float), one=1.0)


STAGE = stage_of(__name__)
