"""The papers' architectures with random weights, to measure time and memory at real size without a download.

The values of the weights do not affect the timing of a dense model. ``NAME/8`` has an eighth of the width and depth, for a test on a laptop.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from draftlab.errors import UserError
from draftlab.latency.sizes import LLAMA_FIELDS, Sizes, architecture_of
from draftlab.models import LanguageModel, set_up_gpu
from draftlab.models.gguf import Weights, export_random
from draftlab.models.hf import HubModel
from draftlab.models.llama import Llama, LlamaConfig


def llama_config(architecture: Sizes) -> LlamaConfig:
    """The config of a ``Llama`` of these sizes."""
    fields = {field: getattr(architecture, name) for name, field in LLAMA_FIELDS.items()}
    return LlamaConfig(num_key_value_heads=architecture.kv_heads, tie_word_embeddings=False, **fields)


def random_gguf(name: str, out: Path, weights: Weights, seed: int = 0) -> None:
    """Write the architecture ``name`` with random weights as a GGUF file; one tensor at a time is in memory."""
    architecture = architecture_of(name)
    if architecture.kind != "llama":
        raise UserError(f"{name} is not a decoder-only model", remedy="measure it with backend torch")
    export_random({"model_type": "llama", **asdict(llama_config(architecture))}, out, weights, seed)


def random_model(name: str, dtype: torch.dtype, device: torch.device, seed: int = 0) -> LanguageModel:
    """The architecture ``name`` with random weights of ``dtype`` on ``device``."""
    architecture = architecture_of(name)
    if device.type == "cuda":
        set_up_gpu()
    # Weights take memory only in their final type, on their final device.
    network: Any = nn.Module.to(on_meta(architecture), dtype=dtype).to_empty(device=device)
    if not isinstance(network, Llama):
        network.tie_weights()  # T5's three tables of embeddings are one; the move from "meta" separated them
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.normal_(0, 0.02, generator=generator) if weight.ndim == 2 else weight.fill_(1)
    return network if isinstance(network, Llama) else HubModel(network)


def on_meta(architecture: Sizes) -> nn.Module:
    """The network on torch's device ``meta``: its weights take no memory."""
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
        feed_forward_proj="relu" if architecture.tied else "gated-gelu",
    )
    config.decoder_start_token_id = 0
    with torch.device("meta"):
        network: nn.Module = T5ForConditionalGeneration(config)
    return network.train(False)
