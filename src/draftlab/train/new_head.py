"""A head of EAGLE-3 or DFlash for a target that has none: random weights in the layout of released heads. Distillation on traffic teaches it.

Sizes and positions are the target's, and its embedding is. A head of EAGLE-3 proposes the tokens that are most frequent in the traffic; its
projection begins as the target's rows of these tokens. Otherwise weights begin as in SpecForge: normal with standard deviation 0.02, norms at 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open
from torch import Generator, Tensor

from draftlab.data import cleaners, companions, registry
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.json_files import write_json
from draftlab.files.scratch import scratch
from draftlab.files.seals import seal
from draftlab.files.weights import EMBEDDING, FUSION, HEAD, weight_files
from draftlab.models import Tokenizer, hub, load_tokenizer
from draftlab.models.checkpoint import head_counts, head_dim
from draftlab.models.config import copy_files, read_config, unsupported_settings
from draftlab.models.eagle3_files import states_read
from draftlab.models.weights import write_model
from draftlab.train.designs import frequent_tokens

SPREAD = 0.02
"""The standard deviation of new weights."""
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
        generator = Generator().manual_seed(seed)
        if kind == "eagle3":
            kept, share = _kept(traffic, tokenizer, tokens, config["vocab_size"])
            config |= _eagle3(config, layers, len(kept))
            tensors = _head_of(source, kept, config["vocab_size"])
            print(f"it can propose {len(kept):,} of {config['vocab_size']:,} tokens, {share:.1%} of the traffic's")
        else:
            config |= _dflash(config, layers, block, _mask(tokenizer, mask, config["vocab_size"]))
            tensors = {}
        tensors |= _new_weights(config, kind, generator)
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
        "eagle_aux_hidden_state_layer_ids": list(states_read(config["target_layers"])),
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


def _head_of(target: Path, kept: list[int], vocab: int) -> dict[str, Tensor]:
    """The target's projection on the tokens that are ``kept``, and which they are."""
    tokens = torch.tensor(kept)
    among = torch.zeros(vocab, dtype=torch.bool)
    among[tokens] = True
    found = dict[str, Tensor]()
    for file in weight_files(target):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 (not a dict)
                if name == HEAD or name.endswith(EMBEDDING):
                    found[name] = weights.get_tensor(name)
    if not found:
        raise UserError("no embedding", file=target, remedy="use a decoder of transformers")
    weight = found.get(HEAD, next(iter(found.values())))
    return {"lm_head.weight": weight[tokens].bfloat16(), "d2t": tokens - torch.arange(len(kept)), "t2d": among}


def _new_weights(config: Mapping[str, Any], kind: str, generator: Generator) -> dict[str, Tensor]:
    """Random weights of a head's layers, by their names in released files."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    heads, kv = (count * config["head_dim"] for count in head_counts(dict(config)))
    layers, shapes = config["num_hidden_layers"], dict[str, tuple[int, ...]]()
    for number in range(layers):
        name = "midlayer" if kind == "eagle3" and layers == 1 else f"layers.{number}"
        reads_state = kind == "eagle3" and number == 0
        reads = width * (1 + reads_state)
        rows = {"q": heads, "k": kv, "v": kv}
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (size, reads) for part, size in rows.items()}
        shapes |= {f"{name}.self_attn.o_proj.weight": (width, heads), f"{name}.mlp.down_proj.weight": (width, inner)}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (inner, width) for part in ("gate", "up")}
        norms = ["input_layernorm", "post_attention_layernorm", *["hidden_norm"] * reads_state]
        shapes |= {f"{name}.{norm}.weight": (width,) for norm in norms}
        if kind == "dflash":
            shapes |= {f"{name}.self_attn.{part}_norm.weight": (config["head_dim"],) for part in "qk"}
    states = 3 if kind == "eagle3" else len(config["dflash_config"]["target_layer_ids"])
    shapes |= {FUSION: (width, states * width), "norm.weight": (width,)}
    shapes |= {"hidden_norm.weight": (width,)} if kind == "dflash" else {}
    return {
        name: torch.ones(shape, dtype=torch.bfloat16)
        if len(shape) == 1
        else (torch.randn(shape, generator=generator) * SPREAD).bfloat16()
        for name, shape in shapes.items()
    }
