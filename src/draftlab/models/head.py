"""A trimmed head, with rows only for the tokens ``kept``: its logits over the whole vocabulary, and the columns of tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def spread(
    logits: Float[Tensor, "*rows head"], kept: Int[Tensor, " head"] | None, vocab_size: int
) -> Float[Tensor, "*rows vocab"]:
    """Logits over the vocabulary from those of the tokens ``kept`` in a trimmed head: -inf for every other token.

    >>> spread(torch.tensor([[1.0, 2.0]]), torch.tensor([3, 0]), vocab_size=4)
    tensor([[2., -inf, -inf, 1.]])
    """
    if kept is None:
        return logits
    return logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf).index_copy_(-1, kept, logits)


def columns_of(tokens: Int[Tensor, "*rows"], kept: Int[Tensor, " head"]) -> Int[Tensor, "*rows"]:
    """The column of each token in a head of the tokens ``kept``; tokens outside the head get the column after the last.

    >>> columns_of(torch.tensor([0, 7]), torch.tensor([3, 0]))
    tensor([1, 2])
    """
    size = max(int(tokens.max()), int(kept.max())) + 1
    columns = torch.full((size,), len(kept), device=kept.device)
    columns[kept] = torch.arange(len(kept), device=kept.device)
    return columns[tokens]
