"""The canonical decomposition: select one draft, then verify it alone against the distribution of the selected token."""

from __future__ import annotations

from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.verify.single import accept_probs
from draftlab.core.verify.token import Decision


def select_then_verify(
    target_probs: Float64[Tensor, "batch vocab"],
    selected: Float64[Tensor, "batch vocab"],
    chosen: Float64[Tensor, "batch drafts"],
    tokens: Int64[Tensor, "batch drafts"],
) -> Decision:
    """Select draft k with probability ``chosen[k]``; its token then follows ``selected`` (r). Accept it with ``min(1, q/r)``, else draw from ``(q - r)_+``.

    Every lossless scheme's best acceptance can be reached in this way, as ``sum min(q, r)`` (Khisti et al. 2025, Theorem 1).
    """
    chance = accept_probs(target_probs.gather(-1, tokens), selected.gather(-1, tokens))
    return Decision(chosen * chance, lambda rows: (target_probs[rows] - selected[rows]).clamp_min(0))
