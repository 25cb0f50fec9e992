"""Which answer positions the online loss sees (OSD, Algorithm 1, and what its repository does instead)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from draftlab.train.settings import LossPositions


def positions_to_learn(
    lengths: Sequence[int],
    starts: Bool[np.ndarray, " positions"],
    rejected: Bool[np.ndarray, " positions"],
    which: LossPositions,
) -> Bool[np.ndarray, " positions"]:
    """Flags of the answer positions to learn from, for answers of these ``lengths``, one after the other.

    ``starts``: a block starts there; ``rejected``: the draft's token was refused there. ``rejected``: those (OSD, Algorithm 1); ``all``:
    every position; ``block_end``: the token that the target added to each block, bonus tokens too; ``repository``: one position after
    those, as OSD's repository computes it.
    """
    if which == "all":
        return np.ones(len(starts), bool)
    if which == "rejected":
        return rejected
    # A block ends just before the next one starts, the last block with its answer.
    last = np.zeros(len(starts), bool)
    last[np.cumsum([length for length in lengths if length]) - 1] = True
    chosen = last | np.append(starts[1:], True)
    return np.append(False, (chosen & ~last)[:-1]) if which == "repository" else chosen
