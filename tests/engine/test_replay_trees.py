"""Trees of tokens that follow from the text: against every text there is, and against the stages that use them."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.tree import Tree
from draftlab.engine import replay_trees
from draftlab.engine.confidence import grow, grown_tree
from draftlab.engine.replay_lengths import prefill_everywhere
from draftlab.engine.replay_trees import confident_trees, rank_in, ranked_tree
from draftlab.engine.tree_shapes import RecordedTexts
from draftlab.errors import UserError
from tests.engine.test_speculate import make, near

VOCAB, DEPTH = 6, 3
DRAFT = near(make(3, vocab=VOCAB), 0.5)
HOT = Sampling(1.3)
PROMPTS, ANSWERS = [[1, 2], [3, 4, 5]], [[2, 1, 0, 3, 5, 5], [4, 4, 1]]


def values(prompt: list[int], depth: int) -> dict[tuple[int, ...], float]:
    """The draft's probability of every text of up to ``depth`` tokens."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for length in range(1, depth + 1):
        before = list(itertools.product(range(VOCAB), repeat=length - 1))
        with torch.inference_mode():
            logits = DRAFT.answer_logits([[*prompt, *text] for text in before], [[0]] * len(before))
        for text, probs in zip(before, to_probs(logits, HOT).tolist(), strict=True):
            found |= {(*text, token): found[text] * chance for token, chance in enumerate(probs)}
    del found[()]
    return found


@pytest.mark.parametrize("nodes", [1, 4, 9, 25])
def test_a_confident_tree_has_the_texts_of_highest_value(nodes: int) -> None:
    """A search wide enough to lose no text, against the values of all texts."""
    (found,) = confident_trees(DRAFT, PROMPTS, ANSWERS, HOT, nodes=[nodes], depth=DEPTH, width=VOCAB**2)
    expected = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        for place in range(len(answer)):
            every = values([*prompt, *answer[:place]], DEPTH)
            tree = set(sorted(every, key=lambda text: -every[text])[:nodes])
            after = answer[place : place + DEPTH]
            expected.append([len(after) >= i and tuple(after[:i]) in tree for i in range(1, DEPTH + 1)])
    assert found.tolist() == expected
    assert found.any()


def test_of_two_children_of_equal_logits_a_tree_has_one() -> None:
    order = torch.tensor([[1.0, 1.0, 0.0]]).topk(1, -1).indices.expand(2, -1)
    kept = ranked_tree(Tree.of_widths([1]), rank_in(order, torch.tensor([0, 1])).numpy())
    assert kept[:, 1].sum() == 1


def test_a_tree_has_no_more_nodes_than_it_may_where_children_are_certain() -> None:
    """A greedy draft gives each child the value of its parent."""
    with torch.inference_mode():
        greedy = [int(DRAFT.answer_logits([[1, 2]], [[0]])[-1].argmax())]
        while len(greedy) < DEPTH:
            greedy.append(int(DRAFT.answer_logits([[1, 2, *greedy]], [[0]])[-1].argmax()))
    found = confident_trees(DRAFT, [[1, 2]], [greedy], Sampling(0), nodes=[1, 2, DEPTH], depth=DEPTH, width=VOCAB)
    assert [tree[0].tolist() for tree in found] == [[True, False, False], [True, True, False], [True] * DEPTH]


def test_a_tree_has_no_text_that_the_draft_cannot_write() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.9, 0.04, 0.03, 0.03]]).log()
    level = grow(None, logits, Sampling(top_p=0.6), depth=1, width=4)  # one level reads nothing
    tree, tokens, _ = grown_tree([*level], nodes=4)
    assert tree.is_drawn.sum((1, 2)).tolist() == [2, 1]
    assert tokens[tree.is_drawn].tolist() == [0, 1, 0]


def test_a_narrow_search_goes_on_with_the_best_texts_alone() -> None:
    wide, narrow = (
        confident_trees(DRAFT, PROMPTS, ANSWERS, HOT, nodes=[4, 40], depth=DEPTH, width=width) for width in (VOCAB, 1)
    )
    assert (narrow[1] <= wide[1]).all()
    with torch.inference_mode():
        best = DRAFT.answer_logits(PROMPTS, ANSWERS).argmax(-1).tolist() == np.array(ANSWERS[0] + ANSWERS[1])
    assert narrow[1][:, 0].tolist() == best.tolist()
    assert wide[0].sum() < wide[1].sum()


@pytest.mark.parametrize(("top_k", "beams"), [(None, 5), (2, 4)])
def test_few_positions_at_a_time_give_the_same_trees(
    top_k: int | None, beams: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All positions of an answer at once do not fit a GPU; nor is a text extended that has no probability."""
    given, how = (DRAFT, PROMPTS, ANSWERS, Sampling(1.3, top_k)), {"nodes": [2, 9], "depth": DEPTH, "width": 5}
    expected = confident_trees(*given, **how)
    caches: list[Any] = []

    def watched(*given: Any) -> Any:
        caches.append(prefill_everywhere(*given))
        return caches[-1]

    monkeypatch.setattr(replay_trees, "prefill_everywhere", watched)
    monkeypatch.setattr(replay_trees, "BRANCHED", 5 * 8 * 4)  # four positions with five texts of eight tokens
    found = confident_trees(*given, **how)
    assert [len(cache.lengths) for cache, _ in caches] == [4 * beams, 2 * beams, 3 * beams]
    np.testing.assert_array_equal(found, expected)
    assert found[1].any()


def test_a_ranked_tree_follows_the_text_through_its_children() -> None:
    """Against a walk of each text through the parents."""
    tree = Tree.of_parents([-1, 0, 0, 1, 2, 2, 0, 5])
    rank = np.random.default_rng(0).integers(0, 4, 200)
    children: dict[int, list[int]] = {node: [] for node in range(tree.nodes)}
    for node in range(1, tree.nodes):
        children[int(tree.parents[node])].append(node)
    found = ranked_tree(tree, rank)
    for place in range(len(rank) - tree.depth):
        node: int | None = 0
        for depth in range(tree.depth):
            at = rank[place + depth]
            node = children[node][at] if node is not None and at < len(children[node]) else None
            assert found[place, depth + 1] == (node is not None)
    assert found[:, 3].any()


def test_a_tree_deeper_than_the_others_is_refused() -> None:
    along = RecordedTexts(SimpleNamespace(lengths=[4]), [], None, None, [4], depth=3, width=1)  # type: ignore[arg-type]
    rank = np.zeros(4, dtype=np.int64)
    assert along.certain(ranked_tree(Tree.of_widths([1, 1]), rank)).stopped.shape == (1, DEPTH + 1)
    with pytest.raises(UserError, match=r"a tree has paths of 4 tokens, and draft_len is 3"):
        along.certain(ranked_tree(Tree.of_widths([1] * 4), rank))
