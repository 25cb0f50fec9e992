"""Trees of tokens that follow from the text before them, along texts of the target, computed exactly from the draft alone.

The drafted tokens are not random, so the best verifier draws the target's token and looks for it among the children (``sampled``). Each
node is accepted with the probability of its text. A block keeps the longest path of the text through its tree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from draftlab.core.sampling import Sampling
from draftlab.core.tree import Tree
from draftlab.engine.confidence import grow
from draftlab.engine.replay import ahead
from draftlab.engine.replay_lengths import prefill_everywhere
from draftlab.engine.settings import BRANCHED
from draftlab.models import LanguageModel, TokenIds


def rank_in(
    order: Int64[Tensor, "positions children"], token: Int64[Tensor, " positions"]
) -> Int64[Tensor, " positions"]:
    """The place of each written token in the ``order`` of the draft's children, or their number where it is none of them.

    Tokens of equal logits, which are common in bfloat16, have different places.

    >>> rank_in(torch.tensor([[4, 2], [4, 2]]), torch.tensor([2, 3]))
    tensor([1, 2])
    """
    found = order == token[:, None]
    return found.int().argmax(-1).where(found.any(-1), order.shape[1])


def ranked_tree(tree: Tree, rank: Int64[np.ndarray, " positions"]) -> Float64[np.ndarray, "positions depth+1"]:
    """Whether the first i tokens of a block are accepted, for a block at each position; child i of a node is the draft's i-th most probable token.

    **Arguments:**
    - `rank`: how many tokens come before the written token if they are ordered by the draft's probability (`rank_in`).

    >>> ranked_tree(Tree.of_parents([-1, 0, 0, 2]), np.array([1, 0, 7]))
    array([[1., 1., 1.],
           [1., 1., 0.],
           [1., 0., 0.]])
    """
    child = np.full((tree.nodes + 1, tree.nodes + 1), tree.nodes)  # the last row and column: outside the tree
    for node in range(1, tree.nodes):
        parent = int(tree.parents[node])
        child[parent, (child[parent] < tree.nodes).sum()] = node
    at, accepted = np.zeros(len(rank), dtype=np.int64), [np.ones(len(rank))]
    for depth in range(tree.depth):
        at = child[at, ahead(rank, depth).clip(max=tree.nodes)]
        accepted.append((at < tree.nodes).astype(float))
    return np.stack(accepted, 1)


@torch.inference_mode()
def confident_trees(
    draft: LanguageModel,
    prompts: TokenIds,
    answers: TokenIds,
    sampling: Sampling,
    *,
    nodes: Sequence[int],
    depth: int,
    width: int,
) -> list[Bool[np.ndarray, "positions depth"]]:
    """The same for the trees that the draft is most confident of (`ConfidentTree`): one tree for each number of ``nodes``."""
    decoder, agreements = draft.decoder(), list[list[np.ndarray]]()
    for prompt, answer, places in _parts(prompts, answers, width):
        count = len(places)
        cache, token = prefill_everywhere(decoder, prompt, answer, depth, places)
        padded = torch.tensor([*answer, *[-1] * depth][places.start :], device=draft.device)
        agrees = torch.ones(count, 1, dtype=torch.bool, device=draft.device)
        values, written = list[torch.Tensor](), list[torch.Tensor]()  # of all texts, and of the answer's text, by depth
        numbers = list[torch.Tensor]()  # of the answer's text among all texts, by depth
        logits = cache.extend(token[:, None])[:, 0]
        for before, level in enumerate(grow(cache, logits, sampling, depth, width)):
            agrees = agrees.gather(1, level.parent) & (level.token == padded[before : before + count, None])
            numbers.append(sum(known.shape[1] for known in values) + agrees.int().argmax(1))
            values.append(level.value)
            written.append((level.value * agrees).amax(1))
        every, by_depth = torch.cat(values, 1)[:, None], torch.stack(written, 1)
        # Of two texts of one value the shorter comes first: a child may be as probable as its parent.
        is_earlier = torch.arange(every.shape[-1], device=every.device) < torch.stack(numbers, 1)[..., None]
        better = ((every > by_depth[..., None]) | ((every == by_depth[..., None]) & is_earlier)).sum(-1)
        agreements.append([((by_depth > 0) & (better < number)).cpu().numpy() for number in nodes])
    return [np.concatenate(parts) for parts in zip(*agreements, strict=True)]


def _parts(prompts: TokenIds, answers: TokenIds, width: int) -> Iterator[tuple[Sequence[int], Sequence[int], range]]:
    """Each prompt and answer with some of its places, as many as fit a cache, but at least one."""
    for prompt, answer in zip(prompts, answers, strict=True):
        size = max(1, BRANCHED // (width * (len(prompt) + len(answer))))
        for begin in range(0, len(answer), size):
            yield prompt, answer, range(begin, min(begin + size, len(answer)))
