"""Token trees: drafted sequences with shared beginnings, of which a model reads each token once, in one pass."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from draftlab.errors import UserError


@dataclass(frozen=True, eq=False)
class Tree:
    """One tree, or one for each request of a batch: the nodes on the path to each leaf, from node 0, the known token at the root.

    Each leaf is one drafted sequence; a shorter sequence repeats its last node. The drafts after a node are its children, ordered by their first
    leaves. Tables of leaves by depth describe, at `[leaf, d]`, the node ``paths[leaf, d + 1]``.

    >>> tree = Tree.of_parents([-1, 0, 0, 2, 2])  # node 1 is a leaf, node 2 has two children
    >>> tree.paths.tolist(), tree.exists.tolist()
    ([[0, 1, 1], [0, 2, 3], [0, 2, 4]], [[True, False], [True, True], [True, True]])
    >>> tree.drawn_by.tolist(), tree.child_number.tolist()
    ([[0, 0], [1, 1], [1, 2]], [[0, 0], [1, 0], [1, 1]])
    """

    paths: Int64[Tensor, "*batch leaves depth+1"]

    @classmethod
    def of_parents(cls, parents: Sequence[int]) -> Tree:
        """The tree with this parent of each node, which must be an earlier node; the entry of node 0 is ignored."""
        late = [node for node in range(1, len(parents)) if not 0 <= parents[node] < node]
        if late or len(parents) < 2:
            raise UserError(
                f"the parents {list(parents)} do not form a tree of drafted tokens",
                remedy="give 2 or more nodes, each after its parent",
            )
        paths = [[0]]
        for node in range(1, len(parents)):
            paths.append([*paths[parents[node]], node])
        leaves = [path for node, path in enumerate(paths) if node not in parents[1:]]
        longest = max(map(len, leaves))
        return cls(torch.tensor([path + path[-1:] * (longest - len(path)) for path in sorted(leaves)]))

    @classmethod
    def of_widths(cls, widths: Sequence[int]) -> Tree:
        """The tree in which every node at depth d - 1 has ``widths[d]`` children (Cai et al. 2024, section 2.1.2); nodes are numbered by depth."""
        if not widths or min(widths) < 1:
            raise UserError(f"the tree has widths {list(widths)}", remedy="give 1 or more guesses for each depth")
        parents, last = [-1], [0]
        for width in widths:
            begin = len(parents)
            parents += [node for node in last for _ in range(width)]
            last = list(range(begin, len(parents)))
        return cls.of_parents(parents)

    def merged(self, tokens: Int64[Tensor, "batch leaves depth"]) -> Tree:
        """The tree of each request, given its tokens: nodes that were drawn separately become one if they have equal tokens on equal paths."""
        exists = self.exists[..., : tokens.shape[-1]].to(tokens.device).expand(tokens.shape)
        equal = (tokens[:, :, None] == tokens[:, None]) & exists[:, :, None] & exists[:, None]
        first = equal.cumprod(-1).argmax(2)  # the first leaf with the same tokens down to each depth
        is_node = exists & (first == torch.arange(tokens.shape[1], device=tokens.device)[:, None])
        number = is_node.flatten(1).cumsum(-1).view(is_node.shape).gather(1, first)
        paths = [torch.zeros_like(tokens[..., 0])]
        for depth in range(tokens.shape[-1]):
            paths.append(number[..., depth].where(exists[..., depth], paths[-1]))
        return Tree(torch.stack(paths, -1))

    @property
    def depth(self) -> int:
        """The number of tokens of the longest sequence."""
        return self.paths.shape[-1] - 1

    @property
    def leaves(self) -> int:
        """The number of drafted sequences."""
        return self.paths.shape[-2]

    @functools.cached_property
    def nodes(self) -> int:
        """The number of nodes, node 0 included; in a batch, of the largest tree."""
        return int(self.paths.max()) + 1

    @property
    def widths(self) -> list[int]:
        """The largest number of children of a node, by depth."""
        return [int(number) + 1 for number in self.child_number.flatten(0, -2).amax(0)]

    @functools.cached_property
    def attention_mask(self) -> Bool[Tensor, "*batch nodes nodes"]:
        """Entry [i, j] is True if node j is node i or one of its ancestors."""
        paths = self.paths.view(-1, self.leaves, self.depth + 1)
        mask = torch.zeros(len(paths), self.nodes, self.nodes, dtype=torch.bool, device=paths.device)
        rows = torch.arange(len(paths), device=paths.device)[:, None, None]
        for depth in range(self.depth + 1):
            mask[rows, paths[:, :, depth, None], paths[:, :, : depth + 1]] = True
        return mask.view(*self.paths.shape[:-2], self.nodes, self.nodes)

    @functools.cached_property
    def depths(self) -> Int64[Tensor, "*batch nodes"]:
        """The distance of each node from node 0."""
        return (self.attention_mask.sum(-1) - 1).clamp_min(0)

    @functools.cached_property
    def parents(self) -> Int64[Tensor, "*batch nodes"]:
        """The parent of each node; node 0 is its own parent."""
        parents = torch.zeros(*self.paths.shape[:-2], self.nodes, dtype=torch.int64, device=self.paths.device)
        steps = [nodes.where(self.exists, 0).flatten(-2) for nodes in (self.paths[..., 1:], self.paths[..., :-1])]
        return parents.scatter_(-1, *steps)

    @functools.cached_property
    def token_index(self) -> Int64[Tensor, "*batch nodes-1"]:
        """For each node except node 0, the index of its token in the leaves' sequences, flattened."""
        along = self.paths[..., 1:].flatten(-2)
        node = torch.arange(1, self.nodes, device=along.device)
        return (along[..., None, :] == node[:, None]).int().argmax(-1)

    @functools.cached_property
    def exists(self) -> Bool[Tensor, "*batch leaves depth"]:
        """Whether each sequence has a token at each depth."""
        return self.paths[..., 1:] != self.paths[..., :-1]

    @functools.cached_property
    def drawn_by(self) -> Int64[Tensor, "*batch leaves depth"]:
        """The first leaf below each token's node: its sequence drew the token, and the others share it."""
        nodes = self.paths[..., 1:]
        return (nodes[..., :, None, :] == nodes[..., None, :, :]).int().argmax(-2)

    @functools.cached_property
    def is_drawn(self) -> Bool[Tensor, "*batch leaves depth"]:
        """Whether each sequence drew its token itself."""
        return self.exists & (self.drawn_by == torch.arange(self.leaves, device=self.paths.device)[:, None])

    @functools.cached_property
    def child_number(self) -> Int64[Tensor, "*batch leaves depth"]:
        """The number of each node among the children of its parent, from 0: so many of them were drawn by earlier leaves."""
        parent = self.paths[..., :-1]
        is_earlier = torch.ones(self.leaves, self.leaves, dtype=torch.bool, device=parent.device).tril(-1)[..., None]
        is_sibling = (parent[..., :, None, :] == parent[..., None, :, :]) & self.is_drawn[..., None, :, :]
        return (is_sibling & is_earlier).sum(-2).gather(-2, self.drawn_by)


def optimal_tree(acceptance: Sequence[Sequence[float]], nodes: int) -> Tree:
    """The tree whose accepted tokens are most on average (Chen et al. 2024, Sequoia, arXiv 2402.12374), by dynamic programming.

    **Arguments:**
    - `acceptance`: entry `[d][i]` is the probability that the i-th child at depth d is the accepted one, given that its parent is accepted.
    - `nodes`: number of drafted tokens.
    """
    if nodes < 1 or not acceptance or not all(acceptance):
        raise UserError(f"a tree of {nodes} tokens over {len(acceptance)} depths", remedy="give 1 or more of both")

    # From the last child of the last depth to the first: the most tokens accepted if ``left`` are drafted below an accepted node, from this child
    # on, and how many of them belong to this child. Children are drawn in order, so there is no later child without this one.
    below = np.zeros(nodes + 1)
    takes: list[list[np.ndarray]] = []
    for shares in reversed(acceptance):
        most = np.zeros(nodes + 1)
        takes.insert(0, [np.zeros(nodes + 1, dtype=int)])  # after the last child
        for share in reversed(shares):
            own, later, take = share * (1 + below[:-1]), most, np.zeros(nodes + 1, dtype=int)
            most = np.zeros(nodes + 1)
            for left in range(1, nodes + 1):
                splits = own[:left][::-1] + later[:left]  # left, left - 1, ... 1 of them belong to this child
                take[left] = left - splits.argmax()
                most[left] = splits.max()
            takes[0].insert(0, take)
        below = most

    parents = [-1]
    planned = [(0, 0, 0, nodes)]
    while planned:
        parent, depth, child, left = planned.pop()
        own_nodes = int(takes[depth][child][left]) if depth < len(takes) else 0
        if own_nodes:
            parents.append(parent)
            planned += [(parent, depth, child + 1, left - own_nodes), (len(parents) - 1, depth + 1, 0, own_nodes - 1)]
    return Tree.of_parents(parents)
