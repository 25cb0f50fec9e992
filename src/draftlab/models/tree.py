"""Guesses of the next tokens as a tree that a model reads in one pass."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftlab.errors import UserError


@dataclass(frozen=True)
class Tree:
    """Each of the ``widths[d]`` guesses at depth d follows every guess at depth d - 1 (Cai et al. 2024, section 2.1.2).

    Node 0 is the known token that the tree hangs from; the others follow by depth. A leaf is one drafted sequence.
    """

    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.widths or min(self.widths) < 1:
            raise UserError(f"the tree has widths {list(self.widths)}", remedy="give 1 or more guesses for each head")

    @property
    def depth(self) -> int:
        return len(self.widths)

    @property
    def leaves(self) -> int:
        return math.prod(self.widths)

    @functools.cached_property
    def siblings(self) -> Int[Tensor, "leaves depth"]:
        """Which guess of each depth a leaf's sequence holds."""
        return torch.cartesian_prod(*map(torch.arange, self.widths)).view(self.leaves, self.depth)

    @functools.cached_property
    def paths(self) -> Int[Tensor, "leaves depth+1"]:
        """The nodes from node 0 to each leaf."""
        counts = [math.prod(self.widths[:depth]) for depth in range(self.depth + 1)]
        return torch.stack(
            [
                sum(counts[:depth]) + torch.arange(self.leaves) // (self.leaves // count)
                for depth, count in enumerate(counts)
            ],
            -1,
        )

    @functools.cached_property
    def depths(self) -> Int[Tensor, " nodes"]:
        """How far each node is from node 0."""
        return self.sees.sum(-1) - 1

    @functools.cached_property
    def sees(self) -> Bool[Tensor, "nodes nodes"]:
        """Entry [i, j]: node j is node i or lies on the way to it."""
        count = int(self.paths.max()) + 1
        sees = torch.zeros(count, count, dtype=torch.bool)
        for depth in range(self.depth + 1):
            sees[self.paths[:, depth, None], self.paths[:, : depth + 1]] = True
        return sees

    @functools.cached_property
    def places(self) -> Int[Tensor, " nodes-1"]:
        """Where the token of each node but 0 stands among the leaves' sequences, flattened."""
        flat = self.paths[:, 1:].flatten()
        return (flat == torch.arange(1, int(flat.max()) + 1)[:, None]).int().argmax(-1)
