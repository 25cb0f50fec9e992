"""Where each scheme wins: acceptance over target and draft temperatures, by the target's entropy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import NotNegative
from draftlab.stages._inputs import OnPairs, RecordedPairs, locate_pairs, reads_pairs
from draftlab.stages._stage import Bench, Facts, Stage, column

if TYPE_CHECKING:
    import pandas as pd


class Settings(OnPairs):
    """Acceptance over a grid of target and draft temperatures, by the target's entropy."""

    num_drafts: int = Field(gt=1)
    target_temperature: list[NotNegative] = Field(min_length=1)
    draft_temperature: list[NotNegative] = Field(min_length=1)


class Row:
    """One row of the table."""

    request: int = column("")
    entropy_class: int = column("")
    positions: int = column("")
    optimal: float = column("")
    hybrid: float = column("")
    importance_truncated: float = column("")
    k_seq: float = column("")
    specinfer: float = column("")
    single: float = column("")
    dataset: str = column("")
    target_temperature: float = column("")
    draft_temperature: float = column("")
    num_drafts: int = column("")


MEASURES = {
    "over_k_seq": Measure(
        "over_k_seq", "positions", "acceptance of importance sampling less that of K-SEQ", "probability"
    ),
}


def run(settings: Settings, inputs: RecordedPairs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.multidraft.pairs import load_all
    from draftlab.multidraft.regime import regime

    return regime(load_all(inputs.pairs, settings), settings), {}


ENTROPIES = ("under 0.1 nats", "0.1 to 0.5", "0.5 to 1", "1 to 2", "over 2 nats")
"""The classes of target entropy, in words."""


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """What importance sampling accepts more than K-SEQ, and the target's entropy in words."""
    words = rows["entropy_class"].map(dict(enumerate(ENTROPIES)))
    rows = rows.sort_values("entropy_class", kind="stable")
    return rows.assign(over_k_seq=rows["importance_truncated"] - rows["k_seq"], entropy=words)


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
