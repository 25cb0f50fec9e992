"""Texts that branch off the text in llama.cpp's cache, as the nodes of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftlab.errors import UserError

if TYPE_CHECKING:
    from draftlab.models.backend import Logits
    from draftlab.models.llama_cpp import LlamaCpp

TEXT = -1
"""The parent of the nodes that follow the cached text."""


class Branches:
    """A tree below the text that ``model`` has cached when it begins. Each node is one token, and is read once.

    A sequence of llama.cpp holds the text and one path of nodes. Sequences share a cache, so a path that branches off another one copies no
    memory. ``model`` needs a shared cache with one sequence more than leaves are read.
    """

    def __init__(self, model: LlamaCpp) -> None:
        self.model, self.start = model, len(model.tokens)
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self._depths: list[int] = []
        self._sequences: list[int] = []  # one that holds the path to each node, and perhaps more after it
        self._last = 0

    def read(self, tokens: Sequence[int], parents: Sequence[int]) -> Logits:
        """Read nodes in one call; return the logits after each, those of a trimmed head as they are.

        ``parents`` are numbers of nodes, which count from 0 in the order of reading, or ``TEXT``; a parent comes before its children.
        """
        first, members = len(self.tokens), [list[int]() for _ in tokens]
        self.tokens += tokens
        self.parents += parents
        self._depths += [0] * len(tokens)
        self._sequences += [0] * len(tokens)
        inner = set(parents)
        for node in range(first, len(self.tokens)):
            parent = self.parents[node]
            self._depths[node] = 0 if parent == TEXT else self._depths[parent] + 1
            if node not in inner:
                self._open(node, first, members)
        return self.model.decode(tokens, [self.start + depth for depth in self._depths[first:]], members, of_head=True)

    def _open(self, leaf: int, first: int, members: Sequence[list[int]]) -> None:
        """Begin a sequence that ends in ``leaf``: a copy of what was read before node ``first``, and the nodes from there on."""
        self._last += 1
        if self._last >= self.model.settings.sequences:
            what = f"a tree with more than {self._last - 1} leaves"
            raise UserError(what, remedy="draft fewer tokens, or open the model with more sequences")
        node = leaf
        while node >= first:
            members[node - first].append(self._last)
            self._sequences[node] = self._last
            node = self.parents[node]
        if node == TEXT:
            self.model.copy(0, self._last, self.start)
        else:
            self.model.copy(self._sequences[node], self._last, self.start + self._depths[node] + 1)

    def path(self, node: int) -> list[int]:
        """The nodes on the way to ``node``, itself included; none to ``TEXT``."""
        nodes = []
        while node != TEXT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def keep(self, node: int = TEXT) -> None:
        """Let the cached text end with ``node``, and forget every other node. This ends the tree."""
        if node != TEXT:
            self.model.copy(self._sequences[node], 0, self.start + self._depths[node] + 1)
        self.model.drop_branches()
        self.model.tokens += [self.tokens[kept] for kept in self.path(node)]
