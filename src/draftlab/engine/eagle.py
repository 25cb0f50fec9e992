"""The loop's four verbs with an EAGLE draft or a head of EAGLE-3: it writes one sequence from the target's states, and continues on its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.core.sampling import draft_tokens, most_probable, to_probs
from draftlab.engine.loop import Verification
from draftlab.engine.parallel import propose_at_once, read_block
from draftlab.engine.policy import Policy, Proposal, verify_block
from draftlab.models import TokenIds
from draftlab.models.batching import pad_rows
from draftlab.models.eagle import Eagle
from draftlab.models.eagle3 import Eagle3, check_prompts
from draftlab.models.llama_decoder import LlamaDecoder


class EaglePair:
    """A target and a draft on its states.

    The draft has not read the ``fresh`` tokens of each request from states of the target: the accepted tokens of the last block, and the token
    after them. ``before`` has the state before each.
    """

    def __init__(
        self,
        draft: Eagle | Eagle3,
        decoder: LlamaDecoder,
        prompts: TokenIds,
        draft_len: int,
        max_new_tokens: int,
        policy: Policy,
    ) -> None:
        self.draft, self.draft_len, self.policy = draft, draft_len, policy
        room, read = max_new_tokens + draft_len, [len(prompt) - 1 for prompt in prompts]
        self.drafter = draft.draft.decoder()
        self.cache, tokens = decoder.begin(prompts, room)
        self.cache.takes = draft.layers
        self.draft_cache, _ = self.drafter.begin(prompts, room + draft_len)
        tokens = tokens[:, : draft.context_length]  # the rest is padding
        reading = draft.of_target(self.cache, self.cache.states(tokens))
        states = reading.view(*tokens.shape, reading.shape[-1])
        before = F.pad(states, (0, 0, 1, 0))  # before[:, t]: the state before token t
        if draft.skipped:
            check_prompts(prompts)
        rest, before_rest = tokens[:, draft.skipped :], before[:, draft.skipped : -1]
        self.draft_cache.read(rest, hidden=draft.inputs(rest, before_rest, own=False))
        self.cache.crop(read)
        self.draft_cache.crop([length - draft.skipped for length in read])
        self.fresh = [[prompt[-1]] for prompt in prompts]
        self.unread = torch.tensor(self.fresh, device=tokens.device)
        rows = torch.arange(len(prompts), device=tokens.device)
        self.before = before[rows, torch.tensor(read, device=tokens.device)][:, None]

    def propose(self, left: Sequence[int]) -> Proposal:
        """Read the fresh tokens with the target's states, then draft token after token, or all at once if the draft is parallel."""
        policy, sampling, fresh = self.policy, self.policy.draft_samplings[0], pad_rows(self.fresh)
        counts = [len(tokens) for tokens in self.fresh]
        known = [length + count for length, count in zip(self.draft_cache.lengths, counts, strict=True)]
        device, length = self.unread.device, min(self.draft_len, max(left))
        if self.draft.mask is not None:
            inputs = self.draft.inputs(fresh.to(device), self.before, own=False)
            block = read_block(self.draft_cache, inputs, counts, self.draft.mask, length)
            return propose_at_once(self.drafter, block, policy)
        states = self._read(fresh.to(device), self.before, own=False)
        state = states[torch.arange(len(counts), device=device), torch.tensor(counts, device=device) - 1]
        self.draft_cache.crop(known)
        tokens, distributions = list[Tensor](), list[Tensor]()
        for place in range(length):
            if place:
                state = self._read(tokens[-1][:, None], state[:, None], own=True)[:, -1]
            logits = self.drafter.project(self.drafter.norm(state, self.drafter.last_norm))
            if policy.is_greedy:
                tokens.append(most_probable(logits))
                continue
            assert policy.generator is not None
            distributions.append(to_probs(logits, sampling))
            tokens.append(draft_tokens(distributions[-1][:, None], policy.drafting, policy.generator)[:, 0])
        self.draft_cache.crop(known)
        drawn_from = torch.stack(distributions, 1)[:, None] if distributions else None
        return Proposal(torch.stack(tokens, -1)[:, None], drawn_from)

    def _read(
        self, tokens: Int[Tensor, "batch new"], before: Float[Tensor, "batch new width"], *, own: bool
    ) -> Float[Tensor, "batch new width"]:
        """The draft's states at these tokens, before the last norm, given the states before them, its ``own`` or the target's."""
        states = self.draft_cache.read(tokens, hidden=self.draft.inputs(tokens, before, own=own))
        return states.view(*tokens.shape, -1)

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
            for cache in (self.cache, self.draft_cache):
                cache.take(kept)
        self.before = self.states[:, : max(map(len, self.fresh))]
        self.unread = torch.tensor([fresh[-1:] for fresh in self.fresh], device=self.states.device)
