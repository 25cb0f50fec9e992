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
    leaves.
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

    @classmethod
    def delayed(cls, num_drafts: int, draft_len: int, trunk: int = 0) -> Tree:
        """K sequences that share their first ``trunk`` tokens and then branch; 0: they share nothing."""
        if not 0 <= trunk < draft_len:
            raise UserError(
                f"{trunk} of {draft_len} tokens are shared", remedy="let the sequences branch before they end"
            )
        return cls.of_widths([1] * trunk + [num_drafts] + [1] * (draft_len - trunk - 1))

    def merged(self, tokens: Int64[Tensor, "batch leaves depth"]) -> Tree:
        """The tree of each request, given its tokens: nodes that were drawn separately become one if they have equal tokens on equal paths."""
        exists = self.exists[..., : tokens.shape[-1]].to(tokens.device).expand(tokens.shape)
        alike = (tokens[:, :, None] == tokens[:, None]) & exists[:, :, None] & exists[:, None]
        first = alike.cumprod(-1).argmax(2)
        is_new = exists & (first == torch.arange(tokens.shape[1], device=tokens.device)[:, None])
        number = is_new.flatten(1).cumsum(-1).view(is_new.shape).gather(1, first)
        nodes = [torch.zeros_like(tokens[..., 0])]
        for depth in range(tokens.shape[-1]):
            nodes.append(number[..., depth].where(exists[..., depth], nodes[-1]))
        return Tree(torch.stack(nodes, -1))

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
        return [int(number) + 1 for number in self.siblings.flatten(0, -2).amax(0)]

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
        before, after = self.paths[..., :-1].flatten(-2), self.paths[..., 1:].flatten(-2)
        moved = before != after
        return parents.scatter_(-1, after.where(moved, 0), before.where(moved, 0))

    @functools.cached_property
    def token_index(self) -> Int64[Tensor, "*batch nodes-1"]:
        """For each node except node 0, the index of its token in the leaves' sequences, flattened."""
        flat = self.paths[..., 1:].flatten(-2)
        numbers = torch.arange(1, self.nodes, device=flat.device)
        return (flat[..., None, :] == numbers[:, None]).int().argmax(-1)

    @functools.cached_property
    def first(self) -> Int64[Tensor, "*batch leaves depth"]:
        """For each token of each sequence, the first leaf below its node: that sequence drew the token, and the others share it."""
        nodes = self.paths[..., 1:]
        return (nodes[..., :, None, :] == nodes[..., None, :, :]).int().argmax(-2)

    @functools.cached_property
    def exists(self) -> Bool[Tensor, "*batch leaves depth"]:
        """Whether each sequence has a token at each depth."""
        return self.paths[..., 1:] != self.paths[..., :-1]

    @functools.cached_property
    def is_drawn(self) -> Bool[Tensor, "*batch leaves depth"]:
        """Whether each sequence drew its token itself."""
        return self.exists & (self.first == torch.arange(self.leaves, device=self.paths.device)[:, None])

    @functools.cached_property
    def siblings(self) -> Int64[Tensor, "*batch leaves depth"]:
        """The number of each node among its siblings, from 0."""
        drawn, first = self.is_drawn, self.first
        under = torch.cat([torch.zeros_like(first[..., :1]), first[..., :-1]], -1)  # the first leaf under the parent
        number = torch.zeros_like(first)
        for leaf in range(self.leaves):
            same = (under[..., :leaf, :] == under[..., leaf, None, :]) & drawn[..., :leaf, :]
            number[..., leaf, :] = same.sum(-2)
        return number.gather(-2, first)


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
