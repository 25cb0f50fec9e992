"""Entropic optimal transport instead of the linear program: acceptance and cost against iterations."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct, NonNegativeInt, NotNegative
from draftlab.stages._pairs import OnPairs, PairsRow, RecordedPairs
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing
from draftlab.stages.acceptance import Derived, derive

if TYPE_CHECKING:
    import pandas as pd

PEERS = ("optimal", "importance_truncated", "k_seq", "specinfer")


class Settings(OnPairs):
    num_drafts: Distinct[Count] = Field(min_length=1, description="numbers of drafted tokens of a position")
    draft_temperature: Distinct[NotNegative] = Field(min_length=1, description="temperatures of the draft")
    iterations: Distinct[NonNegativeInt] = Field(min_length=1, description="numbers of Sinkhorn iterations")
    sharpness: Distinct[NotNegative] = Field(
        min_length=1, description="values of s: Sinkhorn's kernel gives a token e^-s if it is not drafted, else 1"
    )
    rounds: int = Field(gt=0, description="interleaved timings of each contender, of which the fastest counts")


class Row(PairsRow):
    """A request under Sinkhorn's scaling or a peer."""

    acceptance_sum: float = column("acceptance before the residual draw, summed over positions", "tokens")
    positions: int = column("positions", "tokens")
    seconds: float = timing(
        "the request's share of the fastest computation of the acceptance, in CPU time of all threads"
    )
    scheme: str = column("how drafts are verified")
    iterations: int = column("iterations of the scaling; 0 for other schemes")
    sharpness: float = column("sharpness of the kernel; 0 for other schemes")


MEASURES = {
    "acceptance": Measure("acceptance_sum", "positions", "acceptance", "probability"),
    "shortfall": Measure("shortfall_sum", "positions", "shortfall to the optimum", "probability"),
}


def run(settings: Settings, inputs: RecordedPairs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Acceptance of each contender, and the fastest of ``rounds`` interleaved computations, all positions as one batch."""
    import pandas as pd

    from draftlab.core.verify import token_verifier
    from draftlab.core.verify.sinkhorn import sinkhorn_verifier

    contenders = [(name, token_verifier(name), 0, 0.0) for name in PEERS]
    contenders += [
        ("sinkhorn", sinkhorn_verifier(count, sharpness), count, sharpness)
        for sharpness, count in itertools.product(settings.sharpness, settings.iterations)
    ]
    every = inputs.load(settings)
    frames = []
    for (dataset, pairs), temperature, drafts in itertools.product(
        every.items(), settings.draft_temperature, settings.num_drafts
    ):
        target, draft = pairs.distributions(settings.sampling(1.0), settings.sampling(temperature))
        distributions = draft[:, None].expand(-1, drafts, -1)
        spent = [float("inf")] * len(contenders)
        values = [target.sum(-1)] * len(contenders)
        for _ in range(settings.rounds):
            for place, (_, verifier, _, _) in enumerate(contenders):
                assert verifier.closed_form is not None
                start = time.process_time()
                values[place] = verifier.closed_form(target, distributions).proc
                spent[place] = min(spent[place], time.process_time() - start)
        for (name, _, count, sharpness), value, seconds in zip(contenders, values, spent, strict=True):
            rows = pd.DataFrame({"request_id": pairs.request, "acceptance_sum": value, "positions": 1})
            rows = rows.groupby("request_id", as_index=False).sum()
            rows["seconds"] = rows["positions"] * seconds / len(target)
            rows = rows.assign(scheme=name, iterations=count, sharpness=sharpness)
            frames.append(rows.assign(dataset=dataset, draft_temperature=temperature, num_drafts=drafts))
    return pd.concat(frames, ignore_index=True), {}


STAGE = stage_of(__name__, split="eval", inputs=RecordedPairs, derived=Derived, derive=derive)
