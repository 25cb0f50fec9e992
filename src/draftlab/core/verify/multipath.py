"""Select one of several drafted paths, depth by depth and without regard to acceptance, then verify the selected path as a block."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float64
from torch import Tensor

from draftlab.core.sampling import Table, Tokens
from draftlab.core.verify.block import block
from draftlab.core.verify.optimal import in_ratio_order, key_survivors, select_by_key
from draftlab.core.verify.optimum import ranks, ratio_order
from draftlab.core.verify.sequence import DraftAlong, Sequences, TargetAlong
from draftlab.core.verify.survivors import Order, Position
from draftlab.core.verify.tree import Stop, TreeVerifier, branches

Select = Callable[[Table, Table, Tokens], tuple[Float64[Tensor, "batch drafts"], Table]]
"""``(target, draft, tokens) ->`` the probability that each of K i.i.d. drafts is selected, and the distribution of the selected token."""


def select_highest(
    target_probs: Table, draft_probs: Table, tokens: Tokens
) -> tuple[Float64[Tensor, "batch drafts"], Table]:
    """Select the draft with the largest ``q/p``. It follows ``P_l^K - P_(l-1)^K``, with the draft's prefix sums P in ratio order."""
    order = ratio_order(target_probs, draft_probs)
    rank = ranks(order).gather(-1, tokens)
    first = torch.zeros_like(tokens, dtype=torch.float64).scatter_(-1, rank.argmax(-1, keepdim=True), 1.0)
    mass = draft_probs.gather(-1, order).cumsum(-1) ** tokens.shape[1]
    selected = mass.diff(dim=-1, prepend=torch.zeros_like(mass[:, :1])).clamp_min(0)
    return first, torch.empty_like(mass).scatter_(-1, order, selected)


def _highest_survivors(position: Position, order: Order) -> Float64[Tensor, "positions drafts+1"]:
    """m of k drafts equal y, and all others have a smaller ratio: ``binom(k, m) p^m P_(l-1)^(k-m)``."""
    _, draft, rank = in_ratio_order(position)
    at_draft, k = position.at(position.groups[0]), len(order)
    before = (draft.cumsum(-1) - draft).gather(-1, rank)[:, 0].clamp_min(0)
    joint = [math.comb(k, m) * at_draft**m * before ** (k - m) for m in range(1, k + 1)]
    return torch.stack([torch.zeros_like(at_draft), *joint], -1)


def _stops(select: Select, target_probs: TargetAlong, draft_probs: DraftAlong, tokens: Sequences) -> list[Stop]:
    """The stops of block verification along every path that may be selected."""
    stops: list[Stop] = []

    def descend(members: list[int], depth: int, reached: float, rows: list[Tensor]) -> None:
        """Go down the paths that ``members`` share so far; ``rows`` are the distributions of the selected tokens."""
        path = members[0]
        if depth == tokens.shape[1]:
            selected = torch.stack(rows)
            decision = block.decide(target_probs[path][None], selected[None], tokens[path][None])
            for length, chance in enumerate(decision.stop[0].tolist()):
                target = target_probs[path, length]
                drafted = selected[length] if length < depth else torch.zeros_like(target)
                weights = (decision.weight[0, length] * target - drafted).clamp_min(0)
                stops.append(Stop(reached * chance, path, length, weights))
            return
        drawn = tokens[members, depth]
        chosen, selected = select(target_probs[path, depth][None], draft_probs[path, depth][None], drawn[None])
        for token, same in branches(tokens, depth, members).items():
            chance = float(chosen[0, drawn == token].sum())
            if chance > 0:
                descend(same, depth + 1, reached * chance, [*rows, selected[0]])

    descend(list(range(len(tokens))), 0, 1.0, [])
    del descend  # it refers to itself, and would keep all distributions until the next garbage collection
    return stops


greedy_block = TreeVerifier("greedy_block", "iid", partial(_stops, select_highest), _highest_survivors)
"""Greedy multi-path block verification (arXiv 2602.16961): select the largest ``q/p`` at each depth, then verify the path as a block.

The block's draft distribution is that of the selected path. How many sequences share the path so far is part of the state: given the token,
it is drawn alike whether target or draft wrote the token, so it cancels in every ratio, and the verifier is lossless.
"""

optimal_block = TreeVerifier("optimal_block", "iid", partial(_stops, select_by_key), lambda *at: key_survivors(*at)[0])
"""Ours: the key tournament of ``optimal`` selects, and block verification judges the path.

It keeps at least as many tokens on average as ``optimal``, which verifies the same path token by token (``docs/theory.md``, section 7).
"""
