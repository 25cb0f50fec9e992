"""Exact tests: the emitted law, averaged over every drafted tuple, against the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from draftlab.conformance.tables import Table, tables
from draftlab.errors import UserError
from draftlab.sampling import Drafting
from draftlab.verify.joint import joint_law

Law = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(target_probs[vocab], draft_probs[drafts, vocab], tokens[drafts]) -> probs[vocab]``"""

TOLERANCE = 1e-12
"""Largest error of a law that counts as rounding; the project's own verifiers stay below 2e-14."""

LIMIT = 100_000
"""The most sets of drafts that are enumerated: a minute or so."""


@dataclass(frozen=True)
class Exact:
    """Largest difference between the emitted law and the target over the cases, and the case it was found at."""

    error: float
    case: str
    cases: int

    @property
    def lossless(self) -> bool:
        return self.error <= TOLERANCE


def check_law(law: Law, drafting: Drafting, num_drafts: int, cases: Iterable[Table] | None = None) -> Exact:
    """Average the emitted law over every drafted tuple and compare with the target: ``sum_x P(x) law(x) = q``, each law a law."""
    worst = Exact(0.0, "", 0)
    known = tables(drafting, num_drafts) if cases is None else list(cases)
    if (count := sum(len(table.target_probs) ** num_drafts for table in known)) > LIMIT:
        what = f"{num_drafts} drafts make {count} tuples in {len(known)} tables"
        raise UserError(what, remedy=f"at most {LIMIT} are enumerated: lower num_drafts")
    for table in known:
        joint = joint_law(table.draft_probs, drafting)
        laws = torch.stack([_as_law(law(table.target_probs, table.draft_probs, x), table.name) for x in joint.tokens])
        error = (joint.probs @ laws - table.target_probs).abs().max()
        # A law that is none, or NaN, is no rounding either.
        improper = torch.maximum((laws.sum(-1) - 1).abs().max(), -laws.min())
        found = float(torch.maximum(error, improper).nan_to_num(math.inf))
        name = table.name if found >= worst.error or not worst.cases else worst.case
        worst = Exact(max(found, worst.error), name, worst.cases + len(joint.probs))
    return worst


def _as_law(value: object, name: str) -> Float64[Tensor, " vocab"]:
    law = torch.as_tensor(value, dtype=torch.float64)
    if law.dim() != 1:
        raise UserError(
            f"the law has shape {tuple(law.shape)} on table '{name}'", remedy="return one probability per token"
        )
    return law
