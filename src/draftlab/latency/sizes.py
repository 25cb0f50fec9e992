"""Sizes of models: of the published ones in ``workflow/models.csv``, and of model folders and GGUF files.

Free of torch, because the plan of a run imports it.
"""

from __future__ import annotations

import csv
import functools
import re
from pathlib import Path

from draftlab.core.settings import Settings
from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fast": 2}
LLAMA_FIELDS = {
    "hidden": "hidden_size",
    "ffn": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "vocab": "vocab_size",
    "context": "max_position_embeddings",
}
"""``Sizes`` -> a Llama's config.json."""
FURTHER_PARTS = ("expert", "mamba")
"""Words in the fields of a config.json whose model has weights beside those of a Llama: a mixture of experts, or layers with a state."""


class Sizes(Settings):
    """The sizes of a model, as in its config.json; a T5 has ``layers`` in the encoder and as many in the decoder."""

    kind: str
    hidden: int
    ffn: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    head_dim: int = 0
    tied: bool = False

    @property
    def width(self) -> int:
        """Length of a token's queries, over all heads."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def kv_width(self) -> int:
        """Length of a token's keys, over all heads."""
        return self.width * self.kv_heads // self.heads

    @property
    def parameters(self) -> int:
        """Number of weights."""
        attention = 2 * self.hidden * (self.width + self.kv_width)
        tables = self.vocab * self.hidden * (1 if self.tied else 2)
        if self.kind == "opt":  # with biases, and a table of positions
            layer = attention + 2 * self.hidden * self.ffn + 9 * self.hidden + self.ffn
            return tables + (self.context + 2) * self.hidden + self.layers * layer + 2 * self.hidden
        if self.kind == "t5":
            matrices = 2 if self.tied else 3  # T5 1.1 has gated feed-forward layers and a separate output layer
            layer = 3 * attention + 2 * matrices * self.hidden * self.ffn + 5 * self.hidden
            return tables + self.layers * layer + 2 * self.hidden + 64 * self.heads
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        return tables + self.layers * layer + self.hidden

    @property
    def entry(self) -> int:
        """Numbers that the cache stores for a token; a T5's decoder also stores keys and values of the prompt."""
        return 2 * self.layers * self.kv_width * (2 if self.kind == "t5" else 1)


class Model(Settings):
    """A model: its sizes, the name of its ``architecture`` if it may get random weights, the bytes of a stored weight (0: trained here), whether
    it is a released head, which reads its target's states, and whether it is a ``parallel`` draft, which proposes a block in one pass."""

    sizes: Sizes
    architecture: str = ""
    stored: int = 0
    is_head: bool = False
    parallel: bool = False


@functools.cache
def read_model(path: Path) -> Model | None:
    """The sizes of the model in a folder or a GGUF file; None if its config does not name them as a Llama's does, or names further parts."""
    from draftlab.models.config import is_head, mask_token_of, read_sizes

    config = read_sizes(path)
    if not set(LLAMA_FIELDS.values()) <= config.keys() or any(part in key for key in config for part in FURTHER_PARTS):
        return None
    sizes = {
        **{name: config[field] for name, field in LLAMA_FIELDS.items()},
        "kv_heads": config.get("num_key_value_heads") or config["num_attention_heads"],
        "head_dim": config.get("head_dim") or 0,
        "tied": bool(config.get("tie_word_embeddings", True)),  # as transformers, which leaves out its own default
    }
    if is_head(config):  # the embedding is the target's
        sizes |= {"vocab": config.get("draft_vocab_size") or sizes["vocab"], "tied": True}
    parallel = mask_token_of(config) is not None
    return Model(sizes=Sizes(kind="llama", **sizes), stored=4, is_head=is_head(config), parallel=parallel)


@functools.cache
def known_models() -> dict[str, Model]:
    """The models of ``workflow/models.csv`` by their names on the hub."""
    with (WORKFLOW / "models.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    models = {}
    for row in rows:
        name, architecture, stored = (row.pop(key) for key in ("name", "architecture", "stored"))
        sizes = Sizes.model_validate(row)
        models[name] = Model(sizes=sizes, architecture=architecture, stored=BYTES[stored])
    return models


@functools.cache
def architectures() -> dict[str, Sizes]:
    """The sizes of the models that may get random weights, by the name of their architecture."""
    return {model.architecture: model.sizes for model in known_models().values() if model.architecture}


def reduced(architecture: Sizes, by: int) -> Sizes:
    """The same model with width and depth divided by ``by``; the width of a head and the query heads per key stay."""
    heads = max(1, architecture.heads // by)
    kv_heads = max(1, heads * architecture.kv_heads // architecture.heads)
    heads = heads // kv_heads * kv_heads
    smaller = {
        "hidden": heads * (architecture.hidden // architecture.heads),
        "ffn": max(8, architecture.ffn // by),
        "layers": max(1, architecture.layers // by),
        "heads": heads,
        "kv_heads": kv_heads,
        "vocab": architecture.vocab // by,
    }
    return architecture.model_copy(update=smaller)


def architecture_of(name: str) -> Sizes:
    """The architecture ``name``, or ``name/8`` for a reduced one."""
    base, _, by = name.partition("/")
    if base not in architectures() or (by and not re.fullmatch(r"[1-9]\d{0,2}", by)):
        known = ", ".join(architectures())
        remedy = f"give a model folder, or one of {known}, or NAME/8 for an eighth of its width and depth"
        raise UserError(f"no folder or architecture named {name!r}", remedy=remedy)
    return reduced(architectures()[base], int(by)) if by else architectures()[base]
