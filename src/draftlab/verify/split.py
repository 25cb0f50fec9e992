"""The linear program of truncated importance sampling: split the mass of each pair of tokens between the two."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.optimize import linprog
from torch import Tensor

from draftlab.errors import UserError

Solver = Literal["direct", "highs"]
"""``direct``: by minimum cuts over all subsets, a batch at once, up to 12 tokens; ``highs``: scipy's linear program, row by row."""

Split = Callable[
    [Float64[Tensor, "batch size"], Float64[Tensor, "batch size size"]], Float64[Tensor, "batch size size"]
]

DIRECT_LIMIT = 12


def split_direct(
    room: Float64[Tensor, "batch size"], mass: Float64[Tensor, "batch size size"]
) -> Float64[Tensor, "batch size size"]:
    """Split the mass of each pair {i, j} between i and j so that ``sum_i min(room_i, share_i)`` is largest; exact, no LP.

    The largest sum is a maximum flow, the smallest cut over subsets T: ``sum_{i in T} room_i + mass of the pairs not inside T``.
    Pairs are settled one after another: a split is allowed if no cut that separates the pair falls below the optimum.
    """
    size = room.shape[-1]
    subsets, pairs, apart = _subset_tables(size, room.device)
    left, right = pairs
    masses = mass[:, left, right]
    cuts = room.clamp_min(0) @ subsets.T + masses @ (1 - subsets[:, left] * subsets[:, right]).T
    best = cuts.amin(-1)
    share = torch.zeros_like(mass)
    for pair, (only_left, only_right) in enumerate(apart):
        total = masses[:, pair]
        # T holds j but not i: the cut pays i's share. T holds i but not j: it pays j's.
        least = (best + total - cuts[:, only_right].amin(-1)).clamp_min(0)
        most = (cuts[:, only_left].amin(-1) - best).minimum(total)
        to_left = (total / 2).minimum(most).maximum(least).minimum(total)
        cuts[:, only_right] -= (total - to_left)[:, None]
        cuts[:, only_left] -= to_left[:, None]
        share[:, left[pair], right[pair]], share[:, right[pair], left[pair]] = to_left, total - to_left
    return share


@cache
def _subset_tables(
    size: int, device: torch.device
) -> tuple[Float64[Tensor, "subsets size"], Int64[Tensor, "2 pairs"], list[tuple[Tensor, Tensor]]]:
    """All subsets as 0/1 rows; the pairs i < j; for each pair the subsets that hold i but not j, and j but not i."""
    if size > DIRECT_LIMIT:
        raise UserError(
            f"size is {size}: the direct solution tries 2^{size} subsets",
            remedy=f'at most {DIRECT_LIMIT} tokens, or solver="highs"',
        )
    member = (torch.arange(2**size)[:, None] >> torch.arange(size)) & 1
    pairs = torch.triu_indices(size, size, 1)
    apart = [
        (
            (member[:, i] > member[:, j]).nonzero()[:, 0].to(device),
            (member[:, i] < member[:, j]).nonzero()[:, 0].to(device),
        )
        for i, j in pairs.T.tolist()
    ]
    return member.to(device, torch.float64), pairs.to(device), apart


def split_highs(
    room: Float64[Tensor, "batch size"], mass: Float64[Tensor, "batch size size"]
) -> Float64[Tensor, "batch size size"]:
    """The same split by scipy's HiGHS, as in the paper: ``max sum z``, ``z_i <= room_i``, ``z_i <= sum_j share_ij`` (Khisti et al. 2025, section 4)."""
    size = room.shape[-1]
    left, right = (index.numpy() for index in torch.triu_indices(size, size, 1))
    count = len(left)
    # Variables: i's part of each pair (0 to 1), then z. Row i: z_i - sum of its shares <= what the pairs give it at part 0.
    limits = np.zeros((room.shape[0], size, count + size))
    masses = mass.numpy(force=True)[:, left, right]
    limits[:, left, np.arange(count)] = -masses
    limits[:, right, np.arange(count)] = masses
    limits[:, np.arange(size), count + np.arange(size)] = 1.0
    given = masses @ (right[:, None] == np.arange(size))
    cost = np.r_[np.zeros(count), -np.ones(size)]
    share = torch.zeros_like(mass)
    for row, space in enumerate(room.clamp_min(0).tolist()):
        bounds = [(0.0, 1.0)] * count + [(0.0, most) for most in space]
        solved = linprog(cost, A_ub=limits[row], b_ub=given[row], bounds=bounds, method="highs")
        if solved.x is None:
            raise RuntimeError(f"HiGHS found no solution: {solved.message}")
        part = solved.x[:count].clip(0, 1)
        share[row, left, right] = torch.from_numpy(part * masses[row]).to(share)
        share[row, right, left] = torch.from_numpy((1 - part) * masses[row]).to(share)
    return share


SPLITS: dict[Solver, Split] = {"direct": split_direct, "highs": split_highs}
