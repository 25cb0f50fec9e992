"""The loop's four verbs with a head of DFlash or DSpark: it reads the target's states as keys and values, and fills in a block in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.engine.on_states import StatesPair
from draftlab.engine.parallel import choose_at_once, choose_next, one_after_the_other
from draftlab.engine.policy import Proposal
from draftlab.models import TokenIds
from draftlab.models.dflash import DFlash, Seen
from draftlab.models.head import spread
from draftlab.models.products import linear


class DFlashPair(StatesPair[DFlash]):
    """A target and a head of DFlash."""

    draft_cache: TextCache

    def begin_draft(
        self,
        prompts: TokenIds,
        tokens: Int[Tensor, "batch len"],
        before: Float[Tensor, "batch len+1 width"],
        room: int,
    ) -> None:
        self.draft_cache = TextCache(self.draft, len(prompts), tokens.shape[1] + room)
        # The state before the last token is read with that token.
        self.draft_cache.extend(before[:, 1:-1], [max(len(prompt) - 2, 0) for prompt in prompts])

    def propose(self, left: Sequence[int]) -> Proposal:
        counts = [min(len(fresh), length) for fresh, length in zip(self.fresh, self.cache.lengths, strict=True)]
        self.draft_cache.extend(self.before, counts)
        places = torch.tensor(self.draft_cache.lengths, device=self.unread.device)[:, None]
        states = self.draft.states_of(self.unread, places, self.draft_cache.text())[:, 0]
        first = 0 if self.draft.form.from_anchor else 1
        wanted = states[:, first : first + min(self.draft_len, max(left))]
        logits = linear(wanted, self.draft.draft.vocab_weight)
        if self.draft.markov is None:
            return choose_at_once(self._spread(logits), self.policy)
        chosen, before = list[tuple[Tensor, Tensor | None]](), self.unread[:, 0]
        for of_place in logits.unbind(1):
            chosen.append(choose_next(self._spread(of_place + self.draft.markov(before)), self.policy))
            before = chosen[-1][0]
        return one_after_the_other(chosen)

    def _spread(self, logits: Float[Tensor, "*rows head"]) -> Float[Tensor, "*rows vocab"]:
        return spread(logits, self.draft.kept, self.draft.vocab_size)


class TextCache:
    """Keys and values of the text of each request, in each layer of a head; what lies beyond a row's length is never seen, and later overwritten."""

    def __init__(self, draft: DFlash, batch: int, capacity: int) -> None:
        config = draft.draft.config
        shape = (config.num_hidden_layers, 2, batch, config.num_key_value_heads, capacity, config.head_dim)
        self.draft, self.lengths = draft, [0] * batch
        self.store = torch.zeros(shape, dtype=draft.draft.norm.dtype, device=draft.device)

    def extend(self, states: Float[Tensor, "batch new states"], counts: Sequence[int]) -> None:
        """Append the first ``counts[b]`` of the target's states of each row."""
        device, new = self.store.device, states.shape[1]
        if not new:
            return
        at = torch.tensor(self.lengths, device=device)[:, None] + torch.arange(new, device=device)
        rows = torch.arange(len(states), device=device)[:, None]
        for number, seen in enumerate(self.draft.seen(states, at)):
            for which, values in enumerate(seen):
                self.store[number, which][rows, :, at] = values.transpose(1, 2).to(self.store.dtype)
        self.lengths = [length + count for length, count in zip(self.lengths, counts, strict=True)]

    def text(self) -> list[Seen]:
        """What each layer sees, up to the longest row."""
        longest = max(self.lengths)
        return [Seen(keys[:, :, :longest], values[:, :, :longest]) for keys, values in self.store]

    def take(self, rows: Sequence[int]) -> None:
        self.store = self.store[:, :, list(rows)]
        self.lengths = [self.lengths[row] for row in rows]
