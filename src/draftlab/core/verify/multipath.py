"""Select one of several drafted paths, depth by depth and without regard to acceptance, then verify the selected path as a block."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from draftlab.core.verify.block import block
from draftlab.core.verify.optimal import in_ratio_order, key_survivors, select_by_key, win_rate
from draftlab.core.verify.optimum import ranks, ratio_order
from draftlab.core.verify.sequence import DraftAlong, Sequences, TargetAlong
from draftlab.core.verify.survivors import Order, Position
from draftlab.core.verify.tree import Stop, TreeVerifier, branches


def _stops_of_block(
    path: int, rows: list[Tensor], target_probs: TargetAlong, tokens: Sequences, reached: float = 1.0
) -> list[Stop]:
    """The stops of block verification along a path selected with probability ``reached``; ``rows`` are the distributions of its tokens."""
    target, selected = target_probs[path], torch.stack(rows)
    decision = block.decide(target[None], selected[None], tokens[path][None])
    drafted = torch.cat([selected, torch.zeros_like(selected[:1])])
    return [
        Stop(
            reached * chance, path, length, (target[length] * decision.weight[0, length] - drafted[length]).clamp_min(0)
        )
        for length, chance in enumerate(decision.stop[0].tolist())
    ]


def _highest(target_probs: TargetAlong, draft_probs: DraftAlong, tokens: Sequences) -> list[Stop]:
    """Take the path with the largest ``q/p`` at each depth, and verify it against the distribution of such paths.

    If a draft comes before this beginning of the path with probability A, and has it with probability x, then the selected path has it with
    ``(A + x)^K - A^K = x phi(A + x, A)``. Its next token l has ``A + x P_(l-1)`` and ``x p_l`` in their places. Only their ratio counts.
    """
    drafts, depths = tokens.shape
    members, rows = list(range(drafts)), list[Tensor]()
    before, here = target_probs.new_zeros(1, 1), target_probs.new_ones(1, 1)  # A and x, over their sum
    for depth in range(depths):
        target, draft = target_probs[members[0], depth][None], draft_probs[members[0], depth][None]
        order = ratio_order(target, draft)
        sorted_draft = draft.gather(-1, order)
        mass = sorted_draft.cumsum(-1)
        lower = before + here * (mass - sorted_draft)
        won = (
            sorted_draft
            * win_rate(lower + here * sorted_draft, lower, drafts)
            / win_rate(before + here, before, drafts)
        )
        rows.append(torch.empty_like(won).scatter_(-1, order, won)[0])
        rank = ranks(order)[0]
        below = branches(tokens, depth, members)
        best = max(below, key=lambda token: int(rank[token]))
        members, place = below[best], rank[best]
        pair = torch.stack([lower[:, place], here[:, 0] * sorted_draft[:, place]])
        before, here = (pair / pair.sum(0))[..., None]
    return _stops_of_block(members[0], rows, target_probs, tokens)


def _highest_survivors(position: Position, order: Order) -> Float64[Tensor, "positions drafts+1"]:
    """m of k drafts equal y, and all others have a smaller ratio: ``binom(k, m) p^m P_(l-1)^(k-m)``."""
    _, draft, rank = in_ratio_order(position)
    at_draft, k = position.at(position.groups[0]), len(order)
    before = (draft.cumsum(-1) - draft).gather(-1, rank)[:, 0].clamp_min(0)
    joint = [math.comb(k, m) * at_draft**m * before ** (k - m) for m in range(1, k + 1)]
    return torch.stack([torch.zeros_like(at_draft), *joint], -1)


def _by_key(target_probs: TargetAlong, draft_probs: DraftAlong, tokens: Sequences) -> list[Stop]:
    """The stops of block verification along every path that the key tournament may select."""
    stops: list[Stop] = []

    def descend(members: list[int], depth: int, reached: float, rows: list[Tensor]) -> None:
        """Go down the paths that ``members`` share so far; ``rows`` are the distributions of the selected tokens."""
        path = members[0]
        if depth == tokens.shape[1]:
            stops.extend(_stops_of_block(path, rows, target_probs, tokens, reached))
            return
        drawn = tokens[members, depth]
        chosen, selected = select_by_key(target_probs[path, depth][None], draft_probs[path, depth][None], drawn[None])
        for token, same in branches(tokens, depth, members).items():
            chance = float(chosen[0, drawn == token].sum())
            if chance > 0:
                descend(same, depth + 1, reached * chance, [*rows, selected[0]])

    descend(list(range(len(tokens))), 0, 1.0, [])
    del descend  # it refers to itself, and would keep all distributions until the next garbage collection
    return stops


greedy_block = TreeVerifier("greedy_block", "iid", _highest, _highest_survivors, by_count=False)
"""Greedy multi-path block verification (Thomas and Pal 2026, arXiv 2602.16961): select the largest ``q/p`` at each depth, then verify the path as a
block. The block's draft distribution is that of the selected path over all drafts, however many sequences share it."""

optimal_block = TreeVerifier("optimal_block", "iid", _by_key, lambda *at: key_survivors(*at)[0])
"""Ours: the key tournament of ``optimal`` selects, and block verification judges the path.

How many sequences share the path so far is part of the state: given the token, it is drawn alike whether target or draft wrote the token, so it
cancels in every ratio, and the verifier is lossless. It keeps at least as many tokens on average as ``optimal``, which verifies the same path
token by token (``docs/theory.md``, section 7).
"""
