"""A verifier's formulas, for its acceptance and for its survivors, against the enumeration of every drafted tuple."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from draftlab.conformance.exact import Exact
from draftlab.conformance.tables import VerifierCase, tables
from draftlab.core.verify.survivors import Position
from draftlab.core.verify.token import TokenVerifier

TOLERANCE = 1e-9
"""Largest error of a formula that counts as rounding; the project's own verifiers stay below 1e-12."""


def check_formulas(verifier: TokenVerifier, num_drafts: int) -> dict[str, Exact]:
    """Compare ``closed_form`` and ``survivors`` with what the verifier's decisions give; empty if it has neither."""
    enumerated = replace(verifier, closed_form=None, survivors=None, is_lossless=False)
    compared: dict[str, Callable[[VerifierCase], Tensor]] = {}
    if (closed_form := verifier.closed_form) is not None:

        def of_acceptance(case: VerifierCase) -> Tensor:
            given = closed_form(case.target_probs[None], case.draft_probs[None])
            exact = enumerated.acceptance(case.target_probs, case.draft_probs)
            unknown = given.member.isnan()
            return torch.cat([given.proc - exact.proc, (given.member - exact.member).where(~unknown, 0.0)])

        compared["closed_form"] = of_acceptance
    if (survivors := verifier.survivors) is not None:

        def of_survivors(case: VerifierCase) -> Tensor:
            written = case.target_probs.nonzero()[:, 0]
            is_one = verifier.drafting != "independent"
            groups = [
                draft.expand(len(written), -1) for draft in (case.draft_probs[:1] if is_one else case.draft_probs)
            ]
            order = (0,) * num_drafts if is_one else tuple(range(num_drafts))
            position = Position(case.target_probs.expand(len(written), -1), groups, written)
            given, exact = survivors(position, order), enumerated.enumerated_survivors(position, order)
            return (given - exact).flatten(1)[:, 1:].flatten()  # entry 0, of no survivor, is not needed

        compared["survivors"] = of_survivors
    cases = tables(verifier.drafting, num_drafts)
    return {name: _worst(difference, cases) for name, difference in compared.items()}


def _worst(difference: Callable[[VerifierCase], Tensor], cases: list[VerifierCase]) -> Exact:
    errors = [(float(difference(case).abs().max().nan_to_num(math.inf)), case.name) for case in cases]
    return Exact(*max(errors), len(cases))
