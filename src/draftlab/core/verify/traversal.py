"""Traversal verification: a tree is judged from its leaves up, so that rejecting a leaf does not reject the start of its path."""

from __future__ import annotations

from draftlab.core.verify.sequence import DraftAlong, Sequences, TargetAlong
from draftlab.core.verify.tree import Stop, TreeVerifier, branches


def _stops(target_probs: TargetAlong, draft_probs: DraftAlong, tokens: Sequences) -> list[Stop]:
    stops: list[Stop] = []
    reached = 1.0

    def descend(path: int, depth: int, members: list[int], weight: float) -> None:
        """Judge the tree below the first ``depth`` tokens of ``path``, which ``members`` share: children first, then the node itself."""
        nonlocal reached
        target = target_probs[path, depth]
        if depth < tokens.shape[1]:
            draft = draft_probs[path, depth]
            below = branches(tokens, depth, members)
            # In the order drafted, so that what decides about a draw never depends on later ones.
            for member in members:
                token = int(tokens[member, depth])
                if same := below.pop(token, None):
                    chance = float(draft[token])
                    accepts = min(1.0, weight * float(target[token]) / chance) if chance else 0.0
                    descend(member, depth + 1, same, accepts)
                excess = (weight * target - draft).clamp_min(0)
                total = float(excess.sum())
                target = excess / total if total > 0 else target
                left = total + (1 - weight)  # (total + 1) - weight would round a small total away
                weight = total / left if left > 0 else 1.0
        stops.append(Stop(reached * weight, path, depth, target))
        reached *= 1 - weight

    descend(0, 0, list(range(len(tokens))), 1.0)
    del descend  # it refers to itself, and would keep all distributions until the next garbage collection
    return stops


traversal = TreeVerifier("traversal", "iid", _stops)
"""Traversal verification (Weng et al. 2025, arXiv 2505.12398).

A child has weight ``w = min(1, w_parent q/p)``. Leaves are tested in the order drafted, and a leaf is accepted with its weight. After a rejection
its parent continues with ``q <- (w q - p)_+ / S``, ``w <- S / (S + 1 - w)``, where S is the sum of ``(w q - p)_+``.

For i.i.d. sequences p stays as it is. Equal tokens are one node, which is judged where the first of them was drawn; each of them is rejected in its
turn. With one sequence this is block verification.
"""
