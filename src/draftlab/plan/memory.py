"""How much memory a job takes on its device: weights, cache, activations, optimizer, distributions. In bytes, for a decoder-only model.

`python -m benchmarks.memory` compares these numbers with measured peaks of the same code. `python -m benchmarks.requests` compares the memory that
jobs request of a scheduler with the memory that they took (docs/paper.md).
"""

from __future__ import annotations

from draftlab.engine.settings import BRANCHED, WHOLE_VOCAB
from draftlab.latency.sizes import BYTES, Sizes

PROCESS = 900_000_000
"""Bytes of a process beside its data: libraries, and the kernels that they compile for each size."""
SPARE = 2
"""A job requests this many times its estimate: sizes of prompts are only bounded, and a job that takes more is killed."""


def decoding(model: Sizes, dtype: str, rows: int, prompt: int, new: int, device: str) -> int:
    """Peak of ``rows`` requests that are answered together: weights, cache, and the larger of reading the prompts and one step's logits."""
    size = BYTES[dtype]
    # The logits, and three copies in float32: converted, as logarithms, and without the tokens that are kept.
    step = rows * model.vocab * (size + 12)
    work = max(_reading(model, dtype, rows * prompt), step)
    return model.parameters * size + _cache(model, dtype, rows * (prompt + new), device) + work


def _cache(model: Sizes, dtype: str, tokens: int, device: str) -> int:
    """The keys and values of so many tokens; attention on a CPU is in float32."""
    return tokens * model.entry * (4 if device == "cpu" else BYTES[dtype])


def _reading(model: Sizes, dtype: str, tokens: int) -> int:
    """What one layer holds while the model reads tokens without a gradient; one of the four times ffn is inside the matrix product itself."""
    return tokens * (2 * model.hidden + 2 * model.width + 2 * model.kv_width + 4 * model.ffn) * BYTES[dtype]


def _distributions(positions: int, vocab: int, dtype: str, nucleus: bool) -> int:
    """What two models' logits and their distributions in float64 hold, while one of them is computed.

    A nucleus has seven tables: probabilities, sorted, their tokens, sums, kept, normalised, and in the order of the vocabulary; otherwise there
    are three.
    """
    return positions * vocab * (2 * BYTES[dtype] + 8 * (8 if nucleus else 4))


def comparing(
    target: Sizes, dtype: str, rows: int, prompt: int, new: int, nucleus: bool, device: str, branching: bool
) -> int:
    """Peak of a target that writes ``rows`` texts, and of their comparison with a draft at all positions, without the draft's weights.

    With ``branching``, the target also extends the texts by a tree at each position.
    """
    compared = target.parameters * BYTES[dtype] + _distributions(rows * new, target.vocab, dtype, nucleus)
    # Our own Llama copies all of its cache at once where texts change places; the models of transformers, a layer at a time.
    copies = 2 if target.kind == "llama" else 1
    tree = copies * _cache(target, dtype, BRANCHED, device) if branching else 0
    return max(decoding(target, dtype, rows, prompt, new, device), compared + tree)


def speculating(
    target: Sizes,
    draft: Sizes,
    dtypes: tuple[str, str],
    rows: int,
    prompt: int,
    new: int,
    drafts: int,
    draft_len: int,
    nucleus: bool,
    device: str,
) -> int:
    """Peak of decoding ``rows`` requests with ``drafts`` drafted sequences each, without the drafts' weights.

    A draft's cache has a row for each sequence. So has the target's, but our own Llama reads the sequences of a request as a tree, in one row.
    """
    dtype, of_draft = dtypes
    tokens = rows * (prompt + new)
    copies = 1 if target.kind == "llama" else drafts
    reading = _cache(target, dtype, tokens, device) + _reading(target, dtype, rows * prompt)
    verifying = _cache(target, dtype, copies * tokens, device) + _cache(draft, of_draft, drafts * tokens, device)
    verifying += _distributions(rows * drafts * (draft_len + 1), target.vocab, dtype, nucleus)
    return target.parameters * BYTES[dtype] + max(reading, verifying)


def training(
    model: Sizes,
    rows: int,
    length: int,
    answer: int,
    batch: int,
    autocast: bool = False,
    head: int = 0,
    in_parts: bool = False,
    places: int = 1,
) -> int:
    """Peak of an update of a model that proposes ``head`` tokens (0: any), and learns each token as the first, second, ... of ``places``.

    It is the sum of weights and two moments in float32, the activations of ``rows`` requests of ``length`` tokens, their logits and the loss's,
    and the target's distributions of the whole ``batch`` at its ``answer`` positions. Gradients are added if earlier rows of the batch left some,
    or of an update ``in_parts``, each read with its own distributions.
    """
    size = 2 if autocast else 4
    layer = (
        4 * model.hidden * 4 + (2 * model.width + 4 * model.kv_width + 3 * model.hidden) * size + 4 * model.ffn * size
    )
    activations = rows * length * (model.layers * layer + 4 * model.hidden)
    logits = rows * answer * (head or model.vocab) * 4 * 6
    stored = batch * answer * model.vocab * 4
    gradients = 4 * model.parameters if in_parts or batch > rows else 0
    return 12 * model.parameters + stored + max(4 * model.parameters, gradients + places * (activations + logits))


def heads(target: Sizes, dtype: str, draft: Sizes, count: int, rows: int, length: int, answer: int) -> int:
    """Peak of an update of ``count`` Medusa heads beside a draft: the target, three copies of the heads and of the draft, gradients and moments of
    one copy each, and the larger of the states that the target gives to ``rows`` requests and the logits and the loss's."""
    learnt = draft.parameters + count * target.hidden * (target.vocab + target.hidden + 1)
    logits = rows * answer * target.vocab * 4 * (6 * count + 1)
    return target.parameters * BYTES[dtype] + 24 * learnt + max(_reading(target, dtype, rows * length), logits)


def states_of(target: Sizes, dtype: str, tokens: int) -> int:
    """Bytes for the states of a target at so many tokens: its weights, and what it needs to read them."""
    return target.parameters * BYTES[dtype] + _reading(target, dtype, tokens)


def beside(target: Sizes, dtype: str, draft: Sizes, learns: int, rows: int, prompt: int, new: int, device: str) -> int:
    """Peak of an update whose answers the target scores first: its weights stay loaded while the draft ``learns``; before that, ``rows``
    requests are answered while a draft and its optimizer are loaded."""
    answering = decoding(target, dtype, rows, prompt, new, device) + 16 * draft.parameters
    return max(learns + target.parameters * BYTES[dtype], answering)


def recorded(requests: int, answer: int, vocab: int, keep: int) -> int:
    """Bytes of recorded distributions, on disk and in memory: float16 log-probabilities of a whole small vocabulary; for a large one, ids
    and log-probabilities of the ``keep`` most probable tokens, and the remaining mass."""
    return requests * answer * (2 * vocab if vocab <= WHOLE_VOCAB else keep * 6 + 2)


def host(weights: int, passes: int = 0, logits: int = 0, work: int = 0) -> int:
    """The host memory that a job requests: ``weights`` in files and in memory; recorded ``passes``, by dataset and joined into a stream;
    recorded ``logits`` in float32 and their distributions; and, on a CPU, the ``work`` itself."""
    return 2 * weights + SPARE * (PROCESS + 2 * passes + 3 * logits + work)
