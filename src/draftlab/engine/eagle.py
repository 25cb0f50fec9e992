"""The loop's four verbs with an EAGLE draft or a head of EAGLE-3: it writes one sequence from the target's states, and continues on its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.engine.on_states import StatesPair
from draftlab.engine.parallel import choose_next, one_after_the_other, propose_at_once, read_block
from draftlab.engine.policy import Proposal
from draftlab.models import TokenIds
from draftlab.models.batching import pad_rows
from draftlab.models.eagle import Eagle
from draftlab.models.eagle3 import Eagle3, check_prompts
from draftlab.models.llama_decoder import LlamaCache


class EaglePair(StatesPair[Eagle | Eagle3]):
    """A target and an EAGLE draft, or a head of EAGLE-3."""

    draft_cache: LlamaCache

    def begin_draft(
        self,
        prompts: TokenIds,
        tokens: Int[Tensor, "batch len"],
        before: Float[Tensor, "batch len+1 width"],
        room: int,
    ) -> None:
        skipped = self.draft.skipped
        self.drafter = self.draft.draft.decoder()
        self.draft_cache, _ = self.drafter.begin(prompts, room + self.draft_len)
        if skipped:
            check_prompts(prompts)
        rest, before_rest = tokens[:, skipped:], before[:, skipped:-1]
        self.draft_cache.read(rest, hidden=self.draft.inputs(rest, before_rest, own=False))
        self.draft_cache.crop([len(prompt) - 1 - skipped for prompt in prompts])

    def propose(self, left: Sequence[int]) -> Proposal:
        """Read the fresh tokens with the target's states, then draft token after token, or all at once if the draft is parallel."""
        policy, fresh = self.policy, pad_rows(self.fresh)
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
        chosen = list[tuple[Tensor, Tensor | None]]()
        for _ in range(length):
            if chosen:
                state = self._read(chosen[-1][0][:, None], state[:, None], own=True)[:, -1]
            logits = self.drafter.project(self.drafter.norm(state, self.drafter.last_norm))
            chosen.append(choose_next(logits, policy))
        self.draft_cache.crop(known)
        return one_after_the_other(chosen)

    def _read(
        self, tokens: Int[Tensor, "batch new"], before: Float[Tensor, "batch new width"], *, own: bool
    ) -> Float[Tensor, "batch new width"]:
        """The draft's states at these tokens, before the last norm, given the states before them, its ``own`` or the target's."""
        states = self.draft_cache.read(tokens, hidden=self.draft.inputs(tokens, before, own=own))
        return states.view(*tokens.shape, -1)
