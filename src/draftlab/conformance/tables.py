"""Small positions to test a verifier at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from draftlab.core.sampling import Drafting
from draftlab.errors import UserError


@dataclass(frozen=True)
class VerifierCase:
    """A small position to test at: a target distribution and one distribution per draft."""

    name: str
    target_probs: Float64[Tensor, " vocab"]
    draft_probs: Float64[Tensor, "drafts vocab"]


def reading(verify: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, refused if it writes into its arguments: its output would be compared with what it wrote there."""

    def call(*given: Any) -> Any:
        before = [value.clone() if isinstance(value, Tensor) else value for value in given]
        returned = verify(*given)
        pairs = [(old, new) for old, new in zip(before, given, strict=True) if isinstance(old, Tensor)]
        if not all(torch.equal(old, new) for old, new in pairs):
            raise UserError("the verifier wrote into its arguments", remedy="let it work on copies, as of .clone()")
        return returned

    return call


def tables(drafting: Drafting, num_drafts: int) -> list[VerifierCase]:
    """Tables that once broke verifiers, and random tables: equal distributions, zeros, disjoint supports, ties, near-point masses."""
    generator = torch.Generator().manual_seed(0)

    def normal(*weights: float) -> Tensor:
        return torch.tensor(weights, dtype=torch.float64) / sum(weights)

    def random(power: float) -> Tensor:
        weights = torch.rand(4, dtype=torch.float64, generator=generator) ** power
        return weights / weights.sum()

    pairs = {
        "equal distributions": (normal(4, 3, 2, 1), normal(4, 3, 2, 1)),
        "ties": (normal(1, 1, 2, 2), normal(1, 1, 1, 1)),
        "zeros in the target": (normal(0, 0, 1, 3), normal(4, 3, 2, 1)),
        "zeros in the draft": (normal(4, 3, 2, 1), normal(0, 2, 3, 1)),
        "disjoint supports": (normal(1, 2, 0, 0), normal(0, 0, 3, 1)),
        "target a point mass": (normal(0, 1, 0, 0), normal(4, 3, 2, 1)),
        "draft a point mass": (normal(4, 3, 2, 1), normal(0, 1, 0, 0)),
        "target near a point mass": (normal(1e-13, 1, 1e-13, 1e-14), normal(4, 3, 2, 1)),
        "draft near a point mass": (normal(4, 3, 2, 1), normal(1e-13, 1, 2e-13, 1e-14)),
        "both near the same point": (normal(1e-13, 1, 3e-13, 1e-14), normal(2e-13, 1, 1e-13, 1e-14)),
        "near different points": (normal(1, 1e-13, 1e-13, 1e-14), normal(1e-13, 1, 2e-13, 1e-14)),
        "fourteen decades": (normal(1, 1e-14, 1e-5, 1e-9), normal(1e-10, 1, 1e-14, 1e-4)),
    } | {f"random {i}": (random(1 + i % 3), random(1 + i % 2)) for i in range(8)}
    cases = []
    for name, (target, draft) in pairs.items():
        distributions = draft.expand(num_drafts, -1).clone()
        if drafting == "independent":  # later drafts follow other distributions: the same one, turned
            distributions = torch.stack([draft.roll(k) for k in range(num_drafts)])
        elif drafting != "iid" and int((draft > 0).sum()) < num_drafts:
            continue
        cases.append(VerifierCase(name, target, distributions))
    if not cases:
        raise UserError(f"no table has {num_drafts} tokens to draft {drafting}", remedy="lower num_drafts to 4 or less")
    return cases
