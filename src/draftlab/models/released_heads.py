"""Heads on a target's states, in the layouts in which they are released: what those of EAGLE-3 and of DFlash have in common.

EAGLE's repository, SpecForge, NVIDIA and DFlash's authors write the fields of a decoder at the top level of config.json. The speculators library
and Red Hat's heads have them in ``transformer_layer_config`` (``read_config`` makes that flat). The one layer of EAGLE-3 is named ``midlayer`` in
the first layout; otherwise layers are named as a Llama's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.files.weights import HEAD
from draftlab.models import LanguageModel
from draftlab.models.config import HEAD_ALONE, ONLY_DISTIL
from draftlab.models.llama import Llama, LlamaConfig, llama_config
from draftlab.models.llama_decoder import LlamaCache
from draftlab.models.llama_files import from_hub, to_hub
from draftlab.models.on_target import OnTarget, ReadableTarget, as_readable
from draftlab.models.places import ByPlace, checked_depth
from draftlab.models.products import linear
from draftlab.models.trimmed import EMBED, HEAD_TOKENS, NORM


class Fusion(nn.Module):
    """Mixes the states that a head reads into one, F [a; b; ...]. Norms may come first, one of all states together and one of each of ``parts``, or
    after it. The names of its weights are those in released files.
    """

    def __init__(
        self,
        states: int,
        width: int,
        eps: float,
        *,
        norm_before: bool = False,
        parts: int = 0,
        norm_after: bool = False,
    ) -> None:
        super().__init__()
        self.fc = nn.Linear(states, width, bias=False)
        self.input_norm = nn.RMSNorm(states, eps) if norm_before else None
        self.fc_norm = nn.ModuleList(nn.RMSNorm(states // parts, eps) for _ in range(parts))
        self.hidden_norm = nn.RMSNorm(width, eps) if norm_after else None

    def forward(self, states: Float[Tensor, "batch len states"]) -> Float[Tensor, "batch len width"]:
        states = states.float()
        if self.input_norm is not None:
            states = self.input_norm(states)
        if self.fc_norm:
            parts = states.chunk(len(self.fc_norm), -1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        mixed = linear(states, self.fc.weight)
        if self.hidden_norm is not None:
            mixed = self.hidden_norm(mixed)
        return mixed


class ReleasedHead(nn.Module):
    """The weights of a head: the layers of its ``draft``, and the ``fusion`` that mixes the target's states. What a language model can do alone is
    a ``UserError``.

    Embedding and head of the ``draft`` are on torch's device meta where the file has none: they are the target's.
    """

    def __init__(self, draft: Llama, fusion: Fusion, config: dict[str, Any], folder: Path) -> None:
        super().__init__()
        self.draft, self.fusion, self.config, self.folder = draft, fusion, config, folder

    @property
    def vocab_size(self) -> int:
        return self.draft.vocab_size

    @property
    def context_length(self) -> int:
        return self.draft.context_length

    @property
    def device(self) -> torch.device:
        return self.draft.norm.device

    def alone(self, *_: object, **__: object) -> NoReturn:
        """Refuse what needs a target."""
        raise UserError(HEAD_ALONE, file=self.folder, remedy=ONLY_DISTIL)

    answer_logits = decoder = save = alone


class HeadOnTarget(ByPlace, OnTarget[ReadableTarget]):
    """A ``head`` on a target, which reads the target's states before each of the layers that ``layers_of`` names for a target of so many. ``depth``: the
    tokens of a block that it is trained and replayed for."""

    def __init__(
        self, head: ReleasedHead, target: LanguageModel, depth: int, layers_of: Callable[[int], tuple[int, ...]]
    ) -> None:
        super().__init__(as_readable(target))
        self.depth, self.config = checked_depth(depth), head.config
        self.layers = layers_of(self.target.num_layers)
        if (last := self.layers[-1]) > self.target.num_layers:
            what = f"it reads the states before layer {last} of a target of {self.target.num_layers} layers"
            raise UserError(what, file=head.folder, remedy="use the head of this target")
        channels = head.fusion.fc.in_features // len(self.layers)
        self.draft, self.fusion = head.draft, head.fusion
        (tokens, width), made_for = self.draft.embed.shape, (self.target.embed.shape[1], self.target.vocab_size)
        if (channels, tokens) != made_for:
            mine = f"{channels} channels and {tokens} tokens"
            what = f"it was made for a target of {mine}, not {made_for[0]} and {made_for[1]}"
            raise UserError(what, file=head.folder, remedy="use the head of this target")
        # Positions are rotated by the same rule beyond the context in the head's file, which engines do not obey either.
        self.draft.config = replace(self.draft.config, max_position_embeddings=self.target.context_length)
        self.stores_embedding, self.stores_head = not self.draft.embed.is_meta, not self.draft.vocab_weight.is_meta
        borrowed = [name for name in ("embed", "head") if getattr(self.draft, name).is_meta]
        if borrowed and width != self.target.embed.shape[1]:
            named = {"embed": "embed_tokens.weight", "head": HEAD}[borrowed[0]]
            raise UserError(f"no weight {named!r}", file=head.folder, remedy="fetch the head again")
        if not self.stores_embedding:
            self.draft.embed = nn.Parameter(self.target.embed.detach())
        if not self.stores_head:
            weight = self.target.vocab_weight.detach().to(self.draft.norm.dtype)
            self.draft.head = nn.Parameter(weight, requires_grad=False)
        self.draft.embed.requires_grad_(False)

    @property
    def added(self) -> int:
        """None: all of its weights are in its folder."""
        return 0

    def of_target(self, cache: LlamaCache, states: Float[Tensor, "rows width"]) -> Float[Tensor, "rows states"]:
        """What it reads of the target: the states at the tokens that the ``cache`` read last."""
        return torch.cat(cache.taken, -1)

    def released(self) -> dict[str, Tensor]:
        """Its weights under the names that speculators and DFlash's authors give them."""
        return released_weights(
            self.draft, self.fusion, self.vocab_size, embedding=self.stores_embedding, head=self.stores_head
        )


def released_weights(draft: Llama, fusion: Fusion, vocab: int, *, embedding: bool, head: bool) -> dict[str, Tensor]:
    """The weights of a head under the names that speculators and DFlash's authors give them, perhaps with an ``embedding`` and a ``head`` of its
    own. ``vocab``: the tokens of its target."""
    tensors = to_hub(draft)
    own = {"embed_tokens.weight": tensors.pop(EMBED), HEAD: tensors.pop(HEAD)}
    kept = tensors.pop(HEAD_TOKENS, None)
    found = {name.removeprefix("model."): value for name, value in tensors.items()} | fusion.state_dict()
    found |= {name: own[name] for name, stores in zip(own, (embedding, head), strict=True) if stores}
    if kept is not None:
        among = torch.zeros(vocab, dtype=torch.bool, device=kept.device)
        among[kept] = True
        found |= {"d2t": kept - torch.arange(len(kept), device=kept.device), "t2d": among}
    return found


def config_of(fields: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> LlamaConfig:
    """The config of a head's layers, by the ``fields`` of config.json and the weights that are there."""
    is_normed = any(name.endswith("self_attn.q_norm.weight") for name in tensors)
    own = {"head_tokens": len(tensors.get("d2t", ())), "tie_word_embeddings": False}
    return llama_config({**fields, **own, "model_type": "qwen3" if is_normed else "llama"})


def take_weights(module: nn.Module, tensors: dict[str, Tensor], dtype: torch.dtype, prefix: str = "") -> None:
    """Give a module, which is on torch's device meta, its weights out of ``tensors``."""
    state = {name: tensors.pop(f"{prefix}{name}").to(dtype) for name in module.state_dict()}
    module.load_state_dict(state, assign=True)


def load_draft(config: LlamaConfig, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Llama:
    """The layers of a head with these weights; embedding and head that the file lacks are on torch's device meta."""
    names = {"norm.weight": NORM, "embed_tokens.weight": EMBED}
    found = {names.get(name, _renamed(name)): value for name, value in tensors.items()}
    for name in (EMBED, *[HEAD] * (not config.head_tokens)):
        found.setdefault(name, torch.empty(config.vocab_size, config.hidden_size, device="meta"))
    if config.head_tokens:  # token i of the head is token i + d2t[i] of the target
        found[HEAD_TOKENS] = found.pop("d2t") + torch.arange(config.head_tokens, device=found[NORM].device)
    draft = Llama(config, torch.device("meta"))
    state = from_hub(config, found)
    draft.load_state_dict(
        {name: value if name == "kept" else value.to(dtype) for name, value in state.items()}, assign=True
    )
    return draft


def _renamed(name: str) -> str:
    return re.sub(r"^(?:midlayer|layers\.(\d+))\.", lambda found: f"model.layers.{found[1] or 0}.", name)
