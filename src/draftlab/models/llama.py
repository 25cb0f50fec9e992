"""The project's Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU; small and differentiable. ``llama_decoder`` decodes with it.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float, Int
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.rope_scaling import RopeScaling
from draftlab.files.seals import seal
from draftlab.models import TokenIds
from draftlab.models.batching import pad_requests
from draftlab.models.config import LLAMAS, another_head, mask_token_of, read_config, rope_scaling_of, rope_theta_of
from draftlab.models.head import spread
from draftlab.models.llama_decoder import LlamaDecoder
from draftlab.models.llama_files import from_hub, has_another_head, to_hub
from draftlab.models.products import causal_attention, linear
from draftlab.models.rotary import rotate, rotation_table
from draftlab.models.weights import fitting, read_weights, write_model


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
    rope_scaling: RopeScaling | None = None  # as Llama 3.1 has
    qkv_bias: bool = False  # as Qwen2 has
    qk_norm: bool = False  # as Qwen3 has
    pard_token: int | None = None  # what a parallel draft reads for a token that is not known yet
    on_states: bool = False  # the first layer reads a state beside each embedding, as EAGLE-3's does
    norm_before_residual: bool = False  # such a layer adds to the normed state

    def __post_init__(self) -> None:
        if not self.head_dim:
            object.__setattr__(self, "head_dim", self.hidden_size // self.num_attention_heads)
        if self.num_attention_heads % self.num_key_value_heads or self.head_dim % 2:
            raise UserError(
                f"{self.num_attention_heads} heads of size {self.head_dim} over {self.num_key_value_heads} key-value heads",
                remedy="use an even head size, and a number of heads that the key-value heads divide",
            )


class Layer(nn.Module):
    """The weights of one layer; ``block`` says what they do."""

    def __init__(self, config: LlamaConfig, on_states: bool) -> None:
        super().__init__()
        width, dim, inner = config.hidden_size, config.head_dim, config.intermediate_size
        heads, kv = config.num_attention_heads, config.num_key_value_heads
        self.input_norm = nn.Parameter(torch.ones(width))
        self.state_norm = nn.Parameter(torch.ones(width)) if on_states else None
        self.norm_before_residual = config.norm_before_residual
        self.qkv = nn.Parameter(torch.empty((heads + 2 * kv) * dim, 2 * width if on_states else width))
        self.qkv_bias = nn.Parameter(torch.zeros((heads + 2 * kv) * dim)) if config.qkv_bias else None
        self.query_norm = nn.Parameter(torch.ones(dim)) if config.qk_norm else None
        self.key_norm = nn.Parameter(torch.ones(dim)) if config.qk_norm else None
        self.output = nn.Parameter(torch.empty(width, heads * dim))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.gate_up = nn.Parameter(torch.empty(2 * inner, width))
        self.down = nn.Parameter(torch.empty(width, inner))

    def normed(
        self, hidden: Float[Tensor, "batch len *width"], eps: float
    ) -> tuple[Float[Tensor, "batch len *width"], Float[Tensor, "batch len width"]]:
        """What query, key and value are made of, and the residual stream: of a layer on states, both halves, and the second."""
        if self.state_norm is None:
            return F.rms_norm(hidden, self.input_norm.shape, self.input_norm, eps), hidden
        token, state = hidden.chunk(2, -1)
        normed = F.rms_norm(state, self.state_norm.shape, self.state_norm, eps)
        token = F.rms_norm(token, self.input_norm.shape, self.input_norm, eps)
        return torch.cat([token, normed], -1), normed if self.norm_before_residual else state

    @property
    def norm_of_heads(self) -> Float[Tensor, "heads dim"] | None:
        """The weights of the norm of each head of query and key; None for a model without such norms."""
        if self.query_norm is None or self.key_norm is None:
            return None
        heads = self.output.shape[1] // len(self.query_norm)
        kv = (len(self.qkv) // len(self.query_norm) - heads) // 2
        return torch.cat([self.query_norm.expand(heads, -1), self.key_norm.expand(kv, -1)])


class Llama(nn.Module):
    """A Llama language model; ``LanguageModel`` says what the public methods mean."""

    def __init__(self, config: LlamaConfig, device: torch.device | None = None) -> None:
        super().__init__()
        self.config = config
        with torch.device(device or "cpu"):
            self.embed = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
            on_states = (config.on_states and not number for number in range(config.num_hidden_layers))
            layers = nn.ModuleList(Layer(config, each) for each in on_states)
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
    def num_layers(self) -> int:
        return self.config.num_hidden_layers

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

    def forward(self, tokens: Int[Tensor, "batch len"]) -> Float[Tensor, "batch len vocab"]:
        """Logits that follow each token. Rows are padded on the right; attention is causal, so padding changes no logits before it."""
        return spread(linear(self.states(tokens), self.vocab_weight), self.kept, self.vocab_size)

    def states(
        self, tokens: Int[Tensor, "batch len"], positions: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "*chosen width"]:
        """What is projected on the vocabulary: the last layer's output, normed; with ``positions`` (into the flattened batch x len) only there."""
        for stream in self.streams(tokens):
            hidden = stream
        if positions is not None:
            hidden = hidden.flatten(0, 1)[positions]
        return F.rms_norm(hidden, self.norm.shape, self.norm, self.config.rms_norm_eps)

    def states_before(
        self, tokens: Int[Tensor, "batch len"], layers: Sequence[int]
    ) -> Float[Tensor, "batch len states"]:
        """The residual stream before each of these ``layers``, which ascend, side by side."""
        before = zip(range(layers[-1] + 1), self.streams(tokens), strict=False)
        found = {number: stream for number, stream in before if number in layers}
        return torch.cat([found[number] for number in layers], -1)

    def streams(self, tokens: Int[Tensor, "batch len"]) -> Iterator[Float[Tensor, "batch len width"]]:
        """The residual stream before each layer, and after the last one."""
        rotations = rotation_table(self.config, self.device)[: tokens.shape[1], None]
        hidden = F.embedding(tokens, self.embed)
        yield hidden
        for layer in self.layers:
            hidden = block(hidden, layer, rotations, self.config)
            yield hidden

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
        kind = "qwen3" if self.config.qk_norm else "qwen2" if self.config.qkv_bias else "llama"
        config = dataclasses.asdict(self.config)
        scaling = config.pop("rope_scaling")
        for name in ("on_states", "norm_before_residual"):  # of heads of EAGLE-3, which are saved in their own layout
            del config[name]
        rope = {
            "rope_theta": self.config.rope_theta,
            "rope_type": "llama3" if scaling else "default",
            **(scaling or {}),
        }
        config |= {
            "architectures": [LLAMAS[kind]],
            "model_type": kind,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rope_parameters": rope,
            "dtype": str(self.embed.dtype).removeprefix("torch."),
        }
        if scaling:
            config["rope_scaling"] = rope  # where older engines look for it
        with atomic_dir(folder, sum(weight.nbytes for weight in self.parameters())) as temporary:
            write_model(temporary, config, to_hub(self))
            seal(temporary)


def block(
    hidden: Float[Tensor, "batch len width"],
    layer: Layer,
    rotations: Complex[Tensor, "len 1 half"],
    config: LlamaConfig,
    attend: Callable[[Tensor, Tensor, Tensor], Tensor] = causal_attention,
) -> Float[Tensor, "batch len width"]:
    """One pre-norm layer: attention (query, key, value: batch heads len dim), then SwiGLU, each added to the residual stream."""
    heads, kv, eps = config.num_attention_heads, config.num_key_value_heads, config.rms_norm_eps
    normed, hidden = layer.normed(hidden, eps)
    qkv = linear(normed, layer.qkv, layer.qkv_bias)
    qkv = qkv.view(*qkv.shape[:-1], -1, config.head_dim)
    turning, value = qkv[:, :, : heads + kv], qkv[:, :, heads + kv :]
    if (norm_of_heads := layer.norm_of_heads) is not None:
        turning = (F.rms_norm(turning.float(), norm_of_heads.shape[-1:], None, eps) * norm_of_heads).to(turning.dtype)
    query, key = torch.split(rotate(turning, rotations), [heads, kv], 2)
    mixed = attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    hidden = hidden + linear(mixed.transpose(1, 2).flatten(2), layer.output)
    gate, up = linear(F.rms_norm(hidden, layer.mlp_norm.shape, layer.mlp_norm, eps), layer.gate_up).chunk(2, -1)
    return hidden + linear(F.silu(gate) * up, layer.down)


def llama_config(given: Mapping[str, Any]) -> LlamaConfig:
    """The config of our Llama from that of a Hugging Face folder of a family in ``LLAMAS``."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    fields = {"num_key_value_heads": given["num_attention_heads"]}
    fields |= {name: value for name, value in given.items() if value is not None}
    fields |= {"rope_theta": rope_theta_of(given), "rope_scaling": rope_scaling_of(given)}
    fields |= {"pard_token": mask_token_of(given)}
    fields |= {"qkv_bias": given.get("model_type") == "qwen2", "qk_norm": given.get("model_type") == "qwen3"}
    names = {field.name for field in dataclasses.fields(LlamaConfig)}
    return LlamaConfig(**{name: value for name, value in fields.items() if name in names})


def load(folder: Path | str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Llama:
    """Read a folder of a family in ``LLAMAS``; a ``UserError`` names what is missing, damaged or has the wrong shape."""
    folder = Path(folder)
    config = llama_config(read_config(folder))
    model = Llama(config, torch.device("meta"))
    tensors = read_weights(folder, device)
    if config.tie_word_embeddings and has_another_head(tensors):
        raise another_head(folder)
    with fitting(folder):
        state = from_hub(config, tensors)
        kept = {"kept": state.pop("kept")} if config.head_tokens else {}
        for name in state:
            state[name] = state[name].to(dtype)
        model.load_state_dict(state | kept, assign=True)
    return model.requires_grad_(True)
