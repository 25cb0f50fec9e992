"""What the loop does alike for every draft that reads its target's states: EAGLE's, and released heads of EAGLE-3 and of DFlash."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.engine.loop import Verification
from draftlab.engine.policy import Policy, Proposal, verify_block
from draftlab.models import TokenIds
from draftlab.models.dflash import DFlash
from draftlab.models.eagle import Eagle
from draftlab.models.eagle3 import Eagle3
from draftlab.models.llama_decoder import LlamaDecoder

Draft = TypeVar("Draft", bound="Eagle | Eagle3 | DFlash")


class DraftCache(Protocol):
    """What a draft keeps of the text of each request."""

    def take(self, rows: Sequence[int]) -> None:
        """Keep these rows alone, in this order."""
        ...


class StatesPair(ABC, Generic[Draft]):
    """A target and a draft on its states.

    The draft has not read the ``fresh`` tokens of each request from states of the target: the accepted tokens of the last block, and the token
    after them. ``before`` has the state before each.
    """

    draft_cache: DraftCache

    def __init__(
        self,
        draft: Draft,
        decoder: LlamaDecoder,
        prompts: TokenIds,
        draft_len: int,
        max_new_tokens: int,
        policy: Policy,
    ) -> None:
        self.draft, self.draft_len, self.policy = draft, draft_len, policy
        room, read = max_new_tokens + draft_len, [len(prompt) - 1 for prompt in prompts]
        self.cache, tokens = decoder.begin(prompts, room)
        self.cache.takes = draft.layers
        tokens = tokens[:, : draft.context_length]  # the rest is padding
        reading = draft.of_target(self.cache, self.cache.states(tokens))
        states = reading.view(*tokens.shape, reading.shape[-1])
        before = F.pad(states, (0, 0, 1, 0))  # before[:, t]: the state before token t
        self.begin_draft(prompts, tokens, before, room)
        self.cache.crop(read)
        self.fresh = [[prompt[-1]] for prompt in prompts]
        self.unread = torch.tensor(self.fresh, device=tokens.device)
        rows = torch.arange(len(prompts), device=tokens.device)
        self.before = before[rows, torch.tensor(read, device=tokens.device)][:, None]

    @abstractmethod
    def begin_draft(
        self,
        prompts: TokenIds,
        tokens: Int[Tensor, "batch len"],
        before: Float[Tensor, "batch len+1 width"],
        room: int,
    ) -> None:
        """Let the draft read the prompts without their last tokens, as far as it does; ``before`` has the target's state before each token. There
        is ``room`` for as many more tokens."""

    @abstractmethod
    def propose(self, left: Sequence[int]) -> Proposal:
        """Read the fresh tokens with the target's states, and draft."""

    def read(self, proposal: Proposal) -> Float[Tensor, "batch 1 length+1 vocab"]:
        """Let the target read the unread token and the drafted ones; return the logits after each."""
        tokens, self.begin = torch.cat([self.unread, proposal.tokens[:, 0]], -1), self.cache.lengths
        states = self.cache.states(tokens)
        self.states = self.draft.of_target(self.cache, states).view(*tokens.shape, -1)
        return self.cache.decoder.project(states).view(*tokens.shape, -1)[:, None]

    def verify(self, proposal: Proposal, reading: Float[Tensor, "batch 1 length+1 vocab"]) -> Verification:
        return verify_block(proposal, reading, self.policy)

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        """Keep the accepted tokens in the target's cache, and the states from which the target chose them and the token after them."""
        decided = zip(verification.drafted, verification.accepted, verification.token, strict=True)
        self.fresh = [[*drafted[:accepted], token] for drafted, accepted, token in decided]
        self.cache.crop([start + len(fresh) for start, fresh in zip(self.begin, self.fresh, strict=True)])
        if 0 < len(kept) < len(self.fresh):
            self.fresh = [self.fresh[place] for place in kept]
            self.states = self.states[list(kept)]
            self.cache.take(kept)
            self.draft_cache.take(kept)
        self.before = self.states[:, : max(map(len, self.fresh))]
        self.unread = torch.tensor([fresh[-1:] for fresh in self.fresh], device=self.states.device)
