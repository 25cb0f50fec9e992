"""Trees of the texts that a draft is most confident of (``core.confident_tree``), grown for a batch of texts in torch."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.tree import Tree
from draftlab.models import Cache


class Level(NamedTuple):
    """The texts of one depth that may become nodes: a value, a last token, and the number of the text before it, in the level before.

    ``probs[row, beam]`` is the distribution that the last token of a text with this ``beam`` comes from.
    """

    value: Float64[Tensor, "rows texts"]
    token: Int64[Tensor, "rows texts"]
    parent: Int64[Tensor, "rows texts"]
    beam: Int64[Tensor, "rows texts"]
    probs: Float64[Tensor, "rows beams vocab"]


def grow(
    cache: Cache, logits: Float[Tensor, "rows vocab"], sampling: Sampling, depth: int, width: int
) -> Iterator[Level]:
    """Yield the levels of the tree below each row of the cache, whose next tokens have these logits.

    After the last level the cache has up to ``width`` rows for each of its first ones, row by row.
    """
    rows, beams = torch.arange(len(logits), device=logits.device)[:, None], 1
    value = torch.ones_like(rows, dtype=torch.float64)
    number = torch.zeros_like(rows)  # of each beam's text, in the level before
    for level in range(depth):
        probs = to_probs(logits, sampling).view(len(rows), beams, -1)
        chances, children = probs.topk(min(width, sampling.top_k or width, probs.shape[-1]), -1)
        value, token = (value[..., None] * chances).flatten(1), children.flatten(1)
        beam = (torch.arange(token.shape[1], device=token.device) // children.shape[-1]).expand_as(token)
        yield Level(value, token, number.gather(1, beam), beam, probs)
        if level + 1 < depth:
            value, number = value.topk(min(width, value.shape[1]), -1)
            cache.take((rows * beams + beam.gather(1, number)).flatten().tolist())
            beams = number.shape[1]
            logits = cache.extend(token.gather(1, number).view(-1, 1))[:, 0]


def grown_tree(
    levels: Sequence[Level], nodes: int
) -> tuple[Tree, Int64[Tensor, "rows leaves depth"], Float64[Tensor, "rows leaves depth vocab"]]:
    """The tree of each row: its ``nodes`` texts of highest value, of two equal ones the shorter; and the tokens of its leaves, with their distributions.

    What follows the end of a leaf does not count (``Tree.exists``).
    """
    starts = [0]
    for level in levels:
        starts.append(starts[-1] + level.value.shape[1])
    value, parent = (
        torch.cat(parts, 1) for parts in zip(*((level.value, level.parent) for level in levels), strict=True)
    )
    best = value.sort(dim=-1, descending=True, stable=True)
    possible = (best.values[:, :nodes] > 0).sum(-1).tolist()
    trees, texts = list[Tree](), list[list[int]]()
    for order, before, count in zip(best.indices[:, :nodes].tolist(), parent.tolist(), possible, strict=True):
        chosen = sorted(order[:count])  # each text after the one before it
        node_of = {text: node for node, text in enumerate(chosen, 1)}
        parents = [-1]
        for text in chosen:
            depth = bisect.bisect(starts, text) - 1
            parents.append(node_of[starts[depth - 1] + before[text]] if depth else 0)
        trees.append(Tree.of_parents(parents))
        texts.append([0, *chosen, *[0] * (nodes - count)])
    tree = Tree(_stack(trees, len(levels)).to(value.device))
    places = torch.tensor(texts, device=value.device)
    rows = torch.arange(len(trees), device=value.device)[:, None]
    tokens, distributions = [], []
    for depth, level in enumerate(levels):
        exists = tree.exists[..., depth]
        text = (places[rows, tree.paths[..., depth + 1]] - starts[depth]).where(exists, 0)
        tokens.append(level.token[rows, text])
        distributions.append(level.probs[rows, level.beam[rows, text]])
    return tree, torch.stack(tokens, -1), torch.stack(distributions, 2)


def _stack(trees: Sequence[Tree], depth: int) -> Int64[Tensor, "rows leaves depth+1"]:
    """The paths of each tree. A tree with fewer leaves than another repeats its first one."""
    leaves = max(tree.leaves for tree in trees)
    paths = []
    for tree in trees:
        deeper = tree.paths[:, -1:].expand(-1, depth - tree.depth)
        full = torch.cat([tree.paths, deeper], -1)
        paths.append(torch.cat([full, full[:1].expand(leaves - len(full), -1)]))
    return torch.stack(paths)
