"""Decoding with the project's Llama: a copy of its weights laid out for it, and a static cache of keys and values."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor

from draftlab.core.tree import Tree
from draftlab.models import TokenIds
from draftlab.models.batching import STEP, pad_requests
from draftlab.models.head import spread
from draftlab.models.packed import PackedLinear
from draftlab.models.rotary import rotate_in_place, rotation_table

if TYPE_CHECKING:
    from draftlab.models.llama import Llama, LlamaConfig


class LlamaDecoder:
    """A copy of a Llama's current weights, laid out for decoding; see ``Decoder``."""

    def __init__(self, model: Llama) -> None:
        self.config, self.embed, self.rotations = model.config, model.embed, rotation_table(model.config, model.device)
        self.norm = _ScaledNorm(model.config, model.device)
        self.layers = [
            (
                self.norm.scale(layer.input_norm),
                None if layer.state_norm is None else self.norm.scale(layer.state_norm),
                PackedLinear(layer.qkv, layer.qkv_bias),
                layer.norm_of_heads,
                PackedLinear(layer.output),
                self.norm.scale(layer.mlp_norm),
                PackedLinear(layer.gate_up),
                PackedLinear(layer.down),
            )
            for layer in model.layers
        ]
        self.last_norm, self.head, self.kept = self.norm.scale(model.norm), PackedLinear(model.vocab_weight), model.kept

    def project(self, states: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocab"]:
        """Logits over the whole vocabulary."""
        return spread(self.head(states), self.kept, self.config.vocab_size)

    def begin(self, prompts: TokenIds, room: int) -> tuple[LlamaCache, Int[Tensor, "batch len"]]:
        """An empty cache for the prompts and ``room`` more tokens, and the prompts without their last tokens, padded on the right."""
        tokens, _ = pad_requests(prompts, [[]] * len(prompts), self.config.max_position_embeddings)
        cache = LlamaCache(self, len(prompts), max(map(len, prompts)) + max(room, STEP))
        return cache, tokens.to(self.embed.device)

    def prefill(self, prompts: TokenIds, room: int) -> tuple[LlamaCache, Int[Tensor, " batch"]]:
        cache, tokens = self.begin(prompts, room)
        cache.read(tokens)
        cache.crop([len(prompt) - 1 for prompt in prompts])
        return cache, torch.tensor([prompt[-1] for prompt in prompts], device=self.embed.device)


class _ScaledNorm:
    """RMSNorm as x / hypot(|x|, sqrt(eps d)) * (sqrt(d) weight): the same value in half the operations, summed in float32."""

    def __init__(self, config: LlamaConfig, device: torch.device) -> None:
        self.root = math.sqrt(config.hidden_size)
        self.floor = torch.tensor(math.sqrt(config.rms_norm_eps) * self.root, device=device)

    def scale(self, weight: Float[Tensor, " width"]) -> Float[Tensor, " width"]:
        return weight * self.root

    def __call__(
        self, hidden: Float[Tensor, "rows width"], scaled: Float[Tensor, " width"]
    ) -> Float[Tensor, "rows width"]:
        size: Tensor = torch.linalg.vector_norm(hidden, 2, -1, True, dtype=torch.float32).hypot_(self.floor)
        normed: Tensor = hidden.div(size).mul_(scaled)
        return normed.to(hidden.dtype)


class _Read(NamedTuple):
    """How new tokens are read: the places in each layer that their keys and values are ``written`` to (or the ``slots`` among these), their
    rotations, and a mask of what they may not see."""

    written: tuple[Tensor, ...]
    slots: Int[Tensor, " rows"] | None
    rotations: Complex[Tensor, "*rows half"]
    mask: Float[Tensor, "*rows end"] | None


class LlamaCache:
    """Keys and values of a batch in one preallocated tensor; a row is cropped by shortening its length.

    Anything beyond a row's length is masked, and later overwritten. While all rows have the same length (always, for a batch of one), writes
    are slices and there is one mask; otherwise writes are scattered and each row has its own mask. At these sizes an operation costs more
    than its arithmetic, so ``read`` uses few operations, in place: it takes 0.7 of the time of the plain form.

    ``read`` leaves in ``taken`` the residual stream before each of the layers ``takes``; the number of layers stands for that after the last one.

    On a CPU attention is in float32, whatever the weights: torch's kernel for one query is slow in bfloat16, and scores rounded to
    bfloat16 are less exact.
    """

    def __init__(self, decoder: LlamaDecoder, batch: int, capacity: int) -> None:
        config = decoder.config
        self.decoder, self.lengths = decoder, [0] * batch
        self.takes: tuple[int, ...] = ()
        self.taken: list[Tensor] = []
        kv = 2 * config.num_key_value_heads  # keys, then values
        shape = (config.num_hidden_layers, batch, capacity, kv, config.head_dim)
        weight = decoder.embed
        dtype = torch.float32 if weight.device.type == "cpu" else weight.dtype
        self.store = torch.zeros(shape, dtype=dtype, device=weight.device)

    def extend(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch new vocab"]:
        return self.decoder.project(self.states(tokens)).view(*tokens.shape, -1)

    def states(
        self,
        tokens: Int[Tensor, "batch new"],
        tree: Tree | None = None,
        hidden: Float[Tensor, "batch new width"] | None = None,
    ) -> Float[Tensor, "rows width"]:
        """Append tokens, or the nodes of a ``tree``; return the states that are projected on the vocabulary."""
        return self.decoder.norm(self.read(tokens, tree, hidden), self.decoder.last_norm)

    def read(
        self,
        tokens: Int[Tensor, "batch new"],
        tree: Tree | None = None,
        hidden: Float[Tensor, "batch new width"] | None = None,
    ) -> Float[Tensor, "rows width"]:
        """Append tokens without projecting on the vocabulary. A row may run past the context while others do not; its logits there mean
        nothing, and the caller drops the tokens. A node of a ``tree`` sees only itself and its ancestors. ``hidden`` is what the first layer
        reads; None: the tokens' embeddings."""
        config, norm, (batch, new) = self.decoder.config, self.decoder.norm, tokens.shape
        if not new:
            nothing = self.store.new_empty(0, config.hidden_size)
            self.taken = [nothing] * len(self.takes)
            return nothing
        heads, kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        end = max(self.lengths) + new
        ragged = min(self.lengths) + new != end or tree is not None
        written, slots, rotations, mask = self._ragged(new, end, tree) if ragged else self._even(new, end)
        is_causal = mask is None and new > 1
        window = self.store[:, :, :end].transpose(2, 3)
        keys, values = window.split_with_sizes((kv, kv), 2)
        layers = zip(self.decoder.layers, written, keys.unbind(), values.unbind(), strict=True)
        embed = self.decoder.embed
        hidden = embed.index_select(0, tokens.reshape(-1)) if hidden is None else hidden.flatten(0, 1)
        taken: list[Tensor] = []
        for number, (weights, place, key, value) in enumerate(layers):
            input_norm, state_norm, qkv, of_heads, output, mlp_norm, gate_up, down = weights
            if number in self.takes:
                taken += [hidden] * self.takes.count(number)
            if state_norm is None:
                normed = norm(hidden, input_norm)
            else:
                token, hidden = hidden.chunk(2, -1)
                state = norm(hidden, state_norm)
                normed = torch.cat([norm(token, input_norm), state], -1)
                hidden = state if config.norm_before_residual else hidden
            mixed = qkv(normed).to(self.store.dtype).view(batch, new, -1, dim)
            turning = mixed[:, :, : heads + kv]
            if of_heads is not None:
                turning.copy_(F.rms_norm(turning, (dim,), None, config.rms_norm_eps).mul_(of_heads))
            rotate_in_place(turning, rotations)
            query, cached = mixed.split_with_sizes((heads, 2 * kv), 2)
            if slots is None:
                place.copy_(cached)
            else:
                place.index_copy_(0, slots, cached.flatten(0, 1))
            query = query.transpose(1, 2)
            attended = F.scaled_dot_product_attention(
                query, key, value, mask, is_causal=is_causal, enable_gqa=kv != heads
            )
            hidden = output.added_to(hidden, attended.transpose(1, 2).reshape(batch * new, -1).to(hidden.dtype))
            gate, up = gate_up(norm(hidden, mlp_norm)).chunk(2, -1)
            hidden = down.added_to(hidden, F.silu(gate).mul_(up))
        taken += [hidden] * self.takes.count(config.num_hidden_layers)
        self.lengths, self.taken = [length + new for length in self.lengths], taken
        return hidden

    def _even(self, new: int, end: int) -> _Read:
        """How new tokens are read that begin at the same place in every row."""
        begin = end - new
        mask = _causal_mask(new, self.store.dtype, self.store.device, end) if new > 1 and begin > 0 else None
        return _Read(self.store[:, :, begin:end].unbind(), None, self.decoder.rotations[begin:end, None], mask)

    def _ragged(self, new: int, end: int, tree: Tree | None) -> _Read:
        """How new tokens are read that begin at another place in each row, or the nodes of a tree."""
        device, (batch, capacity) = self.store.device, self.store.shape[1:3]
        at = torch.tensor(self.lengths, device=device)[:, None] + torch.arange(new, device=device)
        slots = (at + torch.arange(0, batch * capacity, capacity, device=device)[:, None]).flatten()
        future = torch.arange(end, device=device) > at[:, None, :, None]
        if tree is not None:
            future, at = _hidden_by(tree, at[:, :1], end), at[:, :1] + tree.depths.to(device)
        last = self.decoder.config.max_position_embeddings - 1
        mask = torch.zeros(future.shape, dtype=self.store.dtype, device=device).masked_fill_(future, -torch.inf)
        return _Read(
            self.store.flatten(1, 2).unbind(), slots, self.decoder.rotations[at.clamp(max=last)][:, :, None], mask
        )

    def crop(self, lengths: Sequence[int]) -> None:
        self.lengths = list(lengths)

    def keep(self, begin: Sequence[int], nodes: Int[Tensor, "batch kept"], accepted: Sequence[int]) -> None:
        """Move tokens ``begin[b] + nodes[b]`` of each row to ``begin[b]``, one after the other, and keep the first and the ``accepted`` ones."""
        rows = torch.arange(len(nodes), device=nodes.device)[:, None]
        first = torch.tensor(begin, device=nodes.device)[:, None]
        to = first + torch.arange(nodes.shape[1], device=nodes.device)
        self.store[:, rows, to] = self.store[:, rows, first + nodes]
        self.crop([start + 1 + count for start, count in zip(begin, accepted, strict=True)])

    def take(self, rows: Sequence[int], since: Sequence[int] | None = None) -> None:
        lengths = [self.lengths[row] for row in rows]
        if len(rows) > len(self.lengths):
            self.store = self.store[:, torch.tensor(rows, device=self.store.device)]
        else:
            moved = [place for place, row in enumerate(rows) if row != place]
            if moved:
                start, end = (min(since) if since else 0), max(lengths)
                to, origin = (
                    torch.tensor(p, device=self.store.device) for p in (moved, [rows[place] for place in moved])
                )
                self.store[:, to, start:end] = self.store[:, origin, start:end]
            self.store = self.store[:, : len(rows)]
        self.lengths = lengths


def _hidden_by(tree: Tree, begin: Int[Tensor, "batch 1"], end: int) -> Bool[Tensor, "batch 1 nodes end"]:
    """For each node of a tree that starts at ``begin``, which of the first ``end`` tokens of its row it may not see."""
    # Column 0 stands for the tokens before the tree, the last column for those beyond it.
    hides = F.pad(~tree.attention_mask.to(begin.device), (1, 1))
    hides[..., -1] = True
    offset = (torch.arange(end, device=begin.device) - begin).clamp(-1, tree.nodes) + 1
    hidden = hides.expand(len(begin), -1, -1).gather(-1, offset[:, None].expand(-1, tree.nodes, -1))
    return hidden[:, None]


def _causal_mask(new: int, dtype: torch.dtype, device: torch.device, end: int) -> Float[Tensor, "new end"]:
    """0 where the last ``new`` of ``end`` tokens may look, -inf where not."""
    room = 1 << (end - 1).bit_length()  # so that a few cached tables serve all lengths
    mask = _mask_table(new, room, dtype, device)[:, room - end :]
    # torch's GPU kernels read eight numbers at a time. torch pads rows to a multiple of eight, but does not align where a slice begins.
    return mask if device.type == "cpu" else mask.contiguous()


@functools.lru_cache(maxsize=64)
@torch.inference_mode(False)
def _mask_table(new: int, room: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "new room"]:
    return torch.full((new, room), -torch.inf, dtype=dtype, device=device).triu(room - new + 1)
