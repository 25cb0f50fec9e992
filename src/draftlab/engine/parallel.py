"""The loop's four verbs with a draft that proposes a block in one pass: it reads its mask once for each token after the first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.core.sampling import draft_tokens, most_probable, to_probs
from draftlab.engine.batched import BatchedPair
from draftlab.engine.policy import Policy, Proposal
from draftlab.models import Decoder, TokenIds
from draftlab.models.batching import pad_rows
from draftlab.models.llama_decoder import LlamaCache, LlamaDecoder
from draftlab.models.parallel_draft import ParallelDraft


class ParallelPair(BatchedPair):
    """A target and one parallel draft."""

    def __init__(
        self,
        draft: ParallelDraft,
        decoder: Decoder,
        prompts: TokenIds,
        draft_len: int,
        max_new_tokens: int,
        policy: Policy,
    ) -> None:
        self.draft, self.drafter = draft, draft.decoder()
        super().__init__(decoder, [self.drafter], prompts, draft_len, max_new_tokens, policy)

    def propose(self, left: Sequence[int]) -> Proposal:
        writer, cache = self.writers[0], self.writers[0].cache
        assert isinstance(cache, LlamaCache)
        writer.begin = cache.lengths
        fresh = F.embedding(pad_rows(writer.unread).to(writer.device), self.draft.draft.embed)
        counts = [len(tokens) for tokens in writer.unread]
        states = read_block(cache, fresh, counts, self.draft.mask, min(self.draft_len, max(left)))
        return propose_at_once(self.drafter, states, self.policy)


def read_block(
    cache: LlamaCache,
    fresh: Float[Tensor, "batch new width"],
    counts: Sequence[int],
    mask: Float[Tensor, " width"],
    length: int,
) -> Float[Tensor, "batch length width"]:
    """Read the first ``counts[b]`` of the ``fresh`` inputs of each row, then the mask for each further token of a block; keep the inputs alone
    in the cache. The states that predict the ``length`` tokens of the block."""
    batch, new = fresh.shape[:2]
    known = [begin + count for begin, count in zip(cache.lengths, counts, strict=True)]
    count = torch.tensor(counts, device=fresh.device)[:, None]
    is_fresh = torch.arange(new + length - 1, device=fresh.device) < count
    inputs = F.pad(fresh, (0, 0, 0, length - 1)).where(is_fresh[..., None], mask.to(fresh.dtype))
    places = torch.zeros(inputs.shape[:2], dtype=torch.long, device=fresh.device)  # the tokens themselves are not read
    states = cache.states(places, hidden=inputs).view(*places.shape, -1)
    cache.crop(known)
    rows = torch.arange(batch, device=fresh.device)[:, None]
    return states[rows, count - 1 + torch.arange(length, device=fresh.device)]


def choose_next(logits: Float[Tensor, "batch vocab"], policy: Policy) -> tuple[Int[Tensor, " batch"], Tensor | None]:
    """The next token of each request, and the distribution from which it was drawn; None if it is the most probable one."""
    if policy.is_greedy:
        return most_probable(logits), None
    assert policy.generator is not None
    probs = to_probs(logits, policy.draft_samplings[0])
    return draft_tokens(probs[:, None], policy.drafting, policy.generator)[:, 0], probs


def one_after_the_other(chosen: Sequence[tuple[Tensor, Tensor | None]]) -> Proposal:
    """A sequence whose tokens were chosen by ``choose_next``."""
    tokens, probs = zip(*chosen, strict=True)
    drawn_from = None if probs[0] is None else torch.stack(probs, 1)[:, None]
    return Proposal(torch.stack(tokens, -1)[:, None], drawn_from)


def propose_at_once(drafter: LlamaDecoder, states: Float[Tensor, "batch length width"], policy: Policy) -> Proposal:
    """A sequence whose tokens are chosen each for itself, from the state that predicts it."""
    return choose_at_once(drafter.project(states.flatten(0, 1)).view(*states.shape[:2], -1), policy)


def choose_at_once(logits: Float[Tensor, "batch length vocab"], policy: Policy) -> Proposal:
    """A sequence whose tokens are chosen each for itself."""
    if policy.is_greedy:
        return Proposal(most_probable(logits)[:, None], None)
    assert policy.generator is not None
    distributions = to_probs(logits, policy.draft_samplings[0])
    drafted = draft_tokens(distributions.flatten(0, 1)[:, None], policy.drafting, policy.generator)
    return Proposal(drafted.view(len(logits), 1, -1), distributions[:, None])
