"""The joint distribution of K drafted tokens: every tuple with its probability, for small vocabularies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from draftlab.core.sampling import Drafting, Tables, Tokens, check_drafting, check_support, greedy_tokens
from draftlab.errors import UserError

LIMIT = 1_000_000
"""The most tuples that are enumerated."""

AT_ONCE = 2**25
"""The most entries of a table over tuples that are held at once: a quarter of a GB."""

MOST_TUPLES = 5040
"""The most ordered tuples without replacement that are enumerated at each of many positions (7 tokens drafted in every order)."""

ROWS_AT_ONCE = 100_000
"""The most tuples of ``distinct_tuples`` that are held at once."""


@dataclass(frozen=True)
class JointDistribution:
    """Every tuple of drafted tokens that has positive probability."""

    tokens: Int64[Tensor, "tuples drafts"]
    probs: Float64[Tensor, " tuples"]
    vocab: int

    def parts(self) -> Iterator[tuple[Int64[Tensor, "part drafts"], Float64[Tensor, " part"]]]:
        """Tuples and their probabilities, so many at once that a table of a distribution for each draft of each has ``AT_ONCE`` entries."""
        size = max(1, AT_ONCE // (self.tokens.shape[1] * self.vocab))
        return zip(torch.split(self.tokens, size), torch.split(self.probs, size), strict=True)


def tuples_exist(vocab: int, num_drafts: int) -> bool:
    """Whether ``joint_distribution`` enumerates so many tuples."""
    return bool(vocab**num_drafts <= LIMIT)


def every_tuple(vocab: int, num_drafts: int, device: torch.device) -> Int64[Tensor, "tuples drafts"]:
    """Every tuple of drafted tokens; a ``UserError`` if there are more than a million."""
    if not tuples_exist(vocab, num_drafts):
        raise UserError(
            f"{vocab} tokens and {num_drafts} drafts make {vocab**num_drafts} tuples",
            remedy=f"at most {LIMIT} are written out: lower top_k or num_drafts, or sample",
        )
    return torch.cartesian_prod(*[torch.arange(vocab, device=device)] * num_drafts).view(-1, num_drafts)


def joint_distribution(draft_probs: Float64[Tensor, "drafts vocab"], drafting: Drafting) -> JointDistribution:
    """``P(x_1..x_K) = prod_k p_k(x_k)``; without replacement ``prod_k p(x_k) / p(not yet drawn)``, of which greedy drafts have the last factor
    only and ranked drafts none.

    **Arguments:**
    - `draft_probs`: one distribution for each draft, shape `(drafts, vocab)`, float64.
    - `drafting`: how they are drafted: `independent`, `iid`, `without_replacement`, `greedy` or `ranked`.

    **Returns:** every tuple of drafted tokens with its probability.

    **Raises:** `UserError` for a way of drafting that does not exist, more than a million tuples, or more drafts without replacement than tokens.

    >>> draft = torch.tensor([0.75, 0.25]).double()
    >>> joint = joint_distribution(draft.expand(2, -1), "iid")
    >>> joint.tokens.tolist(), joint.probs
    ([[0, 0], [0, 1], [1, 0], [1, 1]], tensor([0.5625, 0.1875, 0.1875, 0.0625], dtype=torch.float64))
    """
    check_drafting(drafting)
    num_drafts, vocab = draft_probs.shape
    tokens = every_tuple(vocab, num_drafts, draft_probs.device)
    if drafting in ("iid", "independent"):
        probs = draft_probs.gather(-1, tokens.T).prod(0)
    else:
        check_support(draft_probs[0], num_drafts)
        parts = torch.split(tokens, max(1, AT_ONCE // vocab))
        probs = torch.cat([_distinct(draft_probs[0], part, drafting) for part in parts])
    kept = probs > 0
    return JointDistribution(tokens[kept], probs[kept], vocab)


def _distinct(
    draft_probs: Float64[Tensor, " vocab"], tokens: Int64[Tensor, "tuples drafts"], drafting: Drafting
) -> Float64[Tensor, " tuples"]:
    """The probability of each tuple if tokens are drawn one after another, each at most once."""
    rest = draft_probs.repeat(len(tokens), 1)
    probs = torch.ones(len(tokens), dtype=torch.float64, device=tokens.device)
    last = tokens.shape[1] - 1
    fixed = greedy_tokens(draft_probs, tokens.shape[1])
    for k in range(last + 1):
        drawn = tokens[:, k, None]
        if drafting == "ranked" or (drafting == "greedy" and k < last):
            probs = probs * (tokens[:, k] == fixed[k])
        else:
            # A tuple that repeats a token has a factor of 0 here, and the remaining mass may be 0 too.
            total = rest.sum(-1)
            # The quotient first: the product of two small probabilities would lose its digits.
            probs = probs * (rest.gather(-1, drawn)[:, 0] / torch.where(total > 0, total, 1.0))
        rest.scatter_(-1, drawn, 0.0)
    return probs


def remaining_probs(draft_probs: Tables, tokens: Tokens) -> Tables:
    """The distribution from which draft k is drawn without replacement: ``p`` without ``x_1 .. x_{k-1}``.

    What remains is summed again: 1 minus the drawn mass loses all digits on a peaked distribution.
    """
    rest = draft_probs.clone()
    for k in range(1, tokens.shape[1]):
        rest[:, k:].scatter_(-1, tokens[:, k - 1, None, None].expand(-1, tokens.shape[1] - k, 1), 0.0)
    total = rest.sum(-1, keepdim=True)
    return rest / total.where(total > 0, 1.0)


def distinct_tuples(
    draft: Float64[Tensor, "positions vocab"], num_drafts: int
) -> Iterator[tuple[Int64[Tensor, " part"], Int64[Tensor, "tuples drafts"], Tensor, Float64[Tensor, " tuples"]]]:
    """Every ordered tuple of distinct tokens at each position, for all positions of one support size at once.

    Yields the positions and, position by position, the tokens of their tuples, the draft's distributions and the probability of each tuple.
    At most as many tokens are drafted as the draft can produce.
    """
    supports = (draft > 0).sum(-1)
    for support in sorted(set(supports.tolist())):
        length = min(num_drafts, support)
        orders = torch.tensor(list(itertools.permutations(range(support), length)), device=draft.device)
        rows = (supports == support).nonzero()[:, 0]
        for part in rows.split(max(1, ROWS_AT_ONCE // len(orders))):
            tokens = draft[part].topk(support, -1).indices[:, orders].flatten(0, 1)
            distributions = draft[part.repeat_interleave(len(orders))][:, None].expand(-1, length, -1)
            chance = remaining_probs(distributions, tokens).gather(-1, tokens[..., None])[..., 0].prod(-1)
            yield part, tokens, distributions, chance
