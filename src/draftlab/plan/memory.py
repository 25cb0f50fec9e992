"""How much memory a job takes on its device: weights, cache, activations, optimizer, distributions. In bytes, for a decoder-only model.

`python -m benchmarks.memory` compares these numbers with measured peaks of the same code, `python -m benchmarks.requests` what jobs request of
a scheduler with what they took (docs/paper.md).
"""

from __future__ import annotations

from draftlab.engine.settings import WHOLE_VOCAB
from draftlab.latency.sizes import BYTES, Sizes

PROCESS = 900_000_000
"""What a process holds beside its data: libraries, and the kernels that they compile for each size."""
SPARE = 2
"""A job requests so many times what it should take: sizes of prompts are only bounded, and a job that takes more is killed."""


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


def training(
    model: Sizes, rows: int, length: int, answer: int, batch: int, autocast: bool = False, head: int = 0
) -> int:
    """Peak of an update of a model that proposes ``head`` tokens (0: any): weights and two moments in float32, what ``rows`` requests of ``length`` tokens leave for the way back, their
    logits with those of the loss, and the target's distributions of the whole ``batch`` at its ``answer`` positions. The gradients lie
    there already where other rows of the batch came before."""
    size = 2 if autocast else 4
    layer = (
        4 * model.hidden * 4 + (2 * model.width + 4 * model.kv_width + 3 * model.hidden) * size + 4 * model.ffn * size
    )
    activations = rows * length * (model.layers * layer + 4 * model.hidden)
    logits = rows * answer * (head or model.vocab) * 4 * 6
    stored = batch * answer * model.vocab * 4
    gradients = 4 * model.parameters if batch > rows else 0
    return 12 * model.parameters + stored + max(4 * model.parameters, gradients + activations + logits)


def beside(target: Sizes, dtype: str, draft: Sizes, learns: int, rows: int, prompt: int, new: int) -> int:
    """Peak of an update whose answers the target scores first: its weights lie there while the draft ``learns``; before that, ``rows``
    requests are answered beside a draft and its optimizer."""
    return max(
        learns + target.parameters * BYTES[dtype], decoding(target, dtype, rows, prompt, new) + 16 * draft.parameters
    )


def recorded(requests: int, answer: int, vocab: int, keep: int) -> int:
    """The bytes of recorded distributions, on disk and in memory: float16 log-probabilities of the whole of a small vocabulary; of a large
    one, ids and log-probabilities of the ``keep`` most probable tokens, and the rest."""
    return requests * answer * (2 * vocab if vocab <= WHOLE_VOCAB else keep * 6 + 2)


def host(weights: int, passes: int, pairs: int, work: int) -> int:
    """What a job requests of the machine's own memory: files of ``weights`` and what is made of them; recorded ``passes``, each dataset's and
    joined in a stream; ``pairs`` of float32 logits with the distributions that come of them; and, on a CPU, the ``work`` itself."""
    return 2 * weights + SPARE * (PROCESS + 2 * passes + 3 * pairs + work)
