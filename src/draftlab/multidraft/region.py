"""Acceptance over a toy simplex, exactly: no model, no data (MDSS Fig. 2)."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from draftlab.core.verify.joint import joint_distribution
from draftlab.core.verify.schemes import token_verifier
from draftlab.core.verify.token import TokenVerifier

PANELS = {"left": 1 / 3, "right": 1 / 6}
SCHEMES = ("optimal", "importance", "k_seq", "specinfer", "single")


def region(num_drafts: Sequence[int], points: int) -> pd.DataFrame:
    """Acceptance of each scheme for targets ``(q1, q2, 1 - q1 - q2)`` and a draft uniform on three tokens (MDSS Fig. 2).

    Columns ``panel, num_drafts, q2, scheme, acceptance`` (the emitted token is among the drafts) and ``distribution_error``; ``panel`` fixes q1 at
    1/3 or 1/6.
    """
    frames = []
    for panel, first in PANELS.items():
        second = torch.linspace(0, 1 - first, points, dtype=torch.float64)
        target = torch.stack([torch.full_like(second, first), second, (1 - first - second).clamp_min(0)], -1)
        for drafts in num_drafts:
            draft = torch.full((points, drafts, 3), 1 / 3, dtype=torch.float64)
            for name in SCHEMES:
                # The single draft is alone: otherwise its residual token may be one of the drafts that it never looked at.
                verifier, distributions = token_verifier(name), draft[:, :1] if name == "single" else draft
                columns = {
                    "q2": second,
                    "acceptance": verifier.acceptance(target, distributions).member,
                    "distribution_error": distribution_error(verifier, target, distributions),
                }
                frames.append(pd.DataFrame(columns).assign(panel=panel, num_drafts=drafts, scheme=name))
    return pd.concat(frames, ignore_index=True)


def distribution_error(
    verifier: TokenVerifier, target: Float64[Tensor, "points vocab"], draft: Float64[Tensor, "points drafts vocab"]
) -> Float64[Tensor, " points"]:
    """Largest difference between the target and the distribution of the emitted token over all drafts of one distribution: 0 when lossless (MDSS Theorem 1)."""
    joint = joint_distribution(draft[0], "independent")
    shape = (len(target), len(joint.probs))
    emitted = verifier.distribution(
        target[:, None].expand(*shape, -1), draft[:, None].expand(*shape, -1, -1), joint.tokens.expand(*shape, -1)
    )
    return (torch.einsum("t,ptv->pv", joint.probs, emitted) - target).abs().amax(-1)
