"""Distil a draft on the target's answers, then measure it on held-out requests (OSD, Table 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count
from draftlab.stages._inputs import Distillation, locate_distillation, reads_distillation
from draftlab.stages._stage import Bench, Facts, Stage, column
from draftlab.train.settings import SampleSource, Training

if TYPE_CHECKING:
    import pandas as pd


class Settings(Training):
    """Distil a draft on answers, then measure it on the held-out requests.

    ``requests`` (0: all) bounds what it learns from. ``sample_batch`` requests are answered at once when the draft takes part: the
    draft that answered is then up to ``sample_batch / batch`` updates old. ``probes`` measures inside each epoch; ``live`` decodes
    the held-out requests as well, target and draft together, and counts. ``save`` names the ``method`` whose draft is kept (none: the
    first one).
    """

    sample_source: SampleSource = "teacher"
    epochs: int = Field(ge=0)
    requests: int = Field(0, ge=0)
    sample_batch: int = Field(64, gt=0)
    probes: int = Field(0, ge=0, description="measurements per epoch while training")
    draft_lens: list[Count] = Field([], description="further draft lengths to measure")
    live: bool = False
    save: str = ""


class Row:
    """One row of the table."""

    request: int = column("")
    accepted: float = column("")
    visited: float = column("")
    overlap: float = column("")
    overlap_repo: float = column("")
    blocks: float = column("")
    emitted: int = column("")
    draft_len: int = column("")
    epoch: float = column("")
    sample_source: str = column("")
    loss: str = column("")
    seed: int = column("")
    parameters: int = column("")
    tokens: int = column("")
    measured: str = column("", optional=True)


MEASURES = {
    "alpha": Measure("overlap", "visited", "alpha"),
    "alpha_accepted": Measure("accepted", "visited", "accepted over visited tokens"),
    "alpha_repo": Measure("overlap_repo", "visited", "alpha by the estimator of OSD's repository"),
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
    "speedup_eq1": Measure(
        "emitted", "cost", "speed-up by Eq. 1, a draft step at a tenth of a target step", "times plain decoding"
    ),
    "estimate": Measure("counted", "visited", "estimate of alpha"),
    "accepted_of_emitted": Measure("accepted", "emitted", "accepted over emitted tokens"),
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.train.jobs import offline

    return offline(settings, inputs, bench)


def draft_length(rows: pd.DataFrame, cost_ratio: float = 0.1) -> pd.DataFrame:
    """Time of a request in target steps, with draft steps of ``cost_ratio`` (Eq. 1's denominator, OSD)."""
    return rows.assign(cost=rows["blocks"] * (rows["draft_len"] * cost_ratio + 1))


def compute(rows: pd.DataFrame) -> pd.DataFrame:
    """FLOPs of training: forward and backward take 6 per parameter and token."""
    flops = 6.0 * rows["parameters"] * rows["tokens"]
    return rows.assign(training_flops=flops, parameters_million=rows["parameters"] / 1e6)


ESTIMATORS = {
    "live": ("live", "accepted"),
    "accepted over visited": ("replay", "accepted"),
    "sum of minima": ("replay", "overlap"),
    "OSD's repository": ("replay", "overlap_repo"),
}
"""What is measured, and the column that is counted over the visited tokens; live decoding is the truth."""


def estimators(rows: pd.DataFrame) -> pd.DataFrame:
    """Each row once per ``estimator`` of alpha, whose numerator is ``counted``."""

    import pandas as pd

    parts = []
    for name, (measured, counted) in ESTIMATORS.items():
        own = rows[rows["measured"] == measured]
        parts.append(own.assign(estimator=name, counted=own[counted]))
    return pd.concat(parts, ignore_index=True)


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Distillation,
    locate=locate_distillation,
    reads=reads_distillation,
    views={"draft_length": draft_length, "compute": compute, "estimators": estimators},
    launch=True,
)
