"""EAGLE-3's heads as they are released (Li et al. 2025, arXiv 2503.01840), such as those for Llama 3.1 and Qwen3.

A head is one layer on three states of the target: the residual stream before an early, a middle and a late layer. For the token x_t it reads

    u = F [early; middle; late] after x_(t-1),      g_t = u + layer([norm(embed(x_t)); norm(u)]),      logits of x_(t+1) = head(norm(g_t)).

For later tokens of a block, which the target has not read, u is g_(t-1) itself. The embedding is the target's and stays as it is. The first token of
a text has no state before it, so the head does not read it. As in ``models.eagle``, the distribution of a token depends on where the
block began.

Some heads differ from this definition as ``eagle3_files.Form`` says: other states, norms before F, norm(u) for u in the sum, norm(g_(t-1)) for
g_(t-1), or more layers. Those of P-EAGLE (arXiv 2602.01469) propose a block in one pass: for each later token they read the embedding of one
token, the mask, and beside it F m, with one learnt m in the place of the target's states.

A head is no language model alone: ``load`` gives an ``Eagle3Head``, and ``Eagle3`` is the draft on a target. ``save`` writes the same layout, which vLLM
(``"method": "eagle3"``) and SGLang (``EAGLE3``) serve.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.json_files import read_object
from draftlab.files.seals import seal
from draftlab.models import LanguageModel, TokenIds
from draftlab.models.batching import pad_requests
from draftlab.models.config import read_config
from draftlab.models.eagle3_files import LAYER_IDS, MASK_STATE, Form, hides_layers, no_mask, read_form
from draftlab.models.llama import Llama
from draftlab.models.parallel_draft import masked
from draftlab.models.places import logits_by_place
from draftlab.models.released_heads import Fusion, HeadOnTarget, ReleasedHead, config_of, load_draft, take_weights
from draftlab.models.weights import fitting, read_weights, write_model


class Eagle3Head(ReleasedHead):
    """The weights of a head of EAGLE-3; ``mask_state`` is what one that proposes a block in one pass reads in place of the target's states."""

    def __init__(
        self,
        draft: Llama,
        fusion: Fusion,
        mask_state: Tensor | None,
        form: Form,
        config: dict[str, Any],
        folder: Path,
    ) -> None:
        super().__init__(draft, fusion, config, folder)
        self.form = form
        self.mask_state = None if mask_state is None else nn.Parameter(mask_state)


class Eagle3(HeadOnTarget):
    """A ``head`` on a target. ``depth``: the tokens of a block that it is trained and replayed for; longer blocks can be decoded."""

    skipped = 1
    """It does not read the first token of a text."""

    def __init__(self, head: Eagle3Head, target: LanguageModel, depth: int) -> None:
        super().__init__(head, target, depth, head.form.layers_of)
        self.form, self.mask_state = head.form, head.mask_state

    @property
    def mask(self) -> Float[Tensor, " twice"] | None:
        """What the layers read for a token that is not known yet; None for a head that drafts token after token."""
        if self.form.mask is None or self.mask_state is None:
            return None
        state = self.fusion(self.mask_state.view(1, 1, -1))[0, 0]
        return torch.cat([self.draft.embed[self.form.mask].to(state.dtype), state])

    def inputs(
        self, tokens: Int[Tensor, "batch len"], states: Float[Tensor, "batch len states"], *, own: bool
    ) -> Float[Tensor, "batch len twice"]:
        """What the layer reads: the tokens' embeddings, and beside each the state before it, the head's ``own`` or the target's."""
        if not own:
            before = self.fusion(states)
        elif self.form.norm_output:
            before = F.rms_norm(states, self.draft.norm.shape, self.draft.norm, self.draft.config.rms_norm_eps)
        else:
            before = states
        return torch.cat([F.embedding(tokens, self.draft.embed).to(before.dtype), before], -1)

    def head_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "depth positions head"]:
        check_prompts(prompts)
        padded, positions = pad_requests(prompts, answers, self.context_length, where)
        text, length = padded.to(self.device), padded.shape[1]
        with torch.no_grad():
            before = self.target.states_before(text, self.layers)[:, :-1]
        tokens = text[:, 1:]  # the first one has no state before it

        def from_own(window: Tensor, own: Tensor) -> Tensor:
            return self.inputs(tokens.gather(1, window), own, own=True)

        rows, places = positions // length, positions % length - 1
        chosen = (rows * (length - 1) + places).to(self.device)
        first = self.inputs(tokens, before, own=False)
        later = from_own if (mask := self.mask) is None else masked(mask)
        return logits_by_place(self.draft, first, later, self.depth, chosen)

    def save(self, folder: Path | str) -> None:
        """Write the head with the config.json that it came with; layers that this names in ``eagle_config`` are named for vLLM too."""
        layers = {LAYER_IDS: list(self.layers)} if hides_layers(self.config) else {}
        tensors = self.released()
        if "transformer_layer_config" not in self.config and len(self.draft.layers) == 1:
            tensors = with_midlayer(tensors)
        if self.mask_state is not None:
            tensors[MASK_STATE] = self.mask_state.detach()
        with atomic_dir(folder) as temporary:
            write_model(temporary, self.config | layers, tensors)
            seal(temporary)


def with_midlayer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a head with the name of its one layer in the layout of EAGLE's repository and SpecForge."""
    return {name.replace("layers.0.", "midlayer."): value for name, value in tensors.items()}


def check_prompts(prompts: TokenIds) -> None:
    """Refuse a prompt of one token: there is no state before it."""
    if min(map(len, prompts)) < 2:
        what = "a prompt of one token, before which the target has no state for EAGLE-3"
        raise UserError(what, remedy="leave it out, or use a chat template")


def load(folder: Path | str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Eagle3Head:
    """Read a head; a ``UserError`` names what is missing, or by what it departs from every known form."""
    folder = Path(folder)
    fields = read_config(folder)
    form = read_form(fields, folder)
    tensors = read_weights(folder, device)
    if form.mask is None and MASK_STATE in tensors:
        raise no_mask(folder)
    config = replace(config_of(fields, tensors), on_states=True, norm_before_residual=form.norm_before_residual)
    with fitting(folder):
        sizes, parts = (tensors["fc.weight"].shape[-1], config.hidden_size), form.states if form.fc_norm else 0
        with torch.device("meta"):
            fusion = Fusion(*sizes, config.rms_norm_eps, norm_before=form.norm_before_fc, parts=parts)
        mask_state = None if form.mask is None else tensors.pop(MASK_STATE).to(dtype)
        take_weights(fusion, tensors, dtype)
        draft = load_draft(config, tensors, dtype)
    if mask_state is not None and mask_state.numel() != fusion.fc.in_features:
        what = f"{MASK_STATE} has {mask_state.numel()} numbers, and the states {fusion.fc.in_features}"
        raise UserError(what, file=folder, remedy="fetch the head again")
    return Eagle3Head(draft, fusion, mask_state, form, read_object(folder / "config.json"), folder)
