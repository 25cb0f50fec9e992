"""Drafts whose distribution of a token depends on its place in the block: one pass of the draft for each place.

In pass r, every token is drafted as the (r+1)-th of its block: the draft sees the text before the block as the first pass read it, and each token of
the block as the pass of that token's place did. The first pass reads the whole text, the others only what the wanted predictions need of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.models import TokenIds
from draftlab.models.head import spread
from draftlab.models.llama import Llama, block
from draftlab.models.products import causal_attention, linear
from draftlab.models.rotary import rotation_table

Later = Callable[
    [Int[Tensor, "batch window"], Float[Tensor, "batch window width"]], Float[Tensor, "batch window width"]
]
"""What the layers read in a later pass, given the positions in the text and the draft's states before each, as the pass before left them, before
the last norm."""


Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of a layer, given query, key and value."""


class ByPlace(nn.Module):
    """What such drafts have in common: a ``draft``, and ``depth``, the tokens of a block that they are trained and replayed for."""

    draft: Llama
    depth: int

    @property
    def vocab_size(self) -> int:
        return self.draft.vocab_size

    @property
    def kept(self) -> Tensor | None:
        """The tokens of the draft's trimmed head; None: the whole vocabulary."""
        return self.draft.kept

    @property
    def added(self) -> int:
        """The number of weights beside the draft's."""
        return sum(weight.numel() for name, weight in self.named_parameters() if not name.startswith("draft."))

    def head_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "depth positions head"]:
        """``answer_logits`` of the tokens of the head alone, in its order."""
        raise NotImplementedError

    def answer_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "depth positions vocab"]:
        """Logits for each answer token as the first, second, ... token of a block."""
        return spread(self.head_logits(prompts, answers, where), self.kept, self.vocab_size)


def checked_depth(depth: int) -> int:
    """The depth, or a ``UserError`` if no token is drafted."""
    if depth < 1:
        raise UserError(f"depth is {depth}", remedy="give 1 or more")
    return depth


def logits_by_place(
    draft: Llama,
    first: Float[Tensor, "batch len *width"],
    later: Later,
    places: int,
    positions: Int[Tensor, " chosen"],
) -> Float[Tensor, "places chosen head"]:
    """Logits at these positions of the flattened batch in each pass, of the tokens of the draft's head. The first pass reads ``first``."""
    config, table, length = draft.config, rotation_table(draft.config, draft.device), first.shape[1]
    seen = [_Seen() for _ in draft.layers]

    found: list[Tensor] = []

    def states_of(hidden: Tensor, rotations: Tensor, attends: Sequence[Attend]) -> Tensor:
        for layer, attend in zip(draft.layers, attends, strict=True):
            hidden = block(hidden, layer, rotations, config, attend)
        states = F.rms_norm(hidden, draft.norm.shape, draft.norm, config.rms_norm_eps)
        found.append(linear(states.flatten(0, 1)[positions], draft.vocab_weight))
        return hidden

    hidden = states_of(first, table[:length, None], [one.first for one in seen])
    window, positions = window_of(positions, len(first), length, places - 1)
    before = _before(hidden).gather(1, window[..., None].expand(-1, -1, hidden.shape[-1]))
    for place in range(1, places):
        unseen = torch.arange(length, device=window.device) > window[:, None, :, None] - place
        attends = [functools.partial(one.later, unseen=unseen) for one in seen]
        before = _before(states_of(later(window, before), table[window][:, :, None], attends))
    return torch.stack(found)


def _before(states: Float[Tensor, "batch len width"]) -> Float[Tensor, "batch len width"]:
    """The state before each position, zeros before the first."""
    return F.pad(states, (0, 0, 1, 0))[:, :-1]


def window_of(
    positions: Int[Tensor, " chosen"], batch: int, length: int, margin: int
) -> tuple[Int[Tensor, "batch window"], Int[Tensor, " chosen"]]:
    """For each row, the positions from ``margin`` before its first chosen one to its last; and the chosen ones within these windows, flattened."""
    rows, places = positions // length, positions % length
    begin = torch.full((batch,), length - 1, device=positions.device).scatter_reduce(0, rows, places, "amin")
    begin = (begin - margin).clamp_min(0)
    width = int((places - begin[rows]).max()) + 1 if len(places) else 1
    window = (begin[:, None] + torch.arange(width, device=positions.device)).clamp_max(length - 1)
    return window, rows * width + places - begin[rows]


class _Seen:
    """Attention of one layer in all passes.

    In pass r, position t sees the positions up to t - r as the first pass left them, and position t - r + m as pass m did.
    """

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def first(
        self,
        query: Float[Tensor, "batch heads len dim"],
        key: Float[Tensor, "batch kv len dim"],
        value: Float[Tensor, "batch kv len dim"],
    ) -> Float[Tensor, "batch heads len dim"]:
        """The attention of the first pass."""
        shared = query.shape[1] // key.shape[1]
        self.keys, self.values = [key.repeat_interleave(shared, 1)], [value.repeat_interleave(shared, 1)]
        return causal_attention(query, key, value)

    def later(
        self,
        query: Float[Tensor, "batch heads window dim"],
        key: Float[Tensor, "batch kv window dim"],
        value: Float[Tensor, "batch kv window dim"],
        unseen: Bool[Tensor, "batch 1 window len"],
    ) -> Float[Tensor, "batch heads window dim"]:
        """The attention of the next pass, over the text that it does not leave ``unseen`` and over the block so far."""
        shared, back, length = query.shape[1] // key.shape[1], len(self.keys), unseen.shape[-1]
        self.keys.append(key.repeat_interleave(shared, 1))
        self.values.append(value.repeat_interleave(shared, 1))
        keys, values = self.keys, self.values
        scores = [(query @ keys[0].transpose(-1, -2)).masked_fill(unseen, -torch.inf)]
        for m in range(1, back + 1):
            score = (query * _later(keys[m], back - m)).sum(-1)
            score[..., : back - m] = -torch.inf  # the text had not begun
            scores.append(score[..., None])
        weights = (torch.cat(scores, -1).float() * query.shape[-1] ** -0.5).softmax(-1).to(query.dtype)
        mixed: Tensor = weights[..., :length] @ values[0]
        for m in range(1, back + 1):
            mixed = mixed + weights[..., length + m - 1, None] * _later(values[m], back - m)
        return mixed


def _later(values: Float[Tensor, "batch heads window dim"], back: int) -> Float[Tensor, "batch heads window dim"]:
    """The values at each position from ``back`` positions before it, zeros before the first."""
    return F.pad(values, (0, 0, back, 0))[:, :, : values.shape[2]]
