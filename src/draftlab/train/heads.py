"""The logits of a draft in training, whose head may be trimmed, and the column of a token in them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.models import LanguageModel
from draftlab.models.llama import Llama


def kept_by(draft: LanguageModel) -> Int[Tensor, " head"] | None:
    """The tokens of a trimmed head; None: the whole vocabulary."""
    return draft.kept if isinstance(draft, Llama) else None


def columns_of(
    tokens: Int[Tensor, " positions"], kept: Int[Tensor, " head"], vocab_size: int
) -> Int[Tensor, " positions"]:
    """The column of each token in the head; tokens outside the head get the column after the last."""
    columns = torch.full((vocab_size,), len(kept), device=kept.device)
    columns[kept] = torch.arange(len(kept), device=kept.device)
    return columns[tokens]


def answer_logits(
    draft: LanguageModel,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    autocast: bool,
    where: Tensor | None = None,
) -> Float[Tensor, "positions head"]:
    """The draft's logits with gradient at the answer positions ``where`` (None: all), in bfloat16 products if ``autocast``.

    A trimmed head gives the logits of its tokens alone.
    """
    call = draft.head_logits if isinstance(draft, Llama) else draft.answer_logits
    with torch.autocast(draft.device.type, torch.bfloat16, enabled=autocast):
        return call(prompts, answers, where).float()
