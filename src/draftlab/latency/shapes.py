"""The papers' architectures with random weights, built where they run: time and memory at real size without a download.

Weights change no timing of a dense model. ``reduced`` divides widths and depths, for a test on a laptop.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from draftlab.errors import UserError
from draftlab.models import LanguageModel
from draftlab.models.gguf import Weights, export_random
from draftlab.models.hf import HubModel
from draftlab.models.llama import Llama, LlamaConfig


@dataclass(frozen=True)
class Architecture:
    """The sizes of a published model, as in its config.json."""

    kind: Literal["llama", "t5"]
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    activation: str = "silu"


ARCHITECTURES = {
    "vicuna-33b": Architecture("llama", 6656, 17920, 60, 52, 52, 32000, 2048),
    "vicuna-7b": Architecture("llama", 4096, 11008, 32, 32, 32, 32000, 4096),
    "tinyllama-1.1b": Architecture("llama", 2048, 5632, 22, 32, 4, 32000, 2048),
    "llama-160m": Architecture("llama", 768, 3072, 12, 12, 12, 32000, 2048),
    "t5-xl": Architecture("t5", 2048, 5120, 24, 32, 32, 32128, 512, "gated-gelu"),
    "t5-small": Architecture("t5", 512, 2048, 6, 8, 8, 32128, 512, "relu"),
}
"""Flan-T5-XL is ``t5-xl``, T5-efficient-small is ``t5-small``; the rest carry their own names."""


def reduced(architecture: Architecture, by: int) -> Architecture:
    """The same model with widths and depth divided by ``by`` (heads keep their width, grouping its ratio)."""
    heads = max(1, architecture.heads // by)
    kv_heads = max(1, heads * architecture.kv_heads // architecture.heads)
    head_dim = architecture.hidden // architecture.heads
    return Architecture(
        architecture.kind,
        hidden=heads // kv_heads * kv_heads * head_dim,
        ffn=max(8, architecture.ffn // by),
        layers=max(1, architecture.layers // by),
        heads=heads // kv_heads * kv_heads,
        kv_heads=kv_heads,
        vocab=architecture.vocab // by,
        context=architecture.context,
        activation=architecture.activation,
    )


def find(name: str) -> Architecture:
    """The architecture ``name``, or ``name/8`` for a reduced one."""
    base, _, by = name.partition("/")
    if base not in ARCHITECTURES or (by and not re.fullmatch(r"[1-9]\d{0,2}", by)):
        known = ", ".join(ARCHITECTURES)
        raise UserError(
            f"no folder and no architecture {name!r}",
            remedy=f"give a model folder, or one of {known}, or NAME/8 for an eighth of its width and depth",
        )
    return reduced(ARCHITECTURES[base], int(by)) if by else ARCHITECTURES[base]


def llama_config(architecture: Architecture) -> LlamaConfig:
    """The sizes as ``Llama`` wants them."""
    return LlamaConfig(
        vocab_size=architecture.vocab,
        hidden_size=architecture.hidden,
        intermediate_size=architecture.ffn,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.kv_heads,
        max_position_embeddings=architecture.context,
        tie_word_embeddings=False,
    )


def random_gguf(name: str, out: Path, weights: Weights, seed: int = 0) -> None:
    """Write the architecture ``name`` with random weights as a GGUF file, one tensor in memory at a time."""
    architecture = find(name)
    if architecture.kind != "llama":
        raise UserError(f"{name} is not a decoder-only model", remedy="measure it with backend torch")
    export_random({"model_type": "llama", **asdict(llama_config(architecture))}, out, weights, seed)


def random_model(name: str, dtype: torch.dtype, device: torch.device, seed: int = 0) -> LanguageModel:
    """The architecture ``name`` with random weights of ``dtype`` on ``device``."""
    architecture = find(name)
    # Only the weights' final type and place ever take memory.
    network: Any = nn.Module.to(on_meta(architecture), dtype=dtype).to_empty(device=device)
    if not isinstance(network, Llama):
        network.tie_weights()  # T5's three tables of embeddings are one, which a move from "meta" parts
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.02, generator=generator) if weight.ndim == 2 else weight.fill_(1)
    return network if isinstance(network, Llama) else HubModel(network, architecture.vocab)


def on_meta(architecture: Architecture) -> nn.Module:
    """The network without memory for its weights."""
    if architecture.kind == "llama":
        return Llama(llama_config(architecture), torch.device("meta"))
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=architecture.vocab,
        d_model=architecture.hidden,
        d_ff=architecture.ffn,
        d_kv=64,
        num_layers=architecture.layers,
        num_heads=architecture.heads,
        feed_forward_proj=architecture.activation,
    )
    config.decoder_start_token_id = 0
    with torch.device("meta"):
        network: nn.Module = T5ForConditionalGeneration(config)
    return network.train(False)
