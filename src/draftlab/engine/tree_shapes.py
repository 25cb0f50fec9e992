"""Shapes of drafted trees, each with its verifier, and the blocks into which they cut texts of the target.

All shapes draft equally many tokens for a call of the target. A new shape is a function here and a line in ``SHAPES``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.sampling import Sampling, restrict_pair, to_probs
from draftlab.core.tree import Tree, optimal_tree
from draftlab.core.verify.optimal import optimal
from draftlab.core.verify.optimum import optimum_iid
from draftlab.core.verify.rrs import rrs
from draftlab.engine.replay_drafts import Blocks, Survival, Texts, blocks, count_blocks, survival
from draftlab.engine.replay_drafts import ceiling as ceiling_of
from draftlab.engine.replay_trees import confident_trees, rank_in, ranked_tree
from draftlab.errors import UserError
from draftlab.models import LanguageModel, TokenIds

Sampled = tuple[LanguageModel, Sampling]
"""A model, and how its tokens are drawn."""


@dataclass(frozen=True)
class RecordedTexts:
    """Texts of the target, and what shapes ask about them; each answer is computed once.

    ``sizes`` are all numbers of drafted tokens that a shape may be asked for, ``depth`` is the longest path of a tree. A tree by confidence
    extends ``width`` texts at each depth.
    """

    texts: Texts
    prompts: TokenIds
    target: Sampled
    draft: Sampled
    sizes: Sequence[int]
    depth: int
    width: int

    @functools.cached_property
    def agreeing(self) -> Survival:
        """How many i.i.d. drafts of the largest tree agree with the text under the optimal verifier."""
        most = max(max(nodes // self.depth, after_trunk(nodes, self.depth)[1]) for nodes in self.sizes)
        return survival([optimal], self.texts, [self.draft[1]], (most,))[0]

    @functools.cached_property
    def rank(self) -> Int64[np.ndarray, " positions"]:
        """How many tokens the draft finds more probable than the written one."""
        return rank_in(self._ranked, self.texts.token).cpu().numpy()

    @functools.cached_property
    def chance(self) -> list[float]:
        """How often the target writes the draft's i-th most probable token."""
        means: list[float] = self.texts.target_probs.gather(-1, self._ranked).mean(0).tolist()
        return means

    @functools.cached_property
    def _ranked(self) -> Int64[Tensor, "positions children"]:
        return self.texts.draft_logits.topk(max(self.sizes), -1).indices

    @functools.cached_property
    def distributions(self) -> tuple[Float64[Tensor, "positions tokens"], Float64[Tensor, "positions tokens"]]:
        """Those of the target and the draft, on the tokens that either can write."""
        return restrict_pair(self.texts.target_probs, to_probs(self.texts.draft_logits, self.draft[1]))

    @functools.cached_property
    def by_draft(self) -> dict[int, Blocks]:
        """The blocks of the trees that the draft is most confident of, by their number of tokens."""
        return self._by_confidence(self.draft)

    @functools.cached_property
    def by_target(self) -> dict[int, Blocks]:
        """The same for the trees that the target itself is most confident of."""
        return self._by_confidence(self.target)

    def _by_confidence(self, of: Sampled) -> dict[int, Blocks]:
        model, sampling = of
        tokens = iter(self.texts.token.tolist())
        answers = [list(itertools.islice(tokens, count)) for count in self.texts.lengths]
        grown = confident_trees(
            model, self.prompts, answers, sampling, nodes=self.sizes, depth=self.depth, width=self.width
        )
        first = np.ones((len(self.texts.token), 1))
        return {size: self.certain(np.hstack([first, kept])) for size, kept in zip(self.sizes, grown, strict=True)}

    def certain(self, accepted: Float64[np.ndarray, "positions lengths"]) -> Blocks:
        """The blocks of trees whose tokens follow from the text, given whether the first i tokens of a block are accepted, i at most ``depth``."""
        deeper = self.depth + 1 - accepted.shape[1]
        if deeper < 0:
            what = f"a tree has paths of {accepted.shape[1] - 1} tokens, and draft_len is {self.depth}"
            raise UserError(
                what, remedy="let its shape draft at most `along.depth` tokens on a path, or raise draft_len"
            )
        return count_blocks(np.pad(accepted, ((0, 0), (0, deeper))), np.asarray(self.texts.lengths))


def sequences(along: RecordedTexts, nodes: int) -> Blocks:
    """Sequences that share nothing."""
    return blocks(along.agreeing, along.texts.lengths, (nodes // along.depth,), along.depth)


def without_replacement(along: RecordedTexts, nodes: int) -> Blocks:
    """Sequences whose first tokens are distinct."""
    drafts = nodes // along.depth
    (survived,) = survival([rrs], along.texts, [along.draft[1]], (drafts,))
    return blocks(survived, along.texts.lengths, (drafts,), along.depth)


def delayed(along: RecordedTexts, nodes: int) -> Blocks:
    """One sequence that branches after a few tokens."""
    trunk, branches = after_trunk(nodes, along.depth)
    widths = (*[1] * trunk, branches, *[1] * (along.depth - trunk - 1))
    return blocks(along.agreeing, along.texts.lengths, (1,), along.depth, widths=widths)


def top_k(along: RecordedTexts, nodes: int) -> Blocks:
    """The K most probable first tokens, and the most probable text after each."""
    widths = (nodes // along.depth, *[1] * (along.depth - 1))
    return along.certain(ranked_tree(Tree.of_widths(widths), along.rank))


def sequoia(along: RecordedTexts, nodes: int) -> Blocks:
    """The best tree of one shape, given how often each child is the accepted one."""
    tree = optimal_tree([along.chance[:nodes]] * along.depth, nodes)
    return along.certain(ranked_tree(tree, along.rank))


def confidence(along: RecordedTexts, nodes: int) -> Blocks:
    """The texts that the draft finds most probable, chosen anew for each block (EAGLE-2)."""
    return along.by_draft[nodes]


def oracle(along: RecordedTexts, nodes: int) -> Blocks:
    """The texts that the target itself finds most probable."""
    return along.by_target[nodes]


def ceiling(along: RecordedTexts, nodes: int) -> Blocks:
    """What no verifier of the sequences can exceed."""
    drafts = nodes // along.depth
    best = optimum_iid(*along.distributions, drafts).cpu().numpy()
    return ceiling_of(along.agreeing, best, along.texts.lengths, drafts, along.depth)


def after_trunk(nodes: int, depth: int) -> tuple[int, int]:
    """The shortest trunk (at least 1 token) after which the remaining tokens form whole sequences, and how many sequences.

    >>> after_trunk(8, depth=4)
    (2, 3)
    """
    trunk = next(trunk for trunk in itertools.count(1) if (nodes - trunk) % (depth - trunk) == 0)
    return trunk, (nodes - trunk) // (depth - trunk)


@dataclass(frozen=True)
class Shape:
    """How each node is verified, and the blocks that trees of ``nodes`` tokens cut the texts into."""

    scheme: str
    blocks: Callable[[RecordedTexts, int], Blocks]


SHAPES: dict[str, Shape] = {
    "sequences": Shape("optimal", sequences),
    "without replacement": Shape("rrs", without_replacement),
    "delayed": Shape("optimal", delayed),
    "top_k": Shape("sampled", top_k),
    "sequoia": Shape("sampled", sequoia),
    "confidence": Shape("sampled", confidence),
    "oracle": Shape("sampled", oracle),
    "ceiling": Shape("none", ceiling),
}
