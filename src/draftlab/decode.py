"""Decoding: the plain loop of one model (the speculative loop joins it here)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from draftlab.errors import UserError
from draftlab.models import LanguageModel
from draftlab.models.batching import check_lengths
from draftlab.sampling import Sampling, draw, to_probs

GREEDY = Sampling(temperature=0.0)

Observer = Callable[[list[int], int, Float[Tensor, "batch vocab"], Int64[Tensor, " batch"]], None]
"""Called with the request of each row, the answer position, the logits there and the tokens chosen from them."""


def next_tokens(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, generator: Generator | None
) -> Int64[Tensor, " batch"]:
    """One token per row: the most probable one, or a draw."""
    if sampling.temperature == 0:
        return logits.argmax(-1)
    if generator is None:
        raise UserError(
            f"temperature {sampling.temperature} without a generator", remedy="pass a seeded torch.Generator"
        )
    return draw(to_probs(logits, sampling), 1, generator)[:, 0]


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    eos_ids: Collection[int],
    sampling: Sampling = GREEDY,
    generator: Generator | None = None,
    observe: Observer | None = None,
) -> list[list[int]]:
    """Answers of ``model`` alone, one token per forward, as one batch; an answer ends with its first end-of-text token.

    Finished rows leave the batch once they are half of it. ``UserError`` for a prompt without room for ``max_new_tokens``.
    """
    check_room(model, prompts, max_new_tokens)
    answers: list[list[int]] = [[] for _ in prompts]
    cache, tokens = model.prefill(prompts, room=max_new_tokens)
    rows = list(range(len(prompts)))
    going = set(rows)
    for position in range(max_new_tokens):
        logits = cache.extend(tokens[:, None])[:, 0]
        tokens = next_tokens(logits, sampling, generator)
        if observe is not None:
            observe(rows, position, logits, tokens)
        for request, token in zip(rows, tokens.tolist(), strict=True):
            if request in going:
                answers[request].append(token)
                if token in eos_ids:
                    going.remove(request)
        if not going:
            break
        if 2 * len(going) <= len(rows):
            kept = [place for place, request in enumerate(rows) if request in going]
            rows = [rows[place] for place in kept]
            cache.take(kept)
            tokens = tokens[torch.tensor(kept, device=tokens.device)]
    return answers


def check_room(model: LanguageModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    """``UserError`` unless every prompt and its whole answer fit the context."""
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens}", remedy="give 1 or more")
    check_lengths(prompts, [[0] * max_new_tokens] * len(prompts), model.context_len)
