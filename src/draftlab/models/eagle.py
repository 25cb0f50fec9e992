"""A draft that also reads its target's states, as EAGLE does (Li et al. 2024, arXiv 2401.15077; EAGLE-3: Li et al. 2025, arXiv 2503.01840).

A state is what the target projects on the vocabulary. The target chose token x_t from its state s_(t-1). The draft adds that state to the
token's embedding (each state is scaled to the size of an embedding), then goes on as before:

    g_t = layers(embed(x_t) + W s_(t-1)),     logits of x_(t+1) = head(g_t).

The target has no state yet for what follows the last token it has read. There the draft continues from its own states, with V g_(t-1) in the place of
W s_(t-1). Its distribution of a token therefore depends on where the block began. For training and replay it makes ``depth`` predictions of
each token: the first from states of the target alone, the d-th with the last d - 1 states its own (EAGLE-3's training-time test).

W and V start at 0, so that the draft starts as it was without states.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.models import LanguageModel, TokenIds
from draftlab.models.batching import pad_requests
from draftlab.models.head import spread
from draftlab.models.llama import block
from draftlab.models.llama_decoder import LlamaDecoder
from draftlab.models.on_target import OnTarget, as_llama
from draftlab.models.products import causal_attention, linear
from draftlab.models.rotary import rotation_table


class Eagle(OnTarget):
    """A ``draft`` on the states of a target. ``depth``: the tokens of a block that it is trained and replayed for; longer blocks can be decoded."""

    def __init__(self, draft: LanguageModel, target: LanguageModel, depth: int) -> None:
        super().__init__(target)
        if depth < 1:
            raise UserError(f"depth is {depth}", remedy="give 1 or more")
        self.draft, self.depth = as_llama(draft), depth
        width = self.draft.config.hidden_size
        with torch.device(self.device):
            self.from_target = nn.Parameter(torch.zeros(width, self.target.config.hidden_size))
            self.from_own = nn.Parameter(torch.zeros(width, width))
        self.size = float(self.draft.embed.detach().float().square().mean().sqrt())

    @property
    def vocab_size(self) -> int:
        return self.draft.vocab_size

    @property
    def context_length(self) -> int:
        return min(self.draft.context_length, self.target.context_length)

    @property
    def kept(self) -> Tensor | None:
        """The tokens of the draft's trimmed head; None: the whole vocabulary."""
        return self.draft.kept

    @property
    def added(self) -> int:
        """The number of weights beside the draft's."""
        return self.from_target.numel() + self.from_own.numel()

    def inputs(
        self, tokens: Int[Tensor, "batch len"], states: Float[Tensor, "batch len width"], *, own: bool
    ) -> Float[Tensor, "batch len width"]:
        """What the layers read: tokens and the states before them, its ``own`` or the target's, each scaled to the size of an embedding."""
        scaled = F.rms_norm(states.float(), (states.shape[-1],)) * self.size
        return F.embedding(tokens, self.draft.embed) + linear(scaled, self.from_own if own else self.from_target)

    def answer_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "depth positions vocab"]:
        """Logits for each answer token as the first, second, ... token of a block."""
        return spread(self.head_logits(prompts, answers, where), self.kept, self.vocab_size)

    def head_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "depth positions head"]:
        """``answer_logits`` of the tokens of the head alone, in its order."""
        padded, positions = pad_requests(prompts, answers, self.context_length, where)
        tokens, positions = padded.to(self.device), positions.to(self.device)
        with torch.no_grad():
            states = self.target.states(tokens)
        draft, config = self.draft, self.draft.config
        rotations = rotation_table(config, self.device)[: tokens.shape[1], None]
        seen = [_Seen() for _ in draft.layers]
        found = []
        for depth in range(self.depth):
            before = F.pad(states, (0, 0, 1, 0))[:, :-1]  # no state before the first token
            hidden = self.inputs(tokens, before, own=depth > 0)
            for layer, attend in zip(draft.layers, seen, strict=True):
                hidden = block(hidden, layer, rotations, config, attend)
            states = F.rms_norm(hidden, draft.norm.shape, draft.norm, config.rms_norm_eps)
            found.append(linear(states.flatten(0, 1)[positions], draft.vocab_weight))
        return torch.stack(found)

    def drafter(self) -> LlamaDecoder:
        """The draft, laid out for decoding; ``decoder`` is the target's."""
        return self.draft.decoder()


class _Seen:
    """Attention of one layer as a block goes on: keys and values of the first pass, from the target's states, and of the later ones.

    In pass r, the token at place t is the (r+1)-th of its block. It sees places up to t - r as the first pass left them, and place t - r + m as
    pass m did.
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


def _later(values: Float[Tensor, "batch heads len dim"], places: int) -> Float[Tensor, "batch heads len dim"]:
    """The values at each place from ``places`` places before it, zeros where the text had not begun."""
    return F.pad(values, (0, 0, places, 0))[:, :, : values.shape[2]]
