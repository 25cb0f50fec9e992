"""The project's Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU; small, differentiable, with a static cache.

It exists because the models of this project are small: importing the Llama of ``transformers`` costs about 4 s per process, and
its forward pass is several times slower at a few million parameters. The logits agree to 1e-5 (``tests/models/test_llama.py``), and
files have the Hugging Face names and layout, so transformers, vLLM and llama.cpp's converter can read a folder made by ``save``.

In memory, two things differ from the files. Query, key and value are one matrix, as are gate and up, for fewer and larger products.
The rows of query and key are reordered so that rotary pairs are neighbours, and a rotation is one complex product.
A draft may have a trimmed head, with rows only for the ``head_tokens`` tokens in ``kept`` (FR-Spec, Zhao et al. 2025; EAGLE-3's d2t). It reads
every token but proposes only those; the logits of all others are -inf, a probability of zero, which every verifier can handle.
For training on a CPU, wrap the forward pass in ``torch.autocast("cpu", torch.bfloat16)``: matrix products then run in bfloat16 over float32
masters, and the residual stream stays in float32.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Complex, Float, Int
from torch import Tensor, nn

from draftlab.core.tree import Tree
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.seals import seal
from draftlab.models import TokenIds
from draftlab.models.batching import STEP, pad_requests
from draftlab.models.config import read_config, rope_of
from draftlab.models.products import causal_attention, linear
from draftlab.models.trimmed import HEAD_TOKENS
from draftlab.models.weights import read_weights, write_model

PACKED = {torch.float32: range(1 << 15, 1 << 22), torch.bfloat16: range(1 << 15, 1 << 25)}
"""Sizes of a weight that is copied into oneDNN's layout for decoding."""

PACKED_PRODUCT = {torch.float32: 5 << 17, torch.bfloat16: 0}
"""Rows times size of a weight from which the copy is the faster."""


@dataclass(frozen=True)
class LlamaConfig:
    """The fields of a Hugging Face Llama config that matter, under the same names."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    max_position_embeddings: int
    head_dim: int = 0  # 0: hidden_size / num_attention_heads
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    tie_word_embeddings: bool = True
    head_tokens: int = 0  # 0: the whole vocabulary
    bos_token_id: int | None = 1
    eos_token_id: int | tuple[int, ...] | None = 2
    pad_token_id: int | None = 0
    qkv_bias: bool = False  # as Qwen2 has

    def __post_init__(self) -> None:
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise UserError(
                f"{self.num_attention_heads} heads of size {self.head_dim} over {self.num_key_value_heads} key-value heads",
                remedy="use an even head size, and a number of heads that the key-value heads divide",
            )


class Layer(nn.Module):
    """The weights of one layer; ``_block`` says what they do."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
        heads, kv = config.num_attention_heads, config.num_key_value_heads
        self.input_norm = nn.Parameter(torch.ones(width))
        self.qkv = nn.Parameter(torch.empty((heads + 2 * kv) * dim, width))
        self.qkv_bias = nn.Parameter(torch.zeros((heads + 2 * kv) * dim)) if config.qkv_bias else None
        self.output = nn.Parameter(torch.empty(width, heads * dim))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Parameter(torch.empty(2 * inner, width))
        self.down = nn.Parameter(torch.empty(width, inner))


class Llama(nn.Module):
    """A Llama language model; ``LanguageModel`` says what the public methods mean."""

    def __init__(self, config: LlamaConfig, device: torch.device | None = None) -> None:
        super().__init__()
        self.config = config
        with torch.device(device or "cpu"):
            self.embed = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
            layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
            self.layers = cast("list[Layer]", layers)
            self.norm = nn.Parameter(torch.ones(config.hidden_size))
            if not config.tie_word_embeddings:
                self.head = nn.Parameter(torch.empty(config.head_tokens or config.vocab_size, config.hidden_size))
            self.kept: Tensor | None
            self.register_buffer("kept", torch.arange(config.head_tokens) if config.head_tokens else None)

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def context_length(self) -> int:
        return self.config.max_position_embeddings

    @property
    def device(self) -> torch.device:
        return self.embed.device

    @property
    def vocab_weight(self) -> Float[Tensor, "head width"]:
        return self.embed if self.config.tie_word_embeddings else self.head

    def initialise(self, generator: torch.Generator) -> Llama:
        """Draw fresh weights: normal, 0.02; projections onto the residual stream scaled by 1/sqrt(2 layers)."""
        shrink = (2 * self.config.num_hidden_layers) ** -0.5
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                std = 0.02 * (shrink if name.endswith(("output", "down")) else 1.0)
                nn.init.normal_(weight, std=std, generator=generator)
        return self

    def forward(
        self, tokens: Int[Tensor, "batch len"], positions: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "*chosen vocab"]:
        """Logits that follow each token; with ``positions`` (into the flattened batch x len) only those are projected.

        Rows are padded on the right; attention is causal, so padding changes no logits before it.
        """
        return spread(linear(self.states(tokens, positions), self.vocab_weight), self.kept, self.vocab_size)

    def states(
        self, tokens: Int[Tensor, "batch len"], positions: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "*chosen width"]:
        """What is projected on the vocabulary: the last layer's output, normed."""
        config = self.config
        rotations = _rotations(config, self.device)[: tokens.shape[1], None]
        hidden = F.embedding(tokens, self.embed)
        for layer in self.layers:
            hidden = _block(hidden, layer, rotations, config)
        if positions is not None:
            hidden = hidden.flatten(0, 1)[positions]
        return F.rms_norm(hidden, self.norm.shape, self.norm, config.rms_norm_eps)

    def answer_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "positions vocab"]:
        return spread(self.head_logits(prompts, answers, where), self.kept, self.vocab_size)

    def head_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "positions head"]:
        """``answer_logits`` of the tokens of the head alone, in its order."""
        tokens, positions = pad_requests(prompts, answers, self.context_length, where)
        return linear(self.states(tokens.to(self.device), positions.to(self.device)), self.vocab_weight)

    def decoder(self) -> LlamaDecoder:
        return LlamaDecoder(self)

    def save(self, folder: Path | str) -> None:
        config = dataclasses.asdict(self.config) | {
            "architectures": ["Qwen2ForCausalLM" if self.config.qkv_bias else "LlamaForCausalLM"],
            "model_type": "qwen2" if self.config.qkv_bias else "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rope_parameters": {"rope_theta": self.config.rope_theta, "rope_type": "default"},
            "dtype": str(self.embed.dtype).removeprefix("torch."),
        }
        with atomic_dir(folder, sum(weight.nbytes for weight in self.parameters())) as temporary:
            write_model(temporary, config, self._hub_tensors())
            seal(temporary)

    def _hub_tensors(self) -> dict[str, Tensor]:
        """The weights under their Hugging Face names; ``_from_hub`` is the inverse."""
        config = self.config
        heads, kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        tensors: dict[str, Tensor] = {"model.embed_tokens.weight": self.embed, "model.norm.weight": self.norm}
        if not config.tie_word_embeddings:
            tensors["lm_head.weight"] = self.head
        if self.kept is not None:
            tensors[HEAD_TOKENS] = self.kept
        for number, layer in enumerate(self.layers):
            query, key, value = torch.split(layer.qkv, [heads * dim, kv * dim, kv * dim])
            gate, up = layer.gate_up.chunk(2)
            parts = {
                "input_layernorm": layer.input_norm,
                "self_attn.q_proj": _apart(query, dim),
                "self_attn.k_proj": _apart(key, dim),
                "self_attn.v_proj": value,
                "self_attn.o_proj": layer.output,
                "post_attention_layernorm": layer.mlp_norm,
                "mlp.gate_proj": gate,
                "mlp.up_proj": up,
                "mlp.down_proj": layer.down,
            }
            tensors |= {f"model.layers.{number}.{name}.weight": tensor for name, tensor in parts.items()}
            if layer.qkv_bias is not None:
                biases = torch.split(layer.qkv_bias, [heads * dim, kv * dim, kv * dim])
                for name, bias in zip("qkv", (_apart(biases[0], dim), _apart(biases[1], dim), biases[2]), strict=True):
                    tensors[f"model.layers.{number}.self_attn.{name}_proj.bias"] = bias
        return tensors


class LlamaDecoder:
    """A copy of a Llama's current weights, laid out for decoding; see ``Decoder``."""

    def __init__(self, model: Llama) -> None:
        self.config, self.embed, self.rotations = model.config, model.embed, _rotations(model.config, model.device)
        self.norm = _ScaledNorm(model.config, model.device)
        self.layers = [
            (
                self.norm.scale(layer.input_norm),
                _Linear(layer.qkv, layer.qkv_bias),
                _Linear(layer.output),
                self.norm.scale(layer.mlp_norm),
                _Linear(layer.gate_up),
                _Linear(layer.down),
            )
            for layer in model.layers
        ]
        self.last_norm, self.head, self.kept = self.norm.scale(model.norm), _Linear(model.vocab_weight), model.kept

    def project(self, states: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocab"]:
        """Logits over the whole vocabulary."""
        return spread(self.head(states), self.kept, self.config.vocab_size)

    def prefill(self, prompts: TokenIds, room: int) -> tuple[LlamaCache, Int[Tensor, " batch"]]:
        tokens, _ = pad_requests(prompts, [[]] * len(prompts), self.config.max_position_embeddings)
        cache = LlamaCache(self, len(prompts), max(map(len, prompts)) + max(room, STEP))
        if tokens.shape[1]:
            cache.read(tokens.to(self.embed.device))
        cache.crop([len(prompt) - 1 for prompt in prompts])
        return cache, torch.tensor([prompt[-1] for prompt in prompts], device=self.embed.device)


class LlamaCache:
    """Keys and values of a batch in one preallocated tensor; a row is cropped by shortening its length.

    Anything beyond a row's length is masked, and later overwritten. While all rows have the same length (always, for a batch of one), writes
    are slices and there is one mask; otherwise writes are scattered and each row has its own mask. At these sizes an operation costs more
    than its arithmetic, so ``read`` uses few operations, in place: it takes 0.7 of the time of the plain form.

    On a CPU attention is in float32, whatever the weights: torch's kernel for one query is slow in bfloat16, and scores rounded to
    bfloat16 are less exact.
    """

    def __init__(self, decoder: LlamaDecoder, batch: int, capacity: int) -> None:
        config = decoder.config
        self.decoder, self.lengths = decoder, [0] * batch
        kv = 2 * config.num_key_value_heads  # keys, then values
        shape = (config.num_hidden_layers, batch, capacity, kv, config.head_dim)
        weight = decoder.embed
        dtype = torch.float32 if weight.device.type == "cpu" else weight.dtype
        self.store = torch.zeros(shape, dtype=dtype, device=weight.device)

    def extend(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch new vocab"]:
        return self.decoder.project(self.states(tokens)).view(*tokens.shape, -1)

    def states(self, tokens: Int[Tensor, "batch new"], tree: Tree | None = None) -> Float[Tensor, "rows width"]:
        """Append tokens, or the nodes of a ``tree``; return the states that are projected on the vocabulary."""
        return self.decoder.norm(self.read(tokens, tree), self.decoder.last_norm)

    def read(self, tokens: Int[Tensor, "batch new"], tree: Tree | None = None) -> Float[Tensor, "rows width"]:
        """Append tokens without projecting on the vocabulary. A row may run past the context while others do not; its logits there mean
        nothing, and the caller drops the tokens. A node of a ``tree`` sees only itself and its ancestors."""
        config, norm, (batch, new) = self.decoder.config, self.decoder.norm, tokens.shape
        heads, kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        low, end = min(self.lengths), max(self.lengths) + new
        ragged = low + new != end or tree is not None
        mask: Tensor | None = None
        if ragged:
            at = torch.tensor(self.lengths, device=tokens.device)[:, None] + torch.arange(new, device=tokens.device)
            slots = (
                at + torch.arange(0, batch * self.store.shape[2], self.store.shape[2], device=at.device)[:, None]
            ).flatten()
            written = self.store.flatten(1, 2).unbind()
            future = torch.arange(end, device=at.device) > at[:, None, :, None]
            if tree is not None:
                future, at = _hidden_by(tree, at[:, :1], end), at[:, :1] + tree.depths.to(at.device)
            rotations = self.decoder.rotations[at.clamp(max=config.max_position_embeddings - 1)][:, :, None]
            mask = torch.zeros(future.shape, dtype=self.store.dtype, device=at.device).masked_fill_(future, -torch.inf)
        else:
            written = self.store[:, :, low:end].unbind()
            rotations = self.decoder.rotations[low:end, None]
            if new > 1 and low > 0:
                mask = _causal_mask(new, self.store.dtype, self.store.device, end)
        is_causal = mask is None and new > 1
        window = self.store[:, :, :end].transpose(2, 3)
        keys, values = window.split_with_sizes((kv, kv), 2)
        layers = zip(self.decoder.layers, written, keys.unbind(), values.unbind(), strict=True)
        hidden = self.decoder.embed.index_select(0, tokens.reshape(-1))
        for (input_norm, qkv, output, mlp_norm, gate_up, down), place, key, value in layers:
            mixed = qkv(norm(hidden, input_norm)).to(self.store.dtype).view(batch, new, -1, dim)
            _rotate_in_place(mixed[:, :, : heads + kv], rotations)
            query, cached = mixed.split_with_sizes((heads, 2 * kv), 2)
            if ragged:
                place.index_copy_(0, slots, cached.flatten(0, 1))
            else:
                place.copy_(cached)
            query = query.transpose(1, 2)
            attended = F.scaled_dot_product_attention(
                query, key, value, mask, is_causal=is_causal, enable_gqa=kv != heads
            )
            hidden = output.added_to(hidden, attended.transpose(1, 2).reshape(batch * new, -1).to(hidden.dtype))
            gate, up = gate_up(norm(hidden, mlp_norm)).chunk(2, -1)
            hidden = down.added_to(hidden, F.silu(gate).mul_(up))
        self.lengths = [length + new for length in self.lengths]
        return hidden

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


class _Linear:
    """x -> x W^T, where rows and weight are large enough by oneDNN, on a copy of the weight in oneDNN's layout.

    torch hands float32 products to MKL, which leaves AVX-512 unused on AMD: 192 x 1024 takes 40 us against 20 at 6 rows, 174 us
    against 82 at 48. It hands bfloat16 to oneDNN, which copies the weight at every call: 576 x 3072 takes 110 us against 60 at one
    row, 205 against 142 at 16. Weights so large that the copy would matter stay as they are.
    """

    def __init__(self, weight: Float[Tensor, "out width"], bias: Float[Tensor, " out"] | None = None) -> None:
        self.weight, self.transposed, self.bias = weight, weight.t(), bias
        self.packed: Tensor | None = None
        size = weight.numel()
        fits = weight.device.type == "cpu" and size in PACKED.get(weight.dtype, ())
        fits = fits and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
        # Without AVX-512 or AVX-NE-CONVERT, oneDNN has no layout for bfloat16.
        if fits and (weight.dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()):
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), None)
        self.min_rows = PACKED_PRODUCT.get(weight.dtype, 0) / size

    def __call__(self, rows: Float[Tensor, "rows width"]) -> Float[Tensor, "rows out"]:
        if self.packed is None or rows.shape[0] < self.min_rows:
            return F.linear(rows, self.weight, self.bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self.packed, self.bias, "none", [], "")
        return product

    def added_to(
        self, others: Float[Tensor, "rows out"], rows: Float[Tensor, "rows width"]
    ) -> Float[Tensor, "rows out"]:
        """others + rows W^T."""
        if self.packed is None or rows.shape[0] < self.min_rows:
            return torch.addmm(others, rows, self.transposed)
        return self(rows).add_(others)


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


def spread(
    logits: Float[Tensor, "*rows head"], kept: Int[Tensor, " head"] | None, vocab_size: int
) -> Float[Tensor, "*rows vocab"]:
    """Logits over the vocabulary from those of the tokens ``kept`` in a trimmed head: -inf for every other token.

    >>> spread(tensor([[1.0, 2.0]]), tensor([3, 0]), vocab_size=4)
    tensor([[2., -inf, -inf, 1.]])
    """
    if kept is None:
        return logits
    return logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf).index_copy_(-1, kept, logits)


def columns_of(tokens: Int[Tensor, "*rows"], kept: Int[Tensor, " head"]) -> Int[Tensor, "*rows"]:
    """The column of each token in a head of the tokens ``kept``; tokens outside the head get the column after the last.

    >>> columns_of(tensor([0, 7]), tensor([3, 0]))
    tensor([1, 2])
    """
    size = max(int(tokens.max()), int(kept.max())) + 1
    columns = torch.full((size,), len(kept), device=kept.device)
    columns[kept] = torch.arange(len(kept), device=kept.device)
    return columns[tokens]


def _block(
    hidden: Float[Tensor, "batch len width"],
    layer: Layer,
    rotations: Complex[Tensor, "len 1 half"],
    config: LlamaConfig,
) -> Float[Tensor, "batch len width"]:
    """One pre-norm layer: causal attention, then SwiGLU, each added to the residual stream."""
    heads, kv, eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
    qkv = linear(F.rms_norm(hidden, layer.input_norm.shape, layer.input_norm, eps), layer.qkv, layer.qkv_bias)
    qkv = qkv.view(*qkv.shape[:-1], -1, config.head_dim)
    rotated = _rotate(qkv[:, :, : heads + kv], rotations)
    query, key, value = rotated[:, :, :heads], rotated[:, :, heads:], qkv[:, :, heads + kv :]
    mixed = causal_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    hidden = hidden + linear(mixed.transpose(1, 2).flatten(2), layer.output)
    gate, up = linear(F.rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, eps), layer.gate_up).chunk(2, -1)
    return hidden + linear(F.silu(gate) * up, layer.down)


def _rotate(pairs: Float[Tensor, "*rows dim"], rotations: Complex[Tensor, "*rows half"]) -> Float[Tensor, "*rows dim"]:
    turned = torch.view_as_complex(pairs.float().view(*pairs.shape[:-1], -1, 2)) * rotations
    return torch.view_as_real(turned).flatten(-2).to(pairs.dtype)


def _rotate_in_place(pairs: Float[Tensor, "*rows dim"], rotations: Complex[Tensor, "*rows half"]) -> None:
    if pairs.dtype == torch.float32:
        torch.view_as_complex(pairs.view(*pairs.shape[:-1], -1, 2)).mul_(rotations)
    else:
        pairs.copy_(_rotate(pairs, rotations))


@functools.cache
@torch.inference_mode(False)
def _rotations(config: LlamaConfig, device: torch.device) -> Complex[Tensor, "context half"]:
    """exp(i position theta^(-2j/dim)), in float64 until the end. The table outlives the call: no inference tensor, training needs it."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    angles = torch.outer(
        torch.arange(config.max_position_embeddings, dtype=torch.float64), config.rope_theta**-exponents
    )
    return torch.polar(torch.ones_like(angles), angles).to(device, torch.complex64)


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


def together(weight: Float[Tensor, "rows ..."], dim: int) -> Float[Tensor, "rows ..."]:
    """Reorder the rows of each head so that the two halves that a rotation mixes lie side by side."""
    return weight.view(-1, 2, dim // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _apart(weight: Float[Tensor, "rows ..."], dim: int) -> Float[Tensor, "rows ..."]:
    return weight.view(-1, dim // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


ROPES = ("rope_parameters", "rope_scaling")
"""Keys of a config that say how positions rotate: that of ``transformers`` 5, and that of versions before."""


def can_read(config: Mapping[str, Any]) -> bool:
    """Whether ``load`` can read this config: a plain Llama or Qwen2 without further biases, scaled positions or another activation."""
    ropes = [config.get(name) or {} for name in ROPES]
    return (
        config.get("model_type") in ("llama", "qwen2")
        and config.get("architectures") in (["LlamaForCausalLM"], ["Qwen2ForCausalLM"])
        and not config.get("use_sliding_window")
        and all(rope.get("rope_type", rope.get("type", "default")) == "default" for rope in ropes)
        and config.get("hidden_act", "silu") == "silu"
        and not config.get("attention_bias")
        and not config.get("mlp_bias")
        and not config.get("quantization_config")
    )


def load(folder: Path | str, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Llama:
    """Read a ``LlamaForCausalLM`` folder; a ``UserError`` names what is missing, damaged or has the wrong shape."""
    folder = Path(folder)
    fields = read_config(folder)
    rope = rope_of(fields)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    fields = {"num_key_value_heads": fields["num_attention_heads"]}
    fields |= {name: value for name, value in given.items() if value is not None}
    fields |= {"rope_theta": rope.get("rope_theta") or given.get("rope_theta") or 10000.0}
    fields |= {"qkv_bias": fields.get("model_type") == "qwen2"}
    names = {field.name for field in dataclasses.fields(LlamaConfig)}
    config = LlamaConfig(**{name: value for name, value in fields.items() if name in names})
    model = Llama(config, torch.device("meta"))
    tensors = read_weights(folder, device or torch.device("cpu"))
    if config.tie_word_embeddings and _has_another_head(tensors):
        what = "config.json says that the head is the embedding, but the folder has another head"
        raise UserError(what, file=folder, remedy="set tie_word_embeddings to false, or remove lm_head.weight")
    try:
        state = _from_hub(config, tensors)
        kept = {"kept": state.pop("kept")} if config.head_tokens else {}
        for name in state:
            state[name] = state[name].to(dtype)
        model.load_state_dict(state | kept, assign=True)
    except KeyError as error:
        raise UserError(f"no weight {error}", file=folder, remedy="fetch or make the model again") from None
    except RuntimeError as error:
        what = str(error).splitlines()[-1].strip()
        raise UserError(
            f"weights that do not fit config.json: {what}", file=folder, remedy="fetch the model again"
        ) from None
    return model.requires_grad_(True)


def _has_another_head(tensors: dict[str, Tensor]) -> bool:
    """Whether the weights have a head that is not the embedding."""
    embedding, head = tensors.get("model.embed_tokens.weight"), tensors.get("lm_head.weight")
    return embedding is not None and head is not None and not torch.equal(embedding, head)


def _from_hub(config: LlamaConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under our names; ``tensors`` is emptied meanwhile, so that merged weights are not in memory twice."""
    take = tensors.pop
    state = {"embed": take("model.embed_tokens.weight"), "norm": take("model.norm.weight")}
    if not config.tie_word_embeddings:
        state["head"] = take("lm_head.weight")
    if config.head_tokens:
        state["kept"] = take(HEAD_TOKENS)
    for number in range(config.num_hidden_layers):
        part = functools.partial("model.layers.{}.{}.weight".format, number)
        query, key = (together(take(part(f"self_attn.{name}_proj")), config.head_dim) for name in "qk")
        state |= {
            f"layers.{number}.input_norm": take(part("input_layernorm")),
            f"layers.{number}.qkv": torch.cat([query, key, take(part("self_attn.v_proj"))]),
            f"layers.{number}.output": take(part("self_attn.o_proj")),
            f"layers.{number}.mlp_norm": take(part("post_attention_layernorm")),
            f"layers.{number}.gate_up": torch.cat([take(part("mlp.gate_proj")), take(part("mlp.up_proj"))]),
            f"layers.{number}.down": take(part("mlp.down_proj")),
        }
        if config.qkv_bias:
            biases = [take(f"model.layers.{number}.self_attn.{name}_proj.bias") for name in "qkv"]
            biases[:2] = [together(bias, config.head_dim) for bias in biases[:2]]
            state[f"layers.{number}.qkv_bias"] = torch.cat(biases)
    return state
