"""Speculative decoding of one request in llama.cpp with a tree of drafted tokens for each block, lossless at every temperature.

The tree has the texts that the draft is most confident of (``core.confident_tree``). The target chooses or samples its own token after each node, and
goes on where the tree has that token. So the text is that of plain decoding with the same random numbers.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32

from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.sampling_numpy import GREEDY, Sampling, draw, to_probs
from draftlab.engine.loop import Verification
from draftlab.errors import UserError
from draftlab.latency.cost_aware import AtLeast, Rule
from draftlab.latency.loop import Block, Generation, crop, generate, start, unread
from draftlab.models.backend import LatencyBackend, Logits, argmax, check_pair
from draftlab.models.llama_branches import TEXT, Branches
from draftlab.models.llama_cpp import LlamaCpp
from draftlab.models.ngrams import Ngrams


def speculate_with_trees(
    target: LatencyBackend,
    draft: LatencyBackend,
    prompt: Sequence[int],
    max_new_tokens: int,
    tree: ConfidentTree,
    *,
    sampling: Sampling = GREEDY,
    rng: np.random.Generator | None = None,
    eos: Collection[int] = (),
    rule: Rule | None = None,
    lookup: LookedUp | None = None,
) -> Generation:
    """``loop.speculate`` with a tree for each block, of the texts that the ``rule`` wants (all of them if it is None).

    With ``lookup``, a block is what prompt lookup finds, as far as the rule wants it, and else a tree. A block's ``drafted`` counts all nodes.
    ``UserError`` on another engine, or if a model has too few sequences (``sequences_for``).
    """
    check_pair(target, draft)
    if not (isinstance(target, LlamaCpp) and isinstance(draft, LlamaCpp)):
        raise UserError("trees are drafted and read by models in llama.cpp", remedy="set backend to llama_cpp")
    text, rng = start([target, draft], prompt, max_new_tokens), rng or np.random.default_rng(0)
    pair = TreePair(target, draft, text, tree, sampling, rng, rule or AtLeast(0.0), lookup)
    return generate((target, draft), pair, max_new_tokens, eos)


def sequences_for(tree: ConfidentTree) -> int:
    """How many sequences a model needs to read such trees: one for the text, and one for each leaf of each call.

    >>> sequences_for(ConfidentTree(nodes=8, depth=4, width=2))
    9
    """
    return 1 + max(tree.nodes, tree.width * (tree.depth - 1))


class LookedUp:
    """How often a token that prompt lookup finds is right, by how many before it were right in a row: the more, the more often.

    It is counted along the text, whether the tokens were drafted or not.

    >>> lookup = LookedUp()
    >>> lookup.values(2)
    [0.5, 0.25]
    >>> for found, token in ((7, 7), (8, 9)):
    ...     lookup.learn(found, token)
    >>> lookup.values(2)  # two of three with the first guesses, and one of three after a right one
    [0.6666666666666666, 0.2222222222222222]
    """

    MOST = 4
    """Right tokens in a row from which on more of them make no difference."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self._right, self._judged = [1.0] * (self.MOST + 1), [2.0] * (self.MOST + 1)

    def values(self, tokens: int) -> list[float]:
        """The probability that the next 1, 2, ... tokens are right if lookup finds them."""
        places = [min(self.in_a_row + number, self.MOST) for number in range(tokens)]
        return list(itertools.accumulate((self._right[at] / self._judged[at] for at in places), operator.mul))

    def learn(self, found: int | None, token: int) -> None:
        """Compare what was found, if anything, with the token of the text."""
        if found is not None:
            place = min(self.in_a_row, self.MOST)
            self._judged[place] += 1
            self._right[place] += found == token
        self.in_a_row = self.in_a_row + 1 if found == token else 0


class DraftedTree(NamedTuple):
    """Nodes of a tree, each after its parent, and the number that each has where the draft read it (``TEXT``: it did not).

    ``calls``: of the draft.
    """

    tokens: list[int]
    parents: list[int]
    read_as: list[int]
    calls: int


@dataclass
class TreePair:
    """The pair of the loop (``engine.loop.DecodingPair``) for a single request. Between blocks the target has cached all but the last token."""

    target: LlamaCpp
    draft: LlamaCpp
    text: list[int]
    tree: ConfidentTree
    sampling: Sampling
    rng: np.random.Generator
    rule: Rule
    lookup: LookedUp | None
    drafted: int = 0
    calls: int = 0
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.reading: Branches | None = None
        self.seen = Ngrams(self.text if self.lookup else ())
        if self.lookup:
            self.lookup.in_a_row = 0

    def propose(self, left: Sequence[int]) -> DraftedTree:
        """Look up what follows the text, or grow a tree below it with one call of the draft for each depth."""
        self.drafted = self.calls = 0
        room = min(self.target.context_length, self.draft.context_length) - len(self.text)
        if room < max(self.tree.nodes, self.tree.width * self.tree.depth):
            return DraftedTree([], [], [], 0)
        if self.lookup and (found := self.look_up(self.lookup)):
            self.drafted = len(found)
            return DraftedTree(found, [TEXT, *range(len(found) - 1)], [TEXT] * len(found), 0)
        if not self.rule.asks():
            return DraftedTree([], [], [], 0)
        logits = self.draft.predict(unread(self.draft, self.text))
        self.growing = Branches(self.draft)
        grown = grow(self.growing, logits[None], self.tree, self.sampling.temperature or 1.0, self.rule)
        self.drafted, self.calls = len(grown.tokens), grown.calls
        return grown

    def look_up(self, lookup: LookedUp) -> list[int]:
        """What prompt lookup finds, as far as the rule wants it."""
        found = list[int]()
        while len(found) < min(self.tree.nodes, self.tree.depth) and (token := self.seen.guess) is not None:
            found.append(token)
            self.seen.append(token)
        self.seen.trim(len(self.text))
        return found[: self.rule.count(lookup.values(len(found)))]

    def read(self, proposal: DraftedTree) -> Logits:
        """The target's logits after the last known token and after each node."""
        tokens, parents = [self.text[-1], *proposal.tokens], [TEXT, *(parent + 1 for parent in proposal.parents)]
        self.reading = None
        if parents == [*range(TEXT, len(parents) - 1)]:  # a sequence, or nothing: the target needs no branches
            return self.target.extend(tokens)
        self.reading = Branches(self.target)
        return self.reading.read(tokens, parents)

    def verify(self, proposal: DraftedTree, reading: Logits) -> Verification:
        children = {edge: node for node, edge in enumerate(zip(proposal.parents, proposal.tokens, strict=True))}
        path, node = list[int](), -1
        while True:
            token = self._next(reading[node + 1])
            child = children.get((node, token))
            if child is None:
                break
            path.append(child)
            node = child
        self.kept = node + 1
        self.draft_kept = max((proposal.read_as[node] for node in path), default=TEXT)
        followed = [proposal.tokens[node] for node in path]
        rejected = [one for (parent, one) in children if parent == node][:1]
        return Verification([followed + rejected], [0], [len(path)], [token])

    def _next(self, logits: Float32[np.ndarray, " vocab"]) -> int:
        if self.sampling.temperature == 0:
            return int(argmax(logits[None])[0])
        return draw(to_probs(logits, self.sampling), self.rng)

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        (accepted,), (path,) = verification.accepted, verification.drafted
        self.text += [*path[:accepted], verification.token[0]]
        judged = min(accepted + 1, len(path))
        if self.reading:
            self.reading.keep(self.kept)
        else:
            crop((self.target,), len(self.text) - 1)
        if self.calls > 1:  # with one call the draft has read nothing but the text
            self.growing.keep(self.draft_kept)
        if self.lookup:
            for token in self.text[len(self.seen.tokens) :]:
                self.lookup.learn(self.seen.guess, token)
                self.seen.append(token)
        self.rule.learn(self.calls, self.drafted, judged, accepted)


def grow(
    below: Branches, logits: Float32[np.ndarray, "1 outputs"], tree: ConfidentTree, temperature: float, rule: Rule
) -> DraftedTree:
    """The tree that a draft is most confident of below its text, after which a first call gave these logits.

    A text can only be followed by texts of lower value, so one that is not among the best so far is not read.
    """
    head = below.model.head
    values, tokens, parents, read_as = list[float](), list[int](), list[int](), list[int]()
    level, best, calls = [(TEXT, 1.0)], list[int](), 1
    for depth in range(tree.depth):
        begin = len(values)
        for (parent, value), row in zip(level, logits, strict=True):
            for token, chance in most_probable(row, tree.width, temperature):
                if value * chance > 0:
                    values.append(value * chance)
                    tokens.append(token if head is None else int(head.kept[token]))
                    parents.append(parent)
                    read_as.append(TEXT)
        best = sorted(range(len(values)), key=lambda text: -values[text])[: tree.nodes]  # of equal ones, the shorter
        best = best[: rule.count([values[text] for text in best])]
        chosen = [text for text in best if text >= begin][: tree.width]
        if depth + 1 == tree.depth or not chosen or not rule.deeper([values[text] for text in chosen], len(best)):
            break
        first, calls = len(below.tokens), calls + 1
        logits = below.read(
            [tokens[text] for text in chosen],
            [TEXT if parents[text] == TEXT else read_as[parents[text]] for text in chosen],
        )
        for place, text in enumerate(chosen):
            read_as[text] = first + place
        level = [(text, values[text]) for text in chosen]
    nodes = sorted(best)
    number = {TEXT: TEXT} | {text: node for node, text in enumerate(nodes)}
    columns = (
        [tokens[text] for text in nodes],
        [number[parents[text]] for text in nodes],
        [read_as[text] for text in nodes],
    )
    return DraftedTree(*columns, calls)


def most_probable(logits: Float32[np.ndarray, " outputs"], count: int, temperature: float) -> list[tuple[int, float]]:
    """The ``count`` outputs of highest probability at this temperature, with their probabilities, the first one first.

    At temperature 1 in float32: ``to_probs`` takes five times as long over a vocabulary of 49,152 tokens.
    """
    count = min(count, len(logits))
    (best,) = argmax(logits[None])
    top = np.argpartition(logits, -count)[-count:]
    top = top[np.lexsort((top, -logits[top]))]
    below = logits - logits[best]
    if temperature != 1:
        with np.errstate(over="ignore"):  # at a tiny temperature all but the largest become -inf
            below = below.astype(np.float64) / temperature
    weights = np.exp(below)
    return [(int(token), float(chance)) for token, chance in zip(top, weights[top] / weights.sum(), strict=True)]
