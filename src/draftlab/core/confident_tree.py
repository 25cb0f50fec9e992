"""The trees that a draft is most confident of: how they grow. Free of torch, because processes that measure llama.cpp do not load it."""

from __future__ import annotations

from dataclasses import dataclass

from draftlab.errors import UserError


@dataclass(frozen=True)
class ConfidentTree:
    """How a tree grows anew for each block (EAGLE-2: Li et al. 2024, arXiv 2406.16858, section 4).

    The value of a text is the product of the draft's probabilities of its tokens. At each depth, the ``width`` texts of highest value get their
    ``width`` most probable children. The ``nodes`` texts of highest value form the tree.
    """

    nodes: int
    depth: int
    width: int

    def __post_init__(self) -> None:
        if min(self.nodes, self.depth, self.width) < 1:
            raise UserError(f"{self} grows no tokens", remedy="give 1 or more of each")
