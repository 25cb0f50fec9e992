"""Exact tests: the emitted distribution, averaged over every drafted tuple, against the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float64
from torch import Tensor

from draftlab.conformance.tables import VerifierCase, reading, tables
from draftlab.core.sampling import Drafting
from draftlab.core.verify.joint import joint_distribution
from draftlab.errors import UserError

Distribution = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(target_probs[vocab], draft_probs[drafts, vocab], tokens[drafts]) -> probs[vocab]``"""

TOLERANCE = 1e-12
"""Largest error of a distribution that counts as rounding; the project's own verifiers stay below 2e-14."""

LIMIT = 100_000
"""The most sets of drafts that are enumerated: a minute or so."""


@dataclass(frozen=True)
class Exact:
    """The largest difference between the emitted distribution and the target over all cases, and the case in which it occurred."""

    error: float
    case: str
    cases: int

    @property
    def lossless(self) -> bool:
        return self.error <= TOLERANCE


def check_distribution(
    distribution: Distribution,
    drafting: Drafting,
    num_drafts: int,
    cases: Iterable[VerifierCase] | None = None,
    *,
    batched: bool = False,
) -> Exact:
    """Average the emitted distribution over every drafted tuple and compare with the target: ``sum_x P(x) distribution(x) = q``.

    With ``batched``, the arguments of ``distribution`` have a batch axis in front, and one call gets all tuples of a table.
    """
    known = tables(drafting, num_drafts) if cases is None else list(cases)
    if (count := sum(len(table.target_probs) ** num_drafts for table in known)) > LIMIT:
        what = f"{num_drafts} drafts make {count} tuples in {len(known)} tables"
        raise UserError(what, remedy=f"at most {LIMIT} are enumerated: lower num_drafts")
    errors: list[tuple[float, str]] = []
    tuples = 0
    for table in known:
        joint = joint_distribution(table.draft_probs, drafting)
        count = len(joint.tokens)
        if batched:
            given = table.target_probs.repeat(count, 1), table.draft_probs.repeat(count, 1, 1), joint.tokens
            emitted = _as_distributions(reading(distribution)(*given), table, count)
        else:
            call = partial(reading(distribution), table.target_probs, table.draft_probs)
            emitted = torch.stack([_as_distributions(call(x), table) for x in joint.tokens])
        difference = (joint.probs @ emitted - table.target_probs).abs().max()
        # A row that is no distribution, or NaN, is an error even if the average is right.
        improper = torch.maximum((emitted.sum(-1) - 1).abs().max(), -emitted.min())
        errors.append((float(torch.maximum(difference, improper).nan_to_num(math.inf)), table.name))
        tuples += count
    error, case = max(reversed(errors), key=lambda row: row[0], default=(0.0, ""))
    return Exact(error, case, tuples)


def _as_distributions(value: object, table: VerifierCase, *batch: int) -> Float64[Tensor, "*batch vocab"]:
    probs = torch.as_tensor(value, dtype=torch.float64)
    if probs.shape != (*batch, len(table.target_probs)):
        what = f"the distribution has shape {tuple(probs.shape)} on table '{table.name}'"
        raise UserError(what, remedy="return one probability for each token of target_probs")
    return probs
