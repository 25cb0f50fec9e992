"""What config.json of a head of EAGLE-3 says beside the sizes. ``models.released_heads`` has the layouts of the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.errors import UserError
from draftlab.models.config import check_layers, mask_token_of, unsupported_settings

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
"""The key for the layers of the target whose states a head of EAGLE-3 reads."""
MASK_STATE = "mask_hidden"
"""The name of what a head that proposes a block in one pass reads in place of the target's states."""
FEWEST_LAYERS = 7
"""Of a smaller target, early, middle and late would not be three layers in this order."""
USUAL = {
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "parallel_draft_step": 1,
}
"""What NVIDIA's ``eagle_config`` says of a head that is as EAGLE-3 defines it."""


@dataclass(frozen=True)
class Form:
    """In what heads differ, beside their sizes; the names are those in config.json.

    **Arguments:**
    - `layers`: before which of the target's layers the states are taken, counted from 0, in ascending order. The number of layers stands for the
      states after the last one, before its norm. None: an early, a middle and a late one (``states_read``)
    - `norm_before_residual`: the layer adds to the normed state, not to the state itself
    - `norm_before_fc`: one norm of all states together before they are mixed
    - `fc_norm`: a norm of each state before they are mixed (EAGLE-3.1)
    - `norm_output`: later tokens of a block read the normed state of the token before (EAGLE-3.1)
    - `mask`: the token that the head reads for every later token of a block, which it proposes in one pass (P-EAGLE); None: token after token
    """

    layers: tuple[int, ...] | None = None
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    mask: int | None = None

    @property
    def states(self) -> int:
        """The number of states that a head reads."""
        return 3 if self.layers is None else len(self.layers)

    def layers_of(self, target_layers: int) -> tuple[int, ...]:
        """``layers`` for a target of so many layers."""
        return states_read(target_layers) if self.layers is None else self.layers


def states_read(layers: int) -> tuple[int, int, int]:
    """Before which of a target's layers the states are taken where config.json does not say it, as in vLLM and SGLang.

    >>> states_read(32)
    (2, 16, 29)
    """
    if layers < FEWEST_LAYERS:
        what = f"a target of {layers} layers is too small for EAGLE-3"
        raise UserError(what, remedy=f"use a target of {FEWEST_LAYERS} layers or more")
    return 2, layers // 2, layers - 3


def read_form(config: Mapping[str, Any], folder: Path) -> Form:
    """What the flat ``config`` of a head says; a ``UserError`` names the first setting by which it departs from every known form."""
    further, mask = config.get("eagle_config") or {}, mask_token_of(config)
    kind = config.get("speculators_model_type", "eagle3")
    odd = [] if kind in ("eagle3", "peagle") else [f"speculators_model_type {kind!r}"]
    odd += unsupported_settings({**config, "model_type": "llama"})
    odd += [name for name, usual in USUAL.items() if further.get(name) not in (usual, None)]
    if odd:
        what = f"a head of EAGLE-3 with this {odd[0]} cannot be read"
        raise UserError(what, file=folder, remedy="use a head of EAGLE's repository, of SpecForge or of speculators")
    if kind == "peagle" and mask is None:
        raise no_mask(folder)
    # What the speculators library leaves out is True, in vLLM too.
    flags = {"norm_before_residual": "transformer_layer_config" in config} | dict(further) | dict(config)
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    stated = {name: bool(flags.get(name)) for name in names}
    return Form(layers_read(config, folder), **stated, mask=mask)


def layers_read(config: Mapping[str, Any], folder: Path) -> tuple[int, ...] | None:
    """Before which layers of the target a head of EAGLE-3 reads the states; None if its config.json does not say it.

    At the top level they are the layers before which states are taken, as vLLM reads them. In ``eagle_config`` a list that begins with 1 names the
    layers after which they are taken, as SGLang reads it (sgl-project/sglang#25454).
    """
    stated, nested = config.get(LAYER_IDS), (config.get("eagle_config") or {}).get(LAYER_IDS)
    if not (stated or nested):
        return None
    layers = check_layers(LAYER_IDS, stated or nested, folder)
    is_after = not stated and layers[0] == 1
    return tuple(layer + is_after for layer in layers)


def hides_layers(config: Mapping[str, Any]) -> bool:
    """Whether a head of EAGLE-3 names the layers that it reads only in ``eagle_config``, as SpecForge does, where vLLM does not look."""
    return not config.get(LAYER_IDS) and bool((config.get("eagle_config") or {}).get(LAYER_IDS))


def no_mask(folder: Path) -> UserError:
    """The error where the config.json of a head of P-EAGLE does not say which token is the mask."""
    what = "a head of P-EAGLE, and config.json names no mask_token_id or pard_token"
    return UserError(what, file=folder, remedy="fetch the head again")
