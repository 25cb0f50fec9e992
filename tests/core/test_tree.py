"""Token trees: their shapes, the static optimum, and verification of their nodes, exactly, over every set of drafted tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from draftlab.conformance import sequences
from draftlab.core.tree import Tree, optimal_tree
from draftlab.core.verify import TOKEN_VERIFIERS
from draftlab.core.verify.joint import joint_distribution
from draftlab.core.verify.sequence import sequences_distribution
from draftlab.core.verify.token import TokenVerifier
from draftlab.errors import UserError

Context = tuple[int, ...]

SHAPES = {
    "delayed": Tree.of_widths((1, 2)),
    "of unequal depths": Tree.of_parents([-1, 0, 1, 0]),
    "binary": Tree.of_widths((2, 2)),
    "a leaf first": Tree.of_parents([-1, 0, 0, 2]),
}


def drafted(
    tree: Tree, draft: dict[Context, Tensor], verifier: TokenVerifier
) -> list[tuple[dict[int, Context], float]]:
    """Every way to draft the nodes, with its probability: the tokens up to each node; the children of a node are drafted together."""
    ways: list[tuple[dict[int, Context], float]] = [({0: ()}, 1.0)]
    for node in range(tree.nodes):
        children = [child for child in range(1, tree.nodes) if int(tree.parents[child]) == node]
        if not children:
            continue
        more = []
        for known, chance in ways:
            joint = joint_distribution(draft[known[node]].expand(len(children), -1), verifier.drafting)
            for tokens, share in zip(joint.tokens.tolist(), joint.probs.tolist(), strict=True):
                grown = {child: (*known[node], token) for child, token in zip(children, tokens, strict=True)}
                more.append((known | grown, chance * share))
        ways = more
    return ways


def kept_on_average(tree: Tree, acceptance: Sequence[Sequence[float]]) -> float:
    """The drafted tokens accepted on average: the sum over nodes of the probability that all on the path to the node are accepted."""
    chances = torch.tensor([1.0, *[0.0] * (tree.nodes - 1)], dtype=torch.float64)
    for leaf, depth in tree.is_drawn.T.nonzero()[:, [1, 0]].tolist():
        parent, node = tree.paths[leaf, depth : depth + 2].tolist()
        chances[node] = chances[parent] * acceptance[depth][int(tree.child_number[leaf, depth])]
    return float(chances.sum() - 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "name", ["single", "specinfer", "k_seq", "optimal", "rrs", "greedy", "sampled", "ranked", "gls"]
)
def test_a_tree_emits_the_targets_distribution(name: str, shape: str) -> None:
    tree, verifier, vocab = SHAPES[shape], TOKEN_VERIFIERS[name], 2 if shape == "binary" else 3
    models, length = sequences._models("iid", vocab, tree.depth, len(tree.paths), seed=5), tree.depth + 1
    actual = torch.zeros((vocab,) * length, dtype=torch.float64)
    for known, chance in drafted(tree, models.drafts[0], verifier):
        tokens = torch.tensor([[known[node][-1] for node in path[1:]] for path in tree.paths.tolist()])
        for emitted, share in sequences_distribution(verifier, *models.along(tokens), tokens, tree).items():
            # The target completes shorter outputs; every text then has the target's probability.
            actual[emitted] += chance * share * models.continuation(emitted, length - len(emitted))
    torch.testing.assert_close(actual, models.continuation((), length), rtol=0, atol=1e-12)


def test_equal_beginnings_are_one_node() -> None:
    tree = Tree.of_widths((3, 1)).merged(torch.tensor([[[5, 6], [5, 7], [5, 6]], [[1, 1], [2, 1], [3, 3]]]))
    assert tree.paths.tolist() == [[[0, 1, 2], [0, 1, 3], [0, 1, 2]], [[0, 1, 2], [0, 3, 4], [0, 5, 6]]]
    assert tree.nodes == 7
    assert tree.depths[0, :4].tolist() == [0, 1, 2, 2]
    assert tree.attention_mask[1, 4].nonzero()[:, 0].tolist() == [0, 3, 4]
    uneven = Tree.of_parents([-1, 0, 0, 2]).merged(torch.tensor([[[5, 5], [5, 5]], [[5, 5], [4, 5]]]))
    assert uneven.paths.tolist() == [[[0, 1, 1], [0, 1, 2]], [[0, 1, 1], [0, 2, 3]]]
    assert Tree.of_parents([-1, 0, 1, 0]).merged(torch.tensor([[[5, 6], [7, 7]]])).paths.tolist() == [
        [[0, 1, 2], [0, 3, 3]]
    ]
    assert Tree.of_widths((1, 1, 3, 1)).widths == [1, 1, 3, 1]


def test_the_static_optimum_is_the_best_of_all_trees() -> None:
    """Against every tree with the same number of nodes; a later child may have a higher acceptance."""
    acceptance = [[0.5, 0.3, 0.1], [0.2, 0.6], [0.7]]
    for nodes in range(1, 7):
        every = []
        for parents in itertools.product(*(range(node) for node in range(1, nodes + 1))):
            tree = Tree.of_parents([-1, *parents])
            fits = tree.depth <= 3 and all(w <= len(a) for w, a in zip(tree.widths, acceptance, strict=False))
            every.append(kept_on_average(tree, acceptance) if fits else 0.0)
        tree = optimal_tree(acceptance, nodes)
        assert tree.nodes - 1 == nodes
        assert kept_on_average(tree, acceptance) == pytest.approx(max(every))


def test_the_static_optimum_of_many_tokens() -> None:
    assert optimal_tree([[0.5 / child for child in range(1, 601)]], 600).widths == [600]
    assert optimal_tree([[0.9]] * 600, 600).depth == 600


def test_what_makes_no_tree_is_refused() -> None:
    for parents in ([-1], [-1, 2, 0], [-1, 0, -1]):
        with pytest.raises(UserError, match="do not form a tree"):
            Tree.of_parents(parents)
    for widths in ((), (2, 0)):
        with pytest.raises(UserError, match="the tree has widths"):
            Tree.of_widths(widths)
    with pytest.raises(UserError, match="a tree of 0 tokens"):
        optimal_tree([[0.5]], 0)
