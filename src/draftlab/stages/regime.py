"""Where each scheme wins: acceptance over target and draft temperatures, by the target's entropy."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Distinct, NotNegative
from draftlab.stages._pairs import OnPairs, PairsRow, RecordedPairs
from draftlab.stages._stage import Bench, Facts, column, stage_of

if TYPE_CHECKING:
    import pandas as pd

SCHEMES = ("optimal", "hybrid", "importance_truncated", "k_seq", "specinfer", "single")
BORDERS = (0.1, 0.5, 1.0, 2.0)
"""Borders between the classes of target entropy, in nats."""
ENTROPIES = ("under 0.1 nats", "0.1 to 0.5", "0.5 to 1", "1 to 2", "over 2 nats")
"""The names of the classes."""


class Settings(OnPairs):
    num_drafts: int = Field(gt=1, description="drafted tokens of a position")
    target_temperature: Distinct[NotNegative] = Field(min_length=1, description="temperatures of the target")
    draft_temperature: Distinct[NotNegative] = Field(min_length=1, description="temperatures of the draft")


class Row(PairsRow):
    """The positions of a request that share a class of entropy."""

    entropy_class: int = column("entropy class of the target's distribution as it is verified; 0 is the lowest")
    positions: int = column("positions", "tokens")
    optimal: float = column("acceptance of the best scheme, summed over positions", "tokens")
    hybrid: float = column("the same for the better of K-SEQ and importance sampling at each position", "tokens")
    importance_truncated: float = column("the same for importance sampling with a truncated linear program", "tokens")
    k_seq: float = column("the same for K-SEQ", "tokens")
    specinfer: float = column("the same for SpecInfer", "tokens")
    single: float = column("the same for a single draft", "tokens")
    target_temperature: float = column("temperature of the target")


class Derived:
    over_k_seq: float = column("acceptance of importance sampling minus that of K-SEQ, summed", "tokens")
    entropy: str = column("the entropy class in words")


MEASURES = {
    "over_k_seq": Measure(
        "over_k_seq", "positions", "acceptance of importance sampling less that of K-SEQ", "probability"
    ),
}


def run(settings: Settings, inputs: RecordedPairs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Sum acceptance before the residual draw over the positions of each request and class of entropy."""
    import pandas as pd

    from draftlab.core.verify import token_verifier
    from draftlab.core.verify.acceptance import by_position

    every = inputs.load(settings)
    frames = []
    for (dataset, pairs), of_target, of_draft in itertools.product(
        every.items(), settings.target_temperature, settings.draft_temperature
    ):
        target, draft = pairs.distributions(settings.sampling(of_target), settings.sampling(of_draft))
        entropy = -(target * target.clamp_min(1e-300).log()).sum(-1)
        classes = (entropy[:, None] >= entropy.new_tensor(BORDERS)).sum(-1)
        accepted = {
            name: by_position(token_verifier(name), target, draft, settings.num_drafts).proc for name in SCHEMES
        }
        rows = pd.DataFrame({"request_id": pairs.request, "entropy_class": classes, "positions": 1} | accepted)
        rows = rows.groupby(["request_id", "entropy_class"], as_index=False).sum()
        frames.append(rows.assign(dataset=dataset, target_temperature=of_target, draft_temperature=of_draft))
    return pd.concat(frames, ignore_index=True).assign(num_drafts=settings.num_drafts), {}


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Acceptance of importance sampling minus that of K-SEQ, and the name of the entropy class."""
    rows = rows.sort_values("entropy_class", kind="stable")
    return rows.assign(
        over_k_seq=rows["importance_truncated"] - rows["k_seq"],
        entropy=rows["entropy_class"].map(dict(enumerate(ENTROPIES))),
    )


STAGE = stage_of(__name__, split="eval", inputs=RecordedPairs)
