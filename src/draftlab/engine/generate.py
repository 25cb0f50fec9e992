"""Plain decoding: one model, one token per forward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from jaxtyping import Float, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import GREEDY, Sampling, draw, most_probable, to_probs
from draftlab.engine.loop import close_gaps
from draftlab.errors import UserError
from draftlab.models import Decodable, TokenIds
from draftlab.models.batching import check_lengths

Observer = Callable[[list[int], int, Float[Tensor, "batch vocab"], Int64[Tensor, " batch"]], None]
"""Called with the request of each row, the answer position, the logits there and the tokens chosen from them."""


@torch.inference_mode()
def generate(
    model: Decodable,
    prompts: TokenIds,
    *,
    max_new_tokens: int,
    eos_ids: Collection[int],
    sampling: Sampling = GREEDY,
    generator: Generator | None = None,
    batch: int | None = None,
    observe: Observer | None = None,
    begin: Callable[[], object] = lambda: None,
) -> list[list[int]]:
    """Answer the prompts with ``model`` alone, ``batch`` at a time (default: all).

    An answer ends with its first end-of-text token, and its row then leaves the batch. ``begin`` is called
    once the prompts of a batch are read. ``UserError`` if a prompt leaves no room for
    ``max_new_tokens``.
    """
    check_requests(model, prompts, max_new_tokens, batch)
    ends, decoder = frozenset(eos_ids), model.decoder()
    answers: list[list[int]] = [[] for _ in prompts]
    for rows in batches(len(prompts), batch):
        cache, tokens = decoder.prefill([prompts[request] for request in rows], max_new_tokens)
        begin()
        for position in range(max_new_tokens):
            # On a CPU, argmax takes longer in bfloat16 than in float32.
            logits = cache.extend(tokens[:, None])[:, 0].float()
            tokens = _choose(logits, sampling, generator)
            if observe is not None:
                observe(rows, position, logits, tokens)
            chosen = tokens.tolist()
            for request, token in zip(rows, chosen, strict=True):
                answers[request].append(token)
            if not ends.isdisjoint(chosen):
                kept = close_gaps([token not in ends for token in chosen])
                if not kept:
                    break
                rows = [rows[place] for place in kept]
                cache.take(kept)
                tokens = tokens[torch.tensor(kept, device=tokens.device)]
    return answers


def _choose(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, generator: Generator | None
) -> Int64[Tensor, " batch"]:
    if sampling.temperature == 0:
        return most_probable(logits)
    if generator is None:
        raise UserError("sampling without a generator", remedy="pass a seeded torch.Generator")
    return draw(to_probs(logits, sampling), 1, generator)[:, 0]


def batches(count: int, size: int | None) -> Iterator[list[int]]:
    """The numbers below ``count``, ``size`` at a time (None: all)."""
    size = size or count
    return (list(range(start, min(start + size, count))) for start in range(0, count, size))


def check_requests(model: Decodable, prompts: TokenIds, max_new_tokens: int, batch: int | None) -> None:
    """``UserError`` unless there are prompts, their tokens are in the vocabulary, and each fits the context with its answer."""
    if not prompts:
        raise UserError("no prompts", remedy="give one or more")
    for name, value in (("max_new_tokens", max_new_tokens), ("batch", 1 if batch is None else batch)):
        if value < 1:
            raise UserError(f"{name} is {value}", remedy="give 1 or more")
    for number, prompt in enumerate(prompts):
        if outside := [token for token in prompt if not 0 <= token < model.vocab_size]:
            what = f"request {number} has token {outside[0]}, but the vocabulary has {model.vocab_size} tokens"
            raise UserError(what, remedy="encode it with the tokenizer of the model")
    check_lengths(prompts, [[0] * max_new_tokens] * len(prompts), model.context_length)
