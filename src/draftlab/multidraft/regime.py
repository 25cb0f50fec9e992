"""Where each scheme wins: acceptance over target and draft temperatures, by how uncertain the target is."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from draftlab.core.sampling import to_probs
from draftlab.core.verify.schemes import token_verifier
from draftlab.multidraft.acceptance import by_position, filtered, on_support
from draftlab.multidraft.pairs import Pairs

if TYPE_CHECKING:
    from draftlab.stages.regime import Settings as Regime

SCHEMES = ("optimal", "hybrid", "importance_truncated", "k_seq", "specinfer", "single")
ENTROPIES = (0.1, 0.5, 1.0, 2.0)
"""Borders, in nats, of the classes of target entropy."""


def regime(pairs: Mapping[str, Pairs], settings: Regime) -> pd.DataFrame:
    """Acceptance before the residual draw, summed over the positions of a request that share an entropy class; a column per scheme.

    Columns ``dataset, num_drafts, target_temperature, draft_temperature, entropy_class`` (0: below the first of ``ENTROPIES``),
    ``request, positions`` and those of ``SCHEMES``. The entropy is that of the target's distribution as it is verified.
    """
    grid = itertools.product(pairs.items(), settings.target_temperature, settings.draft_temperature)
    frames = []
    for (dataset, found), target_temperature, draft_temperature in grid:
        target = to_probs(found.target_logits, filtered(settings, target_temperature))
        draft = to_probs(found.draft_logits, filtered(settings, draft_temperature))
        target, draft = on_support(target, draft)
        entropy = -(target * target.clamp_min(1e-300).log()).sum(-1)
        columns = {
            name: by_position(token_verifier(name), target, draft, 1 if name == "single" else settings.num_drafts).proc
            for name in SCHEMES
        }
        rows = pd.DataFrame(
            {
                "request": found.request,
                "entropy_class": (entropy[:, None] >= entropy.new_tensor(ENTROPIES)).sum(-1),
                "positions": 1,
            }
            | columns
        )
        rows = rows.groupby(["request", "entropy_class"], as_index=False).sum()
        frames.append(
            rows.assign(dataset=dataset, target_temperature=target_temperature, draft_temperature=draft_temperature)
        )
    return pd.concat(frames, ignore_index=True).assign(num_drafts=settings.num_drafts)
