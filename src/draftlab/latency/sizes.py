"""The sizes of published models, ``workflow/models.csv``: used for planning and for architectures that are built with random weights.

Free of torch, because the plan of a run imports it.
"""

from __future__ import annotations

import csv
import functools
from pathlib import Path

from draftlab.core.settings import Settings
from draftlab.files.checkout import WORKFLOW

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "fast": 2}


class Sizes(Settings):
    """The sizes of a model, as its config.json has them; ``layers`` of a T5 in the encoder and as many in the decoder."""

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
        """Numbers of the queries of a token."""
        return self.heads * (self.head_dim or self.hidden // self.heads)

    @property
    def kv_width(self) -> int:
        """Numbers of the keys of a token."""
        return self.width * self.kv_heads // self.heads

    @property
    def parameters(self) -> int:
        """Weights."""
        attention = 2 * self.hidden * (self.width + self.kv_width)
        table = self.vocab * self.hidden
        if self.kind == "opt":  # with biases, and a table of positions
            layer = attention + 2 * self.hidden * self.ffn + 9 * self.hidden + self.ffn
            return (
                table * (1 if self.tied else 2)
                + (self.context + 2) * self.hidden
                + self.layers * layer
                + 2 * self.hidden
            )
        if self.kind == "t5":
            matrices = 2 if self.tied else 3  # T5 1.1 gates its feed-forward layers, and has a head of its own
            layer = 3 * attention + 2 * matrices * self.hidden * self.ffn + 5 * self.hidden
            return table * (1 if self.tied else 2) + self.layers * layer + 2 * self.hidden + 64 * self.heads
        layer = attention + 3 * self.hidden * self.ffn + 2 * self.hidden
        return table * (1 if self.tied else 2) + self.layers * layer + self.hidden

    @property
    def entry(self) -> int:
        """Numbers that the cache keeps of a token; a T5's decoder keeps those of the prompt as well."""
        return 2 * self.layers * self.kv_width * (2 if self.kind == "t5" else 1)


class Model(Settings):
    """A model: its name on the hub, that of its ``architecture`` where it is built with random weights, and the bytes of a stored weight
    (0: it is trained here)."""

    sizes: Sizes
    name: str = ""
    architecture: str = ""
    stored: int = 0


@functools.cache
def read_model(path: Path) -> Model | None:
    """The sizes of a model that lies in a folder or a GGUF file; None for one that is no Llama and does not name them as a Llama does."""
    from draftlab.models.config import read_sizes

    found = read_sizes(path)
    try:
        heads = found["num_attention_heads"]
        sizes = Sizes(
            kind="llama",
            hidden=found["hidden_size"],
            ffn=found["intermediate_size"],
            layers=found["num_hidden_layers"],
            heads=heads,
            kv_heads=found.get("num_key_value_heads") or heads,
            head_dim=found.get("head_dim") or 0,
            vocab=found["vocab_size"],
            context=found["max_position_embeddings"],
            tied=bool(found.get("tie_word_embeddings")),
        )
    except KeyError:
        return None
    return Model(sizes=sizes, stored=4)


@functools.cache
def known_models() -> dict[str, Model]:
    """The models of the table by their names on the hub."""
    with (WORKFLOW / "models.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {}
    for row in rows:
        name, architecture, stored = (row.pop(key) for key in ("name", "architecture", "stored"))
        sizes = Sizes.model_validate(row)
        found[name] = Model(sizes=sizes, name=name, architecture=architecture, stored=BYTES[stored])
    return found
