"""DFlash's heads as they are released (Chen et al. 2026, arXiv 2602.06036), such as those for Qwen3 and Llama 3.1: they fill in a block at once.

A head is a few layers. After the text x_1 ... x_t, of which the target has read all but x_t, they read x_t and a mask for each later token,

    h = layers(embed(x_t), mask, mask, ...),      logits of x_(t+d) = head(norm(h_(t+d))).

Each token of the block sees the whole block, forwards and backwards. It also sees the text: the keys and values of x_1 ... x_(t-1) are projected, in
every layer, from one mixture of the target's states,

    c_j = norm(F [early; ...; late] after x_j),      key = K c_j,      value = V c_j.

Embedding and head are the target's, unless the file has its own. In a layer with a sliding window a token sees no later one, unless config.json says
otherwise. As in ``models.eagle``, the distribution of a token depends on where the block began.

The head always fills in a whole block, as it was trained; a shorter draft is the beginning of it.

A head of DSpark (Cheng et al. 2026, in the repository DeepSpec) extends this. The row of x_t drafts, too: each row predicts the token after it. And a vector m
of the token before it, of low rank, adds to the logits of a token,

    logits of x_(t+d) = head(norm(h_(t+d-1))) + M_2 m(x_(t+d-1)),

so that the tokens of a block are chosen one after the other. Its confidence head, which engines may use, is kept as it is.

``load`` gives a ``DFlashHead``, and ``DFlash`` is the draft on a target. ``save`` writes the same layout, which vLLM (``"method": "dflash"``) and
SGLang (``DFLASH``) serve.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.json_files import read_object
from draftlab.files.seals import seal
from draftlab.models import LanguageModel, TokenIds
from draftlab.models.batching import pad_requests
from draftlab.models.config import read_config
from draftlab.models.dflash_files import Form, read_form
from draftlab.models.llama import Layer, Llama, block
from draftlab.models.places import window_of
from draftlab.models.products import linear
from draftlab.models.released_heads import Fusion, HeadOnTarget, ReleasedHead, config_of, load_draft, take_weights
from draftlab.models.rotary import rotate, rotation_table
from draftlab.models.weights import fitting, read_weights, write_model

MARKOV, CONFIDENCE = "markov_head.", "confidence_head."
"""How the names of DSpark's further weights begin."""
TOGETHER = 64
"""Blocks of a request that are computed at once: of long answers, attention over all blocks would not fit in memory."""


class Seen(NamedTuple):
    """What a layer sees of the text."""

    keys: Float[Tensor, "batch kv len dim"]
    values: Float[Tensor, "batch kv len dim"]


class Markov(nn.Module):
    """What a head of DSpark adds to the logits of a token, given the one before it. The names of its weights are those in released files."""

    def __init__(self, vocab: int, rank: int, head: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank)
        self.markov_w2 = nn.Linear(rank, head, bias=False)

    def forward(self, before: Int[Tensor, " rows"]) -> Float[Tensor, "rows head"]:
        return linear(self.markov_w1(before), self.markov_w2.weight)


class DFlashHead(ReleasedHead):
    """The weights of a head of DFlash or DSpark; those of a confidence head are ``kept_as_they_are``."""

    def __init__(
        self,
        draft: Llama,
        fusion: Fusion,
        markov: Markov | None,
        form: Form,
        config: dict[str, Any],
        folder: Path,
        kept_as_they_are: Mapping[str, Tensor],
    ) -> None:
        super().__init__(draft, fusion, config, folder)
        self.markov, self.form, self.kept_as_they_are = markov, form, dict(kept_as_they_are)


class DFlash(HeadOnTarget):
    """A ``head`` on a target. ``depth``: the tokens of a block that it is trained and replayed for."""

    def __init__(self, head: DFlashHead, target: LanguageModel, depth: int) -> None:
        super().__init__(head, target, depth, lambda _: head.form.layers)
        self.form, self.markov, self.kept_as_they_are = head.form, head.markov, head.kept_as_they_are
        if depth > self.form.longest:
            what = f"it drafts at most {self.form.longest} tokens at once, not {depth}"
            raise UserError(what, file=head.folder, remedy="set draft_len and draft_lens to no more")

    def seen(self, states: Float[Tensor, "batch len states"], places: Int[Tensor, "#batch len"]) -> list[Seen]:
        """What each layer sees of tokens at these places, given the target's states there."""
        config, mixed = self.draft.config, self.fusion(states)
        rotations = rotation_table(config, self.device)[places.clamp(max=config.max_position_embeddings - 1)][
            :, :, None
        ]
        return [_seen(layer, mixed, rotations, config.head_dim, config.rms_norm_eps) for layer in self.draft.layers]

    def states_of(
        self, tokens: Int[Tensor, "batch blocks"], places: Int[Tensor, "batch blocks"], text: Sequence[Seen]
    ) -> Float[Tensor, "batch blocks block width"]:
        """The normed states of each block after one of these ``tokens``, which stand at ``places`` of the ``text``."""
        draft, config = self.draft, self.draft.config
        known, mask = F.embedding(tokens, draft.embed)[:, :, None], draft.embed[self.form.mask]
        inputs = torch.cat([known, mask.expand(*tokens.shape, self.form.block - 1, -1)], 2).to(draft.norm.dtype)
        at = places[..., None] + torch.arange(self.form.block, device=places.device)
        rotations = rotation_table(config, self.device)[at.clamp(max=config.max_position_embeddings - 1)]
        hidden, rotations = inputs.flatten(1, 2), rotations.flatten(1, 2)[:, :, None]
        for layer, seen, window in zip(draft.layers, text, self.form.windows, strict=True):
            attend = functools.partial(_attend, seen=seen, places=places, window=window)
            hidden = block(hidden, layer, rotations, config, attend)
        return F.rms_norm(hidden, draft.norm.shape, draft.norm, config.rms_norm_eps).view(inputs.shape)

    def head_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "depth positions head"]:
        padded, positions = pad_requests(prompts, answers, self.context_length, where)
        tokens, positions, length = padded.to(self.device), positions.to(self.device), padded.shape[1]
        with torch.no_grad():
            states = self.target.states_before(tokens, self.layers)
        text = self.seen(states, torch.arange(length, device=self.device)[None])
        window, chosen = window_of(positions, len(tokens), length, self.depth - 1)
        every = torch.stack([tokens.gather(1, window), window])
        parts = (every[..., begin : begin + TOGETHER] for begin in range(0, window.shape[1], TOGETHER))
        found = torch.cat([self.states_of(part[0], part[1], text) for part in parts], 1)
        rows, last = chosen // window.shape[1], chosen % window.shape[1]  # the token before the predicted one
        begin = (last - torch.arange(self.depth, device=self.device)[:, None]).clamp_min(0)
        logits = linear(found[rows, begin, last + (not self.form.from_anchor) - begin], self.draft.vocab_weight)
        return logits if self.markov is None else logits + self.markov(tokens.flatten()[positions])

    def save(self, folder: Path | str) -> None:
        """Write the head with the config.json that it came with."""
        further = {} if self.markov is None else self.markov.state_dict()
        tensors = self.released() | {f"{MARKOV}{name}": value for name, value in further.items()}
        with atomic_dir(folder) as temporary:
            write_model(temporary, self.config, tensors | self.kept_as_they_are)
            seal(temporary)


def _seen(layer: Layer, mixed: Tensor, rotations: Tensor, dim: int, eps: float) -> Seen:
    """The keys and values of a layer at tokens of the text."""
    inner = layer.output.shape[1]
    bias = None if layer.qkv_bias is None else layer.qkv_bias[inner:]
    both = linear(mixed, layer.qkv[inner:], bias)
    key, value = both.view(*both.shape[:-1], -1, dim).chunk(2, 2)
    if layer.key_norm is not None:
        key = (F.rms_norm(key.float(), (dim,), None, eps) * layer.key_norm).to(key.dtype)
    return Seen(rotate(key, rotations).transpose(1, 2), value.transpose(1, 2))


def _attend(
    query: Float[Tensor, "batch heads rows dim"],
    key: Float[Tensor, "batch kv rows dim"],
    value: Float[Tensor, "batch kv rows dim"],
    *,
    seen: Seen,
    places: Int[Tensor, "batch blocks"],
    window: tuple[int | None, bool],
) -> Float[Tensor, "batch heads rows dim"]:
    """Attention of each block over the text before it and over itself."""
    shared, (batch, heads, rows, dim), blocks = query.shape[1] // key.shape[1], query.shape, places.shape[1]
    keys, values = (each.repeat_interleave(shared, 1).to(query.dtype) for each in seen)
    split = (batch, heads, blocks, rows // blocks)
    own_keys, own_values = (each.repeat_interleave(shared, 1).view(*split, dim) for each in (key, value))
    of_text, of_block = _hidden(places, split[-1], keys.shape[2], *window)
    before = (query @ keys.transpose(-1, -2)).masked_fill(of_text, -torch.inf)
    inside = (query.view(*split, dim) @ own_keys.transpose(-1, -2)).masked_fill(of_block, -torch.inf)
    scores = torch.cat([before, inside.view(batch, heads, rows, -1)], -1).float() * dim**-0.5
    weights = scores.softmax(-1).to(query.dtype)
    text, block_itself = weights.split([keys.shape[2], split[-1]], -1)
    mixed: Tensor = text @ values + (block_itself.reshape(*split, -1) @ own_values).view(query.shape)
    return mixed


def _hidden(
    places: Int[Tensor, "batch blocks"], block: int, length: int, window: int | None, causal: bool
) -> tuple[Bool[Tensor, "batch 1 rows len"], Bool[Tensor, "block block"]]:
    """What each token of a block does not see: of the text, and of its block.

    >>> text, block = _hidden(torch.tensor([[2]]), 2, 3, None, causal=True)
    >>> text[0, 0].int().tolist(), block.int().tolist()
    ([[0, 0, 1], [0, 0, 1]], [[0, 1], [0, 0]])
    """
    inside = torch.arange(block, device=places.device)
    at, text = places[..., None, None] + inside[:, None], torch.arange(length, device=places.device)
    ahead = inside - inside[:, None]  # of a token of the block from another
    of_text = (text >= places[..., None, None]).expand(*at.shape[:3], -1)
    of_block = ahead > 0 if causal else torch.zeros_like(ahead, dtype=torch.bool)
    if window is not None:
        of_text, of_block = of_text | (at - text >= window), of_block | (ahead.abs() >= window)
    return of_text.flatten(1, 2)[:, None], of_block


def load(folder: Path | str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> DFlashHead:
    """Read a head; a ``UserError`` names what is missing, or by what it departs from every known form."""
    folder = Path(folder)
    fields = read_config(folder)
    form = read_form(fields, folder)
    tensors = read_weights(folder, device)
    config = config_of(fields, tensors)
    with fitting(folder):
        states = tensors["fc.weight"].shape[-1]
        if states % len(form.layers):
            what = f"fc.weight reads {states} numbers, which are not those of {len(form.layers)} states"
            raise UserError(what, file=folder, remedy="fetch the head again")
        with torch.device("meta"):
            fusion = Fusion(states, config.hidden_size, config.rms_norm_eps, norm_after=True)
            rank, outputs = fields.get("markov_rank"), config.head_tokens or config.vocab_size
            markov = Markov(config.vocab_size, rank, outputs) if rank else None
        take_weights(fusion, tensors, dtype)
        if markov is not None:
            take_weights(markov, tensors, dtype, MARKOV)
        unused = {name: tensors.pop(name) for name in list(tensors) if name.startswith(CONFIDENCE)}
        draft = load_draft(config, tensors, dtype)
    return DFlashHead(draft, fusion, markov, form, read_object(folder / "config.json"), folder, unused)
