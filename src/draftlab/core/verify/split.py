"""The linear program of truncated importance sampling: split the mass of each pair of tokens between the two."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from draftlab.errors import UserError

Solver = Literal["direct", "highs"]
"""``direct``: by minimum cuts over all subsets, a batch at once, up to 12 tokens; ``highs``: scipy's linear program, row by row."""

Table = NDArray[np.float64]
Split = Callable[[Float64[Table, "batch size"], Float64[Table, "batch size size"]], Float64[Table, "batch size size"]]

DIRECT_LIMIT = 12


def split_direct(
    room: Float64[Table, "batch size"], mass: Float64[Table, "batch size size"]
) -> Float64[Table, "batch size size"]:
    """Split the mass of each pair {i, j} between i and j so that ``sum_i min(room_i, share_i)`` is largest; exact, no LP.

    The largest sum is a maximum flow, the smallest cut over subsets T: ``sum_{i in T} room_i + mass of the pairs not inside T``.
    Pairs are settled one after another: a split is allowed if no cut that separates the pair falls below the optimum.
    """
    member, outside, (left, right), apart, sides = _subset_tables(room.shape[-1])
    masses = mass[:, left, right].T
    cuts = member @ np.maximum(room.T, 0) + outside @ masses
    cuts -= cuts.min(0)
    shares = np.empty((len(left), 2, len(room)))
    for total, half, subsets, side, share in zip(masses, masses / 2, apart, sides, shares, strict=True):
        # T holds i but not j: the cut pays j's share of the pair. T holds j but not i: it pays i's. What is left of a cut is its slack.
        only_left, only_right = np.minimum.reduce(cuts[subsets], axis=1)
        share[0] = np.minimum(np.maximum(np.minimum(np.maximum(only_left, 0), half), total - only_right), total)
        share[1] = total - share[0]
        cuts -= side @ share
    split = np.zeros_like(mass)
    split[:, left, right], split[:, right, left] = shares.transpose(1, 2, 0)
    return split


@cache
def _subset_tables(
    size: int,
) -> tuple[Table, Table, tuple[NDArray[np.int64], NDArray[np.int64]], NDArray[np.int64], Table]:
    """Subsets as 0/1 rows; which of the pairs i < j are not inside each; the pairs; per pair the subsets that hold one of the two.

    The last are listed (i but not j, then j but not i), and once more as 0/1 columns.
    """
    if size > DIRECT_LIMIT:
        raise UserError(
            f"size is {size}: the direct solution tries 2^{size} subsets",
            remedy=f'at most {DIRECT_LIMIT} tokens, or solver="highs"',
        )
    member = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    left, right = np.triu_indices(size, 1)
    sides = np.stack([member[:, left] > member[:, right], member[:, left] < member[:, right]], -1).transpose(1, 0, 2)
    apart = np.array([[np.flatnonzero(side) for side in pair.T] for pair in sides], dtype=np.int64)
    outside = 1.0 - member[:, left] * member[:, right]
    return member.astype(float), outside, (left, right), apart.reshape(len(left), 2, 2**size // 4), sides.astype(float)


def split_highs(
    room: Float64[Table, "batch size"], mass: Float64[Table, "batch size size"]
) -> Float64[Table, "batch size size"]:
    """The same split by scipy's HiGHS, as in the paper: ``max sum z``, ``z_i <= room_i``, ``z_i <= sum_j share_ij``
    (Khisti et al. 2025, section 4). ``milp`` without an integer is the same program as ``linprog``, with a third less around it."""
    batch, size = room.shape
    left, right = np.triu_indices(size, 1)
    pair, token = np.arange(len(left)), np.arange(size)
    masses = mass[:, left, right]
    # Variables: i's part of each pair (0 to 1), then z. Row i: z_i - sum of its shares <= what the pairs give it at part 0.
    limits = np.zeros((batch, size, len(left) + size))
    limits[:, left, pair], limits[:, right, pair], limits[:, token, len(left) + token] = -masses, masses, 1.0
    given = masses @ (right[:, None] == token)
    cost = np.r_[np.zeros(len(left)), -np.ones(size)]
    most = np.concatenate([np.ones((batch, len(left))), room.clip(0)], 1)
    split = np.zeros_like(mass)
    for row in range(batch):
        rows = LinearConstraint(limits[row], -np.inf, given[row])
        solved = milp(cost, constraints=rows, bounds=Bounds(0, most[row]), options={"presolve": False})
        if solved.x is None:
            raise RuntimeError(f"HiGHS found no solution: {solved.message}")
        part = solved.x[: len(left)].clip(0, 1)
        split[row, left, right], split[row, right, left] = part * masses[row], (1 - part) * masses[row]
    return split


SPLITS: dict[Solver, Split] = {"direct": split_direct, "highs": split_highs}
