"""The logits of a draft in training, whose head may be trimmed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.models import LanguageModel
from draftlab.models.llama import Llama
from draftlab.models.places import ByPlace
from draftlab.models.products import has_fast_bfloat16


def kept_by(draft: LanguageModel) -> Int[Tensor, " head"] | None:
    """The tokens of a trimmed head; None: the whole vocabulary."""
    return draft.kept if isinstance(draft, Llama | ByPlace) else None


def coverage(draft: LanguageModel, answers: Iterable[Sequence[int]]) -> float | None:
    """The share of the answers' tokens that are in a trimmed head: the draft can propose no others. None: its head is whole."""
    kept = kept_by(draft)
    if kept is None:
        return None
    return float(
        torch.isin(torch.tensor([token for answer in answers for token in answer]), kept.cpu()).double().mean()
    )


def answer_logits(
    draft: LanguageModel,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    autocast: bool,
    where: Tensor | None = None,
) -> Float[Tensor, "positions head"]:
    """The draft's logits with gradient at the answer positions ``where`` (None: all).

    With ``autocast``, products are in bfloat16 if the device is fast at it. A trimmed head gives the logits of its tokens alone.
    """
    call = draft.head_logits if isinstance(draft, Llama | ByPlace) else draft.answer_logits
    with torch.autocast(draft.device.type, torch.bfloat16, enabled=autocast and has_fast_bfloat16(draft.device.type)):
        return call(prompts, answers, where).float()
