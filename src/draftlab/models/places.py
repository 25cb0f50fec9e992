"""Drafts whose distribution of a token depends on its place in the block: one pass of the draft for each place.

In pass r, every token of a text is drafted as the (r+1)-th of its block: the draft sees the text before the block as the first pass read it, and
each token of the block as the pass of that token's place did.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.models.llama import Llama, block
from draftlab.models.products import causal_attention, linear
from draftlab.models.rotary import rotation_table

Inputs = Callable[[int, Float[Tensor, "batch len width"] | None], Float[Tensor, "batch len width"]]
"""What the layers read in a pass, given its number and the states of the pass before; None: it is the first."""


def logits_by_place(
    draft: Llama, inputs: Inputs, places: int, positions: Int[Tensor, " chosen"]
) -> Float[Tensor, "places chosen head"]:
    """Logits at these positions of the flattened batch in each pass, of the tokens of the draft's head."""
    config, states, found = draft.config, None, list[Tensor]()
    seen = [_Seen() for _ in draft.layers]
    for place in range(places):
        hidden = inputs(place, states)
        rotations = rotation_table(config, draft.device)[: hidden.shape[1], None]
        for layer, attend in zip(draft.layers, seen, strict=True):
            hidden = block(hidden, layer, rotations, config, attend)
        states = F.rms_norm(hidden, draft.norm.shape, draft.norm, config.rms_norm_eps)
        found.append(linear(states.flatten(0, 1)[positions], draft.vocab_weight))
    return torch.stack(found)


class _Seen:
    """Attention of one layer in all passes.

    In pass r, position t sees the positions up to t - r as the first pass left them, and position t - r + m as pass m did.
    """

    def __init__(self) -> None:
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(
        self,
        query: Float[Tensor, "batch heads len dim"],
        key: Float[Tensor, "batch kv len dim"],
        value: Float[Tensor, "batch kv len dim"],
    ) -> Float[Tensor, "batch heads len dim"]:
        """The attention of the next pass."""
        back, length, shared = len(self.keys), query.shape[2], query.shape[1] // key.shape[1]
        self.keys.append(key)
        self.values.append(value)
        if not back:
            return causal_attention(query, key, value)
        keys, values = ([part.repeat_interleave(shared, 1) for part in parts] for parts in (self.keys, self.values))
        hidden = torch.ones(length, length, dtype=torch.bool, device=query.device).triu(1 - back)
        scores = [(query @ keys[0].transpose(-1, -2)).masked_fill(hidden, -torch.inf)]
        for m in range(1, back + 1):
            score = (query * _later(keys[m], back - m)).sum(-1)
            score[..., : back - m] = -torch.inf  # the text had not begun
            scores.append(score[..., None])
        weights = (torch.cat(scores, -1).float() * query.shape[-1] ** -0.5).softmax(-1).to(query.dtype)
        mixed: Tensor = weights[..., :length] @ values[0]
        for m in range(1, back + 1):
            mixed = mixed + weights[..., length + m - 1, None] * _later(values[m], back - m)
        return mixed


def _later(values: Float[Tensor, "batch heads len dim"], back: int) -> Float[Tensor, "batch heads len dim"]:
    """The values at each position from ``back`` positions before it, zeros where the text had not begun."""
    return F.pad(values, (0, 0, back, 0))[:, :, : values.shape[2]]
