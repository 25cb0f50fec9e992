"""What config.json of a head of DFlash or DSpark says beside the sizes. ``models.released_heads`` has the layouts of the files.

DFlash's authors write it into ``dflash_config`` or at the top level, the speculators library at the top level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.errors import UserError
from draftlab.models.config import check_layers, is_dflash, is_dspark, mask_token_of, read_config, unsupported_settings

USUAL: dict[str, tuple[Any, ...]] = {
    "speculators_model_type": ("dflash", "dspark"),
    "projector_type": ("dflash",),
    "markov_head_type": ("vanilla",),
    "shift_label": (False,),
    "input_embedding_scale": (1,),
    "output_multiplier": (1,),
    "final_logit_softcapping": (0,),
    "use_swa": (False,),
    "attention_sink_bias": (False,),
    "add_swa_attention_sink_bias": (False,),
}
"""What these settings say, if they are there, of a head that is as DFlash defines it."""
SLIDING = "sliding_attention"
USUAL_BLOCK = 16
"""The tokens of a block of DFlash where config.json does not say it; the known token is one of them."""


@dataclass(frozen=True)
class Form:
    """In what heads differ, beside their sizes.

    **Arguments:**
    - `layers`: before which of the target's layers the states are taken, counted from 0, in ascending order. The number of layers stands for the
      states after the last one, before its norm
    - `mask`: the token that the head reads for every later token of a block
    - `block`: the rows of a block, that of the known token among them
    - `from_anchor`: the row of the known token drafts the first new token, and each row the token after it (DSpark)
    - `windows`: for each layer of the head how many tokens back it sees (None: all), and whether a token sees no later one
    """

    layers: tuple[int, ...]
    mask: int
    block: int
    windows: tuple[tuple[int | None, bool], ...]
    from_anchor: bool = False

    @property
    def longest(self) -> int:
        """The new tokens of a block."""
        return self.block - (not self.from_anchor)


def read_form(config: Mapping[str, Any], folder: Path) -> Form:
    """What the flat ``config`` of a head says; a ``UserError`` names the first setting by which it departs from every known form."""
    nested, stated = config.get("dflash_config") or {}, _stated(config)
    odd = [name for name in config.get("architectures") or () if "DFlash2" in name]
    odd += [name for name, usual in USUAL.items() if stated.get(name) not in (None, *usual)]
    plain = {
        name: value for name, value in config.items() if name not in ("layer_types", "use_sliding_window", "is_causal")
    }
    odd += unsupported_settings({**plain, "model_type": "llama"})
    odd += ["mask_embedding.pt"] * (folder / "mask_embedding.pt").is_file()
    if odd:
        what = f"a head of DFlash with this {odd[0]} cannot be read"
        raise UserError(what, file=folder, remedy="use a head of DFlash's authors or of speculators")
    mask, file = mask_token_of(config), folder / "config.json"
    if mask is None:
        raise UserError("a head of DFlash without mask_token_id", file=file, remedy="fetch the head again")
    block = stated.get("block_size") or USUAL_BLOCK
    if type(block) is not int or block < 2:
        raise UserError(f"block_size: {block!r} is no number above 1", file=file, remedy="fetch the head again")
    layers, windows = _layers(config, nested, folder), _windows(config, nested, file)
    return Form(layers, mask, block, windows, drafts_from_anchor(config))


def drafts_from_anchor(config: Mapping[str, Any]) -> bool:
    """Whether the first row of a block of DFlash, that of the known token, drafts too: the block then has as many new tokens as rows. DSpark's does,
    unless config.json says otherwise."""
    return bool(config.get("sample_from_anchor", is_dspark(config)))


def longest_draft(model: Path | str) -> float:
    """The most tokens that the draft in a folder proposes at once: a head of DFlash fills in one block. Infinite for others."""
    config = read_config(model)
    block = _stated(config).get("block_size") or USUAL_BLOCK
    return block - (not drafts_from_anchor(config)) if is_dflash(config) else math.inf


def _stated(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings at the top level and in ``dflash_config``, which prevails."""
    return {**config, **(config.get("dflash_config") or {})}


def _layers(config: Mapping[str, Any], nested: Mapping[str, Any], folder: Path) -> tuple[int, ...]:
    """Before which layers the states are taken.

    DFlash's authors name the layers after which they are taken, the speculators library those before (vllm-project/vllm#40727).
    """
    name = "aux_hidden_state_layer_ids" if "speculators_model_type" in config else "target_layer_ids"
    layers = check_layers(name, nested.get(name, config.get(name)), folder)
    return tuple(layer + (name == "target_layer_ids") for layer in layers)


def _windows(config: Mapping[str, Any], nested: Mapping[str, Any], file: Path) -> tuple[tuple[int | None, bool], ...]:
    """The window of each layer, and whether its tokens see no later one."""
    count = config["num_hidden_layers"]
    kinds = config.get("layer_types") or ["full_attention"] * count
    if len(kinds) != count or not set(kinds) <= {"full_attention", SLIDING}:
        what = f"layer_types: {kinds!r} are not those of {count} layers"
        raise UserError(what, file=file, remedy="use a head whose layers have full or sliding attention")
    size = config.get("sliding_window")
    if SLIDING in kinds and not (type(size) is int and size > 0):
        what = f"sliding_window: {size!r} is no number of tokens"
        raise UserError(what, file=file, remedy="fetch the head again")
    causal = nested.get("causal", config.get("is_causal"))
    if causal is None and config.get("sliding_window_non_causal"):
        causal = False
    return tuple(
        (size if kind == SLIDING else None, kind == SLIDING if causal is None else bool(causal)) for kind in kinds
    )
