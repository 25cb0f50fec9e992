"""The weights of a Llama under their names in the Hugging Face layout."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftlab.files.weights import HEAD
from draftlab.models.rotary import apart, together
from draftlab.models.trimmed import EMBED, HEAD_TOKENS, NORM

if TYPE_CHECKING:
    from draftlab.models.llama import Llama, LlamaConfig


def to_hub(model: Llama) -> dict[str, Tensor]:
    """The weights under their Hugging Face names; ``from_hub`` is the inverse."""
    config = model.config
    heads, kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    tensors: dict[str, Tensor] = {EMBED: model.embed, NORM: model.norm}
    if not config.tie_word_embeddings:
        tensors[HEAD] = model.head
    if model.kept is not None:
        tensors[HEAD_TOKENS] = model.kept
    for number, layer in enumerate(model.layers):
        query, key, value = torch.split(layer.qkv, [heads * dim, kv * dim, kv * dim])
        gate, up = layer.gate_up.chunk(2)
        parts = {
            "input_layernorm": layer.input_norm,
            "self_attn.q_proj": apart(query, dim),
            "self_attn.k_proj": apart(key, dim),
            "self_attn.v_proj": value,
            "self_attn.o_proj": layer.output,
            "post_attention_layernorm": layer.mlp_norm,
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": layer.down,
        }
        tensors |= {f"model.layers.{number}.{name}.weight": tensor for name, tensor in parts.items()}
        if layer.state_norm is not None:
            tensors[f"model.layers.{number}.hidden_norm.weight"] = layer.state_norm
        if layer.query_norm is not None and layer.key_norm is not None:
            tensors[f"model.layers.{number}.self_attn.q_norm.weight"] = apart(layer.query_norm, dim)
            tensors[f"model.layers.{number}.self_attn.k_norm.weight"] = apart(layer.key_norm, dim)
        if layer.qkv_bias is not None:
            biases = torch.split(layer.qkv_bias, [heads * dim, kv * dim, kv * dim])
            for name, bias in zip("qkv", (apart(biases[0], dim), apart(biases[1], dim), biases[2]), strict=True):
                tensors[f"model.layers.{number}.self_attn.{name}_proj.bias"] = bias
    return tensors


def from_hub(config: LlamaConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights under our names; ``tensors`` is emptied meanwhile, so that merged weights are not in memory twice."""
    take = tensors.pop
    state = {"embed": take(EMBED), "norm": take(NORM)}
    if not config.tie_word_embeddings:
        state["head"] = take(HEAD)
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
        if config.on_states and not number:
            state[f"layers.{number}.state_norm"] = take(part("hidden_norm"))
        if config.qk_norm:
            for name in ("query", "key"):
                norm = take(part(f"self_attn.{name[0]}_norm"))
                state[f"layers.{number}.{name}_norm"] = together(norm, config.head_dim)
    return state


def has_another_head(tensors: dict[str, Tensor]) -> bool:
    """Whether the weights have a head that is not the embedding."""
    embedding, head = tensors.get(EMBED), tensors.get(HEAD)
    return embedding is not None and head is not None and not torch.equal(embedding, head)
