"""The linear program of truncated importance sampling: split the mass of each pair of tokens between its two tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float64, Int64
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import Tensor

from draftlab.errors import UserError

Solver = Literal["direct", "highs"]
"""``direct``: by minimum cuts over all subsets of up to 12 tokens, for a batch at once; ``highs``: scipy's linear program, row by row."""

Split = Callable[
    [Float64[Tensor, "batch size"], Float64[Tensor, "batch size size"]], Float64[Tensor, "batch size size"]
]

DIRECT_LIMIT = 12
"""The most tokens of the direct solution, which tries all 2^12 subsets."""


def split_direct(
    room: Float64[Tensor, "batch size"], mass: Float64[Tensor, "batch size size"]
) -> Float64[Tensor, "batch size size"]:
    """Split the mass of each pair {i, j} between i and j so that ``sum_i min(room_i, share_i)`` is largest; exact, without a solver.

    The largest sum is a maximum flow: the smallest cut over subsets T, ``sum_{i in T} room_i + mass of the pairs not inside T``. Pairs are
    split one after another; a split is allowed if no cut that separates the pair falls below the optimum.
    """
    member, outside, (left, right), apart, sides = _subset_tables(room.shape[-1], room.device)
    masses = mass[:, left, right].T
    cuts = member @ room.T.clamp_min(0) + outside @ masses
    cuts -= cuts.amin(0)
    split = torch.zeros_like(mass)
    for i, j, total, subsets, side in zip(left.tolist(), right.tolist(), masses, apart, sides, strict=True):
        # ``cuts`` is the slack of each cut. A cut with i and without j loses i's share of it; a cut with j and without i loses j's.
        only_left, only_right = cuts[subsets].amin(1)
        share = only_left.clamp_min(0).minimum(total / 2).maximum(total - only_right).minimum(total)
        split[:, i, j], split[:, j, i] = share, total - share
        cuts.addr_(side[:, 0], share, alpha=-1).addr_(side[:, 1], total - share, alpha=-1)
    return split


@cache
def _subset_tables(
    size: int, device: torch.device
) -> tuple[
    Float64[Tensor, "subsets size"],
    Float64[Tensor, "subsets pairs"],
    Int64[Tensor, "2 pairs"],
    Int64[Tensor, "pairs 2 quarter"],
    Float64[Tensor, "pairs subsets 2"],
]:
    """Subsets as 0/1 rows; the pairs i < j that are not inside each, as 0/1 rows; the pairs; the subsets that separate each pair.

    The last are given as two lists (with i but not j, with j but not i), and again as two 0/1 columns.
    """
    if size > DIRECT_LIMIT:
        raise UserError(
            f"size is {size}: the direct solution tries 2^{size} subsets",
            remedy=f'at most {DIRECT_LIMIT} tokens, or solver="highs"',
        )
    member = (torch.arange(2**size, device=device)[:, None] >> torch.arange(size, device=device)) & 1
    left, right = pairs = torch.triu_indices(size, size, 1, device=device)
    sides = torch.stack([member[:, left] > member[:, right], member[:, left] < member[:, right]], -1).transpose(0, 1)
    apart = sides.transpose(1, 2).nonzero()[:, 2].view(len(left), 2, 2**size // 4 if size > 1 else 0)
    outside = 1.0 - (member[:, left] * member[:, right]).double()
    return member.double(), outside, pairs, apart, sides.double()


def split_highs(
    room: Float64[Tensor, "batch size"], mass: Float64[Tensor, "batch size size"]
) -> Float64[Tensor, "batch size size"]:
    """The same split by scipy's HiGHS: ``max sum z``, ``z_i <= room_i``, ``z_i <= sum_j share_ij`` (Khisti et al. 2025, section 4).

    ``milp`` without integers solves the same program as ``linprog`` in two thirds of the time.
    """
    batch, size = room.shape
    room_, mass_ = room.numpy(force=True), mass.numpy(force=True)
    left, right = np.triu_indices(size, 1)
    pair, token = np.arange(len(left)), np.arange(size)
    masses = mass_[:, left, right]
    # Variables: i's part of each pair (0 to 1), then z. Row i: z_i - sum of its shares <= what the pairs give it at part 0.
    limits = np.zeros((batch, size, len(left) + size))
    limits[:, left, pair], limits[:, right, pair], limits[:, token, len(left) + token] = -masses, masses, 1.0
    given = masses @ (right[:, None] == token)
    cost = np.r_[np.zeros(len(left)), -np.ones(size)]
    most = np.concatenate([np.ones((batch, len(left))), room_.clip(0)], 1)
    split = np.zeros_like(mass_)
    for row in range(batch):
        rows = LinearConstraint(limits[row], -np.inf, given[row])
        solved = milp(cost, constraints=rows, bounds=Bounds(0, most[row]), options={"presolve": False})
        if solved.x is None:
            raise RuntimeError(f"HiGHS found no solution: {solved.message}")
        part = solved.x[: len(left)].clip(0, 1)
        split[row, left, right], split[row, right, left] = part * masses[row], (1 - part) * masses[row]
    return torch.from_numpy(split).to(mass.device)


SPLITS: dict[Solver, Split] = {"direct": split_direct, "highs": split_highs}
