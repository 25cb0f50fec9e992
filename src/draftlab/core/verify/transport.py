"""A tree is judged by the best local plan at each node: block verification for one sequence, the optimum of K drafts for one depth."""

from __future__ import annotations

from draftlab.core.verify.optimal import select_by_key
from draftlab.core.verify.sequence import DraftAlong, Sequences, TargetAlong
from draftlab.core.verify.tree import Stop, TreeVerifier, branches


def _stops(target_probs: TargetAlong, draft_probs: DraftAlong, tokens: Sequences) -> list[Stop]:
    stops: list[Stop] = []
    reached = 1.0

    def descend(path: int, depth: int, members: list[int], weight: float) -> None:
        """Judge the tree below the first ``depth`` tokens of ``path``, which ``members`` share: children first, then the node itself."""
        nonlocal reached
        left, target = 1.0, weight * target_probs[path, depth]
        if depth < tokens.shape[1]:
            drawn = tokens[members, depth]
            # A target of mass w selects like one that has 1 - w more, on a token that is never drafted.
            chosen, selected = select_by_key(target[None], draft_probs[path, depth][None], drawn[None])
            for token, same in branches(tokens, depth, members).items():
                accepts = float(chosen[0, drawn == token].sum())
                if (mass := float(selected[0, token])) > 0:
                    accepts *= min(1.0, float(target[token]) / mass)
                descend(same[0], depth + 1, same, min(1.0, accepts / left) if left > 0 else 0.0)
                left -= accepts
            target = (target - selected[0]).clamp_min(0)
            excess = float(target.sum())
            rest = excess + (1 - weight)
            weight = excess / rest if rest > 0 else 1.0
        stops.append(Stop(reached * weight, path, depth, target))
        reached *= 1 - weight

    descend(0, 0, list(range(len(tokens))), 1.0)
    del descend  # it refers to itself, and would keep all distributions until the next garbage collection
    return stops


transport = TreeVerifier("transport", "iid", _stops)
"""Ours: every node of the tree is accepted as often as the best plan of its parent allows; ``docs/theory.md``, section 7, proves that it is lossless.
"""
