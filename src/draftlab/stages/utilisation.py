"""Load of a request trace against hardware, with the draft's training (OSD, App. A.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Distinct, Share
from draftlab.core.settings import Settings as Base
from draftlab.stages._stage import Bench, Facts, NoInputs, column, stage_of

if TYPE_CHECKING:
    import pandas as pd


Positive = Annotated[float, Field(gt=0)]
BlockLength = Annotated[float, Field(ge=1)]


class Settings(Base):
    tokens_per_request: float = Field(gt=0, description="tokens of a request")
    requests: float = Field(gt=0, description="requests of the trace")
    days: float = Field(gt=0, description="days over which these requests are spread")
    flops_per_token: float = Field(gt=0, description="FLOPs of the target for one token")
    hardware_flops: float = Field(gt=0, description="what the hardware can compute, in FLOP/s")
    draft_flops_per_token: float = Field(gt=0, description="FLOPs of the draft for one token")
    draft_len: int = Field(gt=0, description="tokens drafted per call of the target")
    alpha: Share = Field(description="acceptance per drafted token")
    most: float = Field(gt=1, description="largest load, as a multiple of the trace's; the smallest is 1")
    pairs: Distinct[tuple[str, Positive, Positive, BlockLength, Share]] = Field(
        description="pair, parameters of target and draft in billions, printed block length, and the alpha that corresponds to it"
    )


class Row:
    """A load of the trace (``part`` load), or a pair (``part`` ratio); columns of the other part are empty."""

    part: str = column("load or ratio")
    system: str = column("serving: the target alone; online: with drafting and training")
    load: float = column("load, as a multiple of the trace's")
    requests_per_second: float = column("requests that arrive", "requests/s")
    flops_per_second: float = column("FLOP/s asked for", "FLOP/s")
    hardware_flops: float = column("FLOP/s of the hardware", "FLOP/s")
    pair: str = column("pair of models")
    source: str = column("block length: as printed, or recomputed from alpha")
    block_length: float = column("tokens per target call", "tokens")
    ratio: float = column("FLOPs of the target over those of the draft, its updates included")


MEASURES = {
    "load": Measure("flops_per_second", "hardware_flops", "FLOP/s asked for, as a share of the hardware's"),
    "flops_per_second": Measure("flops_per_second", None, "FLOP/s asked for", "FLOP/s"),
    "ratio": Measure("ratio", None, "target over draft FLOPs"),
}


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """FLOP/s of the trace at each load, and the ratio of each pair at the printed and the recomputed block length."""
    import numpy as np
    import pandas as pd

    from draftlab.core import theory

    length = theory.expected_block_length(settings.alpha, settings.draft_len)
    # Per emitted token: (k + 1) / a verified tokens; k / a drafted ones, and a forward and a backward pass over what was served.
    verified = (settings.draft_len + 1) / length * settings.flops_per_token
    online = verified + (settings.draft_len / length + 3) * settings.draft_flops_per_token
    rows: list[dict[str, Any]] = []
    for load in np.geomspace(1, settings.most, 13):
        for system, per_token in {"serving": settings.flops_per_token, "online": online}.items():
            requests = load * settings.requests
            flops = theory.load_flops(settings.tokens_per_request, requests, settings.days, per_token)
            rate = {"requests_per_second": requests / (86_400 * settings.days), "flops_per_second": flops}
            row = {"part": "load", "system": system, "load": load}
            rows.append(row | rate | {"hardware_flops": settings.hardware_flops})
    for pair, target, draft, printed, alpha in settings.pairs:
        recomputed = theory.expected_block_length(alpha, settings.draft_len)
        for source, length in {"printed": printed, "recomputed": recomputed}.items():
            ratio = theory.update_flops_ratio(settings.draft_len, length, target, draft)
            rows.append({"part": "ratio", "pair": pair, "source": source, "block_length": length, "ratio": ratio})
    return pd.DataFrame(rows), {}


STAGE = stage_of(__name__)
