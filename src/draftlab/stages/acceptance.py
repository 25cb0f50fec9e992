"""Exact acceptance of multi-draft schemes at recorded positions: no model runs (MDSS, Table 2)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct, NotNegative
from draftlab.progress import progress
from draftlab.stages._pairs import OnPairs, PairsRow, RecordedPairs
from draftlab.stages._schemes import Scheme
from draftlab.stages._stage import Bench, Facts, column, stage_of

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.core.sampling import Sampling
    from draftlab.engine.recorded_pairs import Pairs
    from draftlab.engine.replay import SingleVerifier

PATHS: dict[str, SingleVerifier] = {"single_path": "single", "block": "block"}
"""Verifiers of a drafted path, compared by the tokens accepted among the tokens visited, in blocks along a text."""

PATH_LEN = 4
"""Tokens of a path."""

OF_SCHEME = ("scheme", "acceptance_sum", "member_sum", "positions", "seconds", "iterations", "sharpness")
"""The columns in which the rows of two schemes may differ: those of this stage and of ``sinkhorn``."""

WRITTEN = {"target_temperature": 1.0, "top_k": 5, "top_p": 1.0}
"""How the target wrote the recorded texts (``engine.recorded_pairs.SAMPLING``); a path is verified along them."""


class Settings(OnPairs):
    schemes: Distinct[Scheme] = Field(
        min_length=1, description="how drafts are verified; single_path and block: along a drafted path of 4 tokens"
    )
    num_drafts: Distinct[Count] = Field(min_length=1, description="numbers of drafted tokens of a position")
    draft_temperature: Distinct[NotNegative] = Field(min_length=1, description="temperatures of the draft")
    target_temperature: float = Field(1.0, gt=0, description="temperature of the target")

    @model_validator(mode="after")
    def _path_follows_the_texts(self) -> Settings:
        paths = [scheme for scheme in self.schemes if scheme in PATHS]
        if paths and any(getattr(self, name) != value for name, value in WRITTEN.items()):
            wanted = ", ".join(f"{name} {value:g}" for name, value in WRITTEN.items())
            raise ValueError(
                f"{paths[0]} is verified along the recorded texts, which were written at {wanted}: leave it out of schemes, or keep these"
            )
        return self


class Row(PairsRow):
    """A request under a scheme."""

    acceptance_sum: float = column("acceptance before the residual draw, summed over positions", "tokens")
    member_sum: float = column(
        "probability that the emitted token is among the drafts, summed; empty with neither a closed form nor an enumeration",
        "tokens",
    )
    positions: float = column("positions; for a path, those that its blocks visit", "tokens")
    scheme: str = column("how drafts are verified")


class Derived:
    shortfall_sum: float = column(
        "shortfall from the acceptance of the optimal scheme, summed; empty for a path, whose positions are others",
        "tokens",
    )


MEASURES = {
    "acceptance": Measure("acceptance_sum", "positions", "acceptance", "probability"),
    "shortfall": Measure("shortfall_sum", "positions", "shortfall to the optimum", "probability"),
    "acceptance_member": Measure(
        "member_sum", "positions", "acceptance with residual draws that hit a draft", "probability"
    ),
}


def run(settings: Settings, inputs: RecordedPairs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Sum the acceptance of each scheme over the positions of each request; the synthetic family has no path."""
    import pandas as pd

    from draftlab.core.verify import token_verifier
    from draftlab.core.verify.acceptance import by_position

    every = inputs.load(settings)
    frames = []
    conditions = list(itertools.product(every.items(), settings.draft_temperature))
    for (dataset, pairs), temperature in progress(conditions, "datasets and temperatures"):
        samplings = settings.sampling(settings.target_temperature), settings.sampling(temperature)
        target, draft = pairs.distributions(*samplings)
        for scheme in settings.schemes:
            if scheme in PATHS and not pairs.is_text:
                continue
            path = along_text(pairs, *samplings, PATH_LEN, PATHS[scheme]) if scheme in PATHS else None
            for num_drafts in settings.num_drafts:
                rows = path
                if rows is None:
                    exact = by_position(token_verifier(scheme), target, draft, num_drafts)
                    rows = pd.DataFrame({"acceptance_sum": exact.proc, "member_sum": exact.member, "positions": 1})
                    rows = rows.groupby(pairs.request.numpy()).sum(skipna=False).rename_axis("request_id").reset_index()
                rows = rows.assign(dataset=dataset, draft_temperature=temperature, num_drafts=num_drafts, scheme=scheme)
                frames.append(rows)
    return pd.concat(frames, ignore_index=True), {}


def along_text(
    pairs: Pairs, target: Sampling, draft: Sampling, path_len: int, verifier: SingleVerifier
) -> pd.DataFrame:
    """Expected accepted and visited tokens of a verifier of one path, in blocks of ``path_len`` along each text."""
    import pandas as pd

    from draftlab.engine.replay import agreement, walk

    lengths = pairs.request.bincount().tolist()
    agree = agreement(pairs.draft_logits, pairs.target_logits, pairs.token, lengths, target, draft)
    walked = walk(agree, path_len, verifier)
    return pd.DataFrame(
        {"acceptance_sum": walked.accepted, "positions": walked.visited, "request_id": range(len(lengths))}
    )


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """The shortfall of each row to the optimal scheme at the same positions, with everything else alike."""
    import pandas as pd

    keys = [name for name in rows if name not in OF_SCHEME]
    best = rows[rows["scheme"] == "optimal"].set_index(keys)["acceptance_sum"]
    shortfall = best.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy() - rows["acceptance_sum"]
    return rows.assign(shortfall_sum=shortfall.mask(rows["scheme"].isin(list(PATHS))))


STAGE = stage_of(__name__, split="eval", inputs=RecordedPairs)
