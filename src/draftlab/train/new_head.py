"""A head of EAGLE-3 or DFlash for a target that has none: random weights in the layout of released heads. Distillation on traffic teaches it.

Sizes, positions and the embedding are the target's. A head of EAGLE-3 proposes the tokens that are most frequent in the traffic; its projection
begins as the target's rows of these tokens. Other weights begin as those of a new Llama (``Llama.initialise``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Generator, Tensor, nn

from draftlab.data import cleaners, companions, registry
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.json_files import write_json
from draftlab.files.scratch import scratch
from draftlab.files.seals import seal
from draftlab.files.weights import EMBEDDING, HEAD, weight_files
from draftlab.models import Tokenizer, hub, load_tokenizer
from draftlab.models.checkpoint import head_counts, head_dim
from draftlab.models.config import copy_files, read_config, unsupported_settings
from draftlab.models.eagle3 import with_midlayer
from draftlab.models.eagle3_files import LAYER_IDS, states_read
from draftlab.models.llama import Llama, llama_config
from draftlab.models.released_heads import Fusion, released_weights
from draftlab.models.weights import write_model
from draftlab.train.designs import frequent_tokens

AS_TARGET = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "rms_norm_eps"),
    *("max_position_embeddings", "rope_theta", "rope_scaling", "rope_parameters"),
    *("bos_token_id", "eos_token_id", "pad_token_id"),
)
"""What config.json of a head says as that of its target does; the first five must be there."""


def new_head(
    *,
    target: str,
    traffic: Path,
    out: Path,
    kind: Literal["eagle3", "dflash"] = "eagle3",
    layers: int = 1,
    tokens: int = 32_000,
    block: int = 8,
    mask: str = "",
    seed: int = 0,
) -> None:
    """Make an untrained head of EAGLE-3 or DFlash for a target that has none; distillation on your traffic then teaches it.

    **Arguments:**
    - `target`: the target: a model folder, a GGUF file or a hub id
    - `traffic`: a file of your prompts, with or without answers
    - `out`: the folder to write
    - `kind`: eagle3 drafts token after token; dflash fills in a whole block at once
    - `layers`: layers of the head; dflash reads as many states of the target, eagle3 always three
    - `tokens`: how many tokens a head of eagle3 can propose, those most frequent in the traffic; 0: all, as dflash
    - `block`: tokens of a block of dflash, the last known one among them
    - `mask`: the token that dflash reads for one that is not known yet; without it, one that is in no text
    - `seed`: seed of the weights
    """
    for name, value, least in (("layers", layers, 1), ("tokens", tokens, 0), ("block", block, 2)):
        if value < least:
            raise UserError(f"--{name} is {value}", remedy=f"give {least} or more")
    hub.check_outside(target, out)
    with scratch() as temporary:
        source = temporary / "target"
        hub.copy_model(target, source)
        config, tokenizer = _config(source, target), load_tokenizer(source)
        vocab, kept = config["vocab_size"], list[int]()
        if kind == "eagle3":
            kept, share = _kept(traffic, tokenizer, tokens, vocab)
            config |= _eagle3(config, layers, len(kept))
            print(f"it can propose {len(kept):,} of {vocab:,} tokens, {share:.1%} of the traffic's")
        else:
            config |= _dflash(config, layers, block, _mask(tokenizer, mask, vocab))
        tensors = _weights(config, Generator().manual_seed(seed), source, kept)
        del config["target_layers"]
        with atomic_dir(out) as folder:
            copy_files(source, folder, hub.TOKENIZER)
            write_model(folder, config, tensors)
            write_json(folder / "generation_config.json", {"eos_token_id": list(tokenizer.eos_ids)})
            seal(folder)
    learns = sum(value.numel() for value in tensors.values() if value.is_floating_point())
    print(
        f"{out}: a head with {learns / 1e6:.1f} million weights, which has learnt nothing; distil it before it serves"
    )


def _config(folder: Path, target: str) -> dict[str, Any]:
    """What the config.json of a head says whatever its kind, and ``target_layers``."""
    stated = read_config(folder)
    if missing := [name for name in (*AS_TARGET[:5], "num_hidden_layers") if stated.get(name) is None]:
        what = f"config.json has no {missing[0]}"
        raise UserError(what, file=target, remedy="use a decoder whose config.json names its sizes at the top level")
    sizes = {"head_dim": head_dim(stated), "num_key_value_heads": head_counts(stated)[1]}
    usual = {"hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    same = {name: stated[name] for name in AS_TARGET if stated.get(name) is not None}
    made = same | sizes | usual
    if odd := unsupported_settings({**made, "model_type": "llama"}):
        what = f"no head can be made with this {odd[0]}"
        raise UserError(what, file=target, remedy="use a target whose positions are rotated as a Llama's")
    return made | {"target_layers": stated["num_hidden_layers"]}


def _eagle3(config: Mapping[str, Any], layers: int, tokens: int) -> dict[str, Any]:
    """What the config.json of a head of EAGLE-3 says beside the sizes of its target."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "draft_vocab_size": tokens,
        LAYER_IDS: list(states_read(config["target_layers"])),
    }


def _dflash(config: Mapping[str, Any], layers: int, block: int, mask: int) -> dict[str, Any]:
    """What the config.json of a head of DFlash says beside the sizes of its target."""
    return {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "num_target_layers": config["target_layers"],
        "block_size": block,
        "dflash_config": {"mask_token_id": mask, "target_layer_ids": spread_layers(config["target_layers"], layers)},
    }


def spread_layers(target_layers: int, count: int) -> list[int]:
    """After which ``count`` layers of a target a head of DFlash takes the states: spread evenly from the second to the third last but one.

    >>> spread_layers(36, 5), spread_layers(30, 1)
    ([1, 9, 17, 25, 33], [15])
    """
    last = target_layers - 3
    if last < count:
        what = f"a target of {target_layers} layers is too small for {count} states"
        raise UserError(what, remedy="give fewer layers, or use a larger target")
    if count == 1:
        return [target_layers // 2]
    return [round(1 + place * (last - 1) / (count - 1)) for place in range(count)]


def _kept(traffic: Path, tokenizer: Tokenizer, count: int, vocab: int) -> tuple[list[int], float]:
    """The tokens that a head can propose, and their share of the answers in the traffic, or of its prompts if it has no answers."""
    rows = companions.joined(traffic, registry.find("prompts"))
    cleaned = cleaners.clean("prompts", "train", rows, cleaner=cleaners.cleaner_of("prompts"), max_chars=0)
    prompts = [record for record in cleaned if isinstance(record, Prompt)]
    asked = [tokenizer.encode(prompt.whole) for prompt in prompts]
    answered = [tokenizer.encode(prompt.reference) for prompt in prompts if prompt.reference]
    if not asked:
        raise UserError("no prompt in the file", file=traffic, remedy="see why: draftlab data check FILE")
    return frequent_tokens(answered or asked, count or vocab, tokenizer.eos_ids, asked, range(vocab))


def _mask(tokenizer: Tokenizer, name: str, vocab: int) -> int:
    """The token ``name``, or one that is in no text: a row without a token, else a special token that no chat template writes."""
    if name:
        token = tokenizer.backend.token_to_id(name)
        if token is None:
            raise UserError(f"the target has no token {name!r}", remedy="name a token as its tokenizer.json does")
        return int(token)
    if tokenizer.vocab_size < vocab:
        return tokenizer.vocab_size
    written = f"{tokenizer.chat_template}{tokenizer.tool_template}{tokenizer.bos_token}{tokenizer.eos_token}"
    added = tokenizer.backend.get_added_tokens_decoder()
    unused = [token for token, one in added.items() if one.special and one.content not in written]
    unused = [token for token in unused if token not in tokenizer.eos_ids]
    if not unused:
        raise UserError("each token of the target may be in a text", remedy="name one that yours has not: --mask TOKEN")
    return max(unused)


def _weights(config: Mapping[str, Any], generator: Generator, target: Path, kept: list[int]) -> dict[str, Tensor]:
    """The weights of a new head; one of EAGLE-3 has the target's rows of the tokens that are ``kept``, one of DFlash keeps none apart."""
    width, states = config["hidden_size"], 3 if kept else config["num_hidden_layers"]
    # The embedding is the target's, so this Llama has none.
    fields = {**config, "vocab_size": 0, "head_tokens": len(kept)}
    draft = Llama(replace(llama_config(fields), on_states=bool(kept))).initialise(generator)
    fusion = Fusion(states * width, width, config["rms_norm_eps"], norm_after=not kept)
    nn.init.normal_(fusion.fc.weight, std=0.02, generator=generator)
    if kept:
        draft.kept = torch.tensor(kept)
        draft.head = nn.Parameter(_projection(target)[draft.kept])
    tensors = released_weights(draft, fusion, config["vocab_size"], embedding=False, head=bool(kept))
    if kept and len(draft.layers) == 1:
        tensors = with_midlayer(tensors)
    return {name: value.bfloat16() if value.is_floating_point() else value for name, value in tensors.items()}


def _projection(target: Path) -> Tensor:
    """The target's projection of states on its vocabulary, which may be its embedding."""
    found = dict[str, Tensor]()
    for file in weight_files(target):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (not a dict)
                if name == HEAD or name.endswith(EMBEDDING):
                    found[name] = weights.get_tensor(name)
    if not found:
        raise UserError("no embedding", file=target, remedy="use a decoder of transformers")
    return found.get(HEAD, next(iter(found.values())))
