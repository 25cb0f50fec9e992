"""EAGLE-3's heads in the layout in which they are released (Li et al. 2025, arXiv 2503.01840), such as those for Llama 3.1 and Qwen3.

A head is one layer on three states of the target: the residual stream before an early, a middle and a late layer. For the token x_t it reads

    u = F [early; middle; late] after x_(t-1),      g_t = u + layer([norm(embed(x_t)); norm(u)]),      logits of x_(t+1) = head(norm(g_t)).

For later tokens of a block, which the target has not read, u is g_(t-1) itself. The embedding is the target's and stays as it is. The first token of
a text has no state before it, so the head does not read it. As in ``models.eagle``, the distribution of a token depends on where the
block began.

A head is no language model alone: ``load`` gives an ``Eagle3Head``, and ``Eagle3`` is the draft on a target. ``save`` writes the same layout, which vLLM
(``"method": "eagle3"``) and SGLang (``EAGLE3``) serve.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

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
from draftlab.models.config import HEAD_ALONE, ONLY_DISTIL, read_config, unsupported_settings
from draftlab.models.llama import Llama, LlamaConfig, llama_config
from draftlab.models.llama_decoder import LlamaCache, LlamaDecoder
from draftlab.models.llama_files import from_hub, to_hub
from draftlab.models.on_target import OnTarget
from draftlab.models.places import ByPlace, checked_depth, logits_by_place
from draftlab.models.products import linear
from draftlab.models.trimmed import EMBED, HEAD_TOKENS
from draftlab.models.weights import read_weights, write_model

FEWEST_LAYERS = 7
"""Of a smaller target, early, middle and late would not be three layers in this order."""


def states_read(layers: int) -> tuple[int, int, int]:
    """Before which of a target's layers the states are taken, counted from 0.

    >>> states_read(32)
    (2, 16, 29)
    """
    if layers < FEWEST_LAYERS:
        what = f"a target of {layers} layers is too small for EAGLE-3"
        raise UserError(what, remedy=f"use a target of {FEWEST_LAYERS} layers or more")
    return 2, layers // 2, layers - 3


class Eagle3Head(nn.Module):
    """The weights of a head, and its config.json. What a language model can do alone is a ``UserError``."""

    def __init__(self, draft: Llama, fuse: Float[Tensor, "width states"], config: dict[str, Any], folder: Path) -> None:
        super().__init__()
        self.draft, self.fuse, self.config, self.folder = draft, nn.Parameter(fuse), config, folder

    @property
    def vocab_size(self) -> int:
        return self.draft.vocab_size

    @property
    def context_length(self) -> int:
        return self.draft.context_length

    @property
    def device(self) -> torch.device:
        return self.fuse.device

    def answer_logits(self, prompts: TokenIds, answers: TokenIds, where: Tensor | None = None) -> NoReturn:
        raise self._alone()

    def decoder(self) -> NoReturn:
        raise self._alone()

    def save(self, folder: Path | str) -> NoReturn:
        raise self._alone()

    def _alone(self) -> UserError:
        return UserError(HEAD_ALONE, file=self.folder, remedy=ONLY_DISTIL)


class Eagle3(ByPlace, OnTarget):
    """A ``head`` on a target. ``depth``: the tokens of a block that it is trained and replayed for; longer blocks can be decoded."""

    mask = None
    skipped = 1
    """It does not read the first token of a text."""

    def __init__(self, head: Eagle3Head, target: LanguageModel, depth: int) -> None:
        super().__init__(target)
        self.depth, self.config = checked_depth(depth), head.config
        self.layers = states_read(len(self.target.layers))
        self.draft, self.fuse = head.draft, head.fuse
        states, (tokens, width) = self.fuse.shape[1], self.draft.embed.shape
        if (states, tokens) != (3 * self.target.config.hidden_size, self.target.vocab_size):
            mine, wanted = (
                f"{states // 3} channels and {tokens} tokens",
                f"{self.target.config.hidden_size} and {self.target.vocab_size}",
            )
            raise UserError(
                f"it was made for a target of {mine}, not {wanted}",
                file=head.folder,
                remedy="use the head of this target",
            )
        # Positions are rotated by the same rule beyond the context in the head's file, which engines do not obey either.
        self.draft.config = replace(self.draft.config, max_position_embeddings=self.target.context_length)
        self.stores_embedding = not self.draft.embed.is_meta
        if not self.stores_embedding:
            if width != self.target.config.hidden_size:
                raise UserError("no weight 'embed_tokens.weight'", file=head.folder, remedy="fetch the head again")
            self.draft.embed = nn.Parameter(self.target.embed.detach())
        self.draft.embed.requires_grad_(False)

    @property
    def added(self) -> int:
        """None: all of its weights are in its folder."""
        return 0

    def inputs(
        self, tokens: Int[Tensor, "batch len"], states: Float[Tensor, "batch len states"], *, own: bool
    ) -> Float[Tensor, "batch len twice"]:
        """What the layer reads: the tokens' embeddings, and beside each the state before it, the head's ``own`` or the target's three."""
        before = states if own else linear(states.float(), self.fuse)
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
        return logits_by_place(self.draft, first, from_own, self.depth, chosen)

    def drafter(self) -> LlamaDecoder:
        """The head, laid out for decoding; ``decoder`` is the target's."""
        return self.draft.decoder()

    def of_target(self, cache: LlamaCache, states: Float[Tensor, "rows width"]) -> Float[Tensor, "rows states"]:
        """What it reads of the target: the three states at the tokens that the ``cache`` read last."""
        return torch.cat(cache.taken, -1)

    def save(self, folder: Path | str) -> None:
        """Write the head with the config.json that it came with."""
        with atomic_dir(folder) as temporary:
            write_model(temporary, self.config, _to_hub(self))
            seal(temporary)


def check_prompts(prompts: TokenIds) -> None:
    """Refuse a prompt of one token: there is no state before it."""
    if min(map(len, prompts)) < 2:
        what = "a prompt of one token, before which the target has no state for EAGLE-3"
        raise UserError(what, remedy="leave it out, or use a chat template")


def load(folder: Path | str, dtype: torch.dtype = torch.float32, device: torch.device | None = None) -> Eagle3Head:
    """Read a head; a ``UserError`` names what is missing, or by what it departs from the plain form."""
    folder = Path(folder)
    raw, fields = read_object(folder / "config.json"), read_config(folder)
    odd = [*unsupported_settings({**fields, "model_type": "llama"})]
    odd += [name for name in ("norm_before_residual", "eagle_config") if fields.get(name)]
    odd += ["num_hidden_layers"] if fields["num_hidden_layers"] != 1 else []
    if odd:
        what = f"a head of EAGLE-3 with this {odd[0]} cannot be read"
        raise UserError(what, file=folder, remedy="use a head in the layout of EAGLE's repository or of SpecForge")
    tensors = read_weights(folder, device or torch.device("cpu"))
    plain = {**fields, "model_type": "llama", "head_tokens": len(tensors.get("d2t", ())), "tie_word_embeddings": False}
    config = replace(llama_config(plain), on_states=True)
    draft = Llama(config, torch.device("meta"))
    try:
        fuse = tensors.pop("fc.weight").to(dtype)
        state = from_hub(config, _as_llamas(tensors, config))
        draft.load_state_dict(
            {name: each if name == "kept" else each.to(dtype) for name, each in state.items()}, assign=True
        )
    except KeyError as error:
        raise UserError(f"no weight {error}", file=folder, remedy="fetch the head again") from None
    except RuntimeError as error:
        what = f"weights that do not fit config.json: {str(error).splitlines()[-1].strip()}"
        raise UserError(what, file=folder, remedy="fetch the head again") from None
    return Eagle3Head(draft, fuse, raw, folder)


def _as_llamas(tensors: Mapping[str, Tensor], config: LlamaConfig) -> dict[str, Tensor]:
    """The weights of a head under the names of a Llama's; without an embedding of its own, an empty one."""
    names = {"norm.weight": "model.norm.weight", "embed_tokens.weight": EMBED}
    found = {names.get(name, _renamed(name)): value for name, value in tensors.items()}
    found.setdefault(EMBED, torch.empty(config.vocab_size, config.hidden_size, device="meta"))
    if config.head_tokens:  # token i of the head is token i + d2t[i] of the target
        found[HEAD_TOKENS] = found.pop("d2t") + torch.arange(config.head_tokens, device=found["lm_head.weight"].device)
    return found


def _renamed(name: str) -> str:
    """vLLM calls the layer layers.0."""
    return re.sub(r"^(midlayer|layers\.0)\.", "model.layers.0.", name)


def _to_hub(model: Eagle3) -> dict[str, Tensor]:
    """The weights under their released names."""
    tensors = to_hub(model.draft)
    embed, kept = tensors.pop(EMBED), tensors.pop(HEAD_TOKENS, None)
    found = {name.removeprefix("model.").replace("layers.0.", "midlayer."): value for name, value in tensors.items()}
    found |= {"fc.weight": model.fuse}
    if model.stores_embedding:
        found["embed_tokens.weight"] = embed
    if kept is not None:
        among = torch.zeros(model.vocab_size, dtype=torch.bool, device=kept.device)
        among[kept] = True
        found |= {"d2t": kept - torch.arange(len(kept), device=kept.device), "t2d": among}
    return found
