"""How much memory a job takes on its device: weights, cache, activations, optimizer, distributions. In bytes, for a decoder-only model.

`python -m benchmarks.memory` compares these numbers with measured peaks of the same code (docs/paper.md).
"""

from __future__ import annotations

from draftlab.core.settings import Settings

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


def decoding(model: Sizes, dtype: str, rows: int, prompt: int, new: int) -> int:
    """Peak of ``rows`` requests that are answered together: weights, cache, and the larger of reading the prompts and one step's logits."""
    size = BYTES[dtype]
    cache = rows * (prompt + new) * model.entry * size
    # Of the four times ffn one lies in the matrix product itself.
    layer = 2 * model.hidden + 2 * model.width + 2 * model.kv_width + 4 * model.ffn
    reading = rows * prompt * layer * size
    # The logits, and in float32: themselves, their logarithms, those that are not kept.
    step = rows * model.vocab * (size + 12)
    return model.parameters * size + cache + max(reading, step)


def training(model: Sizes, rows: int, length: int, answer: int, batch: int, autocast: bool = False) -> int:
    """Peak of an update: weights and two moments in float32, what ``rows`` requests of ``length`` tokens leave for the way back, their
    logits with those of the loss, and the target's distributions of the whole ``batch`` at its ``answer`` positions. The gradients lie
    there already where other rows of the batch came before."""
    size = 2 if autocast else 4
    layer = (
        4 * model.hidden * 4 + (2 * model.width + 4 * model.kv_width + 3 * model.hidden) * size + 4 * model.ffn * size
    )
    activations = rows * length * (model.layers * layer + 4 * model.hidden)
    logits = rows * answer * model.vocab * 4 * 6
    stored = batch * answer * model.vocab * 4
    gradients = 4 * model.parameters if batch > rows else 0
    return 12 * model.parameters + stored + max(4 * model.parameters, gradients + activations + logits)


def recorded(requests: int, answer: int, keep: int) -> int:
    """The recorded distributions of so many answers on the disk: the ``keep`` most probable tokens and the rest, ids and log-probabilities."""
    return requests * answer * (keep * 6 + 2)
