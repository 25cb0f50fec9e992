"""Pads requests of different lengths to one batch."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from draftlab.errors import UserError
from draftlab.models import TokenIds

STEP = 16  # lengths are padded to multiples of this, so that few kernels must be prepared


def pad_requests(
    prompts: TokenIds, answers: TokenIds, context_length: int, where: Int[Tensor, " chosen"] | None = None
) -> tuple[Int[Tensor, "batch len"], Int[Tensor, " positions"]]:
    """Prompt + answer without the last token, padded on the right with 0, and the flat positions whose logits predict the answer tokens.

    Positions are in the order of the answer tokens, all of them or only those at ``where``.

    **Raises:** ``UserError`` that names the request, for an empty prompt or a request longer than the context.
    """
    rows = [[*prompt, *answer][:-1] for prompt, answer in zip(prompts, answers, strict=True)]
    check_lengths(prompts, answers, context_length)
    width = max(map(len, rows), default=0)
    width = min(width + -width % STEP, context_length)
    tokens = pad_rows(rows, width)
    positions = [
        number * width + at
        for number, (prompt, row) in enumerate(zip(prompts, rows, strict=True))
        for at in range(len(prompt) - 1, len(row))
    ]
    flat = torch.tensor(positions, dtype=torch.long)
    return tokens, flat if where is None else flat[where.cpu()]


def check_lengths(prompts: TokenIds, answers: TokenIds, context_length: int) -> None:
    """Raise ``UserError`` unless every prompt has a token and every request fits the context."""
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        length = len(prompt) + len(answer)
        if not prompt:
            raise UserError(f"request {number} has an empty prompt", remedy="give every prompt at least one token")
        if length > context_length:
            what = f"request {number} has {length} tokens, but the context holds {context_length}"
            raise UserError(what, remedy="shorten or drop it, or use a model with a longer context")


def pad_rows(rows: TokenIds, width: int | None = None) -> Int[Tensor, "batch width"]:
    """Rows of token ids as one tensor, padded on the right with 0 to ``width`` (or to the longest)."""
    width = max(map(len, rows), default=0) if width is None else width
    return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], dtype=torch.long).view(len(rows), width)
