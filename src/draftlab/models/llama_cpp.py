"""llama.cpp as a ``LatencyBackend``, through llama-cpp-python's low-level interface.

On a CPU, flash attention is off: it is slower, and its f16 sums break the equality of speculative and plain greedy text.
Logits are zero-copy views: numpy's argmax on them is faster than the sampler chains of llama.cpp (measured).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import llama_cpp.llama_cpp as lib
import numpy as np
from jaxtyping import Float32, Int

from draftlab.errors import UserError
from draftlab.files.amx import leave_to_llama_cpp
from draftlab.models.backend import ENCODER_PROMPT, EngineOptions, Logits, argmax, confident_argmax, confident_argmaxes
from draftlab.models.gguf import INFLATED_KEY
from draftlab.models.gguf_vocabulary import ENDS, VOCABULARY_KEY
from draftlab.models.trimmed import HEAD_TOKENS, TABLE_DIGEST, read_head

BATCH = 512
CONTEXT_STEP = 256  # tokens
WEIGHTS = {str(kind.value): kind.name.split("_", 1)[1].lower() for kind in gguf.LlamaFileType if kind.name != "GUESSED"}
GPU_TYPES = (1, 2)  # of ggml_backend_dev_type: a GPU, and one within the processor
ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR, which the binding does not name
ERRORS: deque[str] = deque(maxlen=4)  # the last errors that llama.cpp logged: they explain a failed call


@lib.llama_log_callback  # type: ignore[untyped-decorator]
def _log(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    if level == ERROR_LEVEL:
        ERRORS.append(text.decode(errors="replace").strip())


@functools.cache
def _start() -> None:
    """Start llama.cpp, and let torch do without AMX in this process if llama.cpp uses it (``files.amx``)."""
    lib.llama_log_set(_log, ctypes.c_void_p(0))
    lib.llama_backend_init()
    if b"AMX_INT8 = 1" in lib.llama_print_system_info():
        leave_to_llama_cpp()


class LlamaCpp:
    """One GGUF model with its cache; a context manager. Sequence 0 holds ``tokens``; the others are branches of it, or a batch."""

    def __init__(self, path: Path | str, settings: EngineOptions = EngineOptions()) -> None:  # noqa: B008 (frozen)
        path = Path(path)
        _start()
        self.path, self.settings = path, settings
        self.tokens: list[int] = []
        self._filled = (0, 0)
        with contextlib.ExitStack() as opened:  # frees what is open if a later step fails
            self._model = _load(path, settings)
            opened.callback(lib.llama_model_free, self._model)
            self.outputs = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(self._model))
            self.head = None
            if _metadata(self._model, HEAD_TOKENS) is not None:
                self.head = read_head(path, self.outputs, _metadata(self._model, TABLE_DIGEST))
            self.vocab_size = self.outputs if self.head is None else len(self.head.embeddings)
            self.vocabulary = _digests(self._model)
            ends = (_metadata(self._model, f"tokenizer.ggml.{name}_token_id") for name in ENDS)
            self.ends = {int(token) for token in ends if token is not None}
            self._context = _open_context(self._model, settings)
            opened.callback(lib.llama_free, self._context)
            self.context_length = lib.llama_n_ctx_seq(self._context)
            self._memory = lib.llama_get_memory(self._context)
            # A short context silently lowers n_batch, and llama.cpp aborts on more tokens than that.
            self._batch_size = lib.llama_n_batch(self._context)
            width = 0 if self.head is None else self.head.embeddings.shape[1]
            self._batch = lib.llama_batch_init(self._batch_size, width, settings.sequences)
            opened.callback(lib.llama_batch_free, self._batch)
            view = functools.partial(np.ctypeslib.as_array, shape=(self._batch_size,))
            if self.head is None:
                self._tokens = view(self._batch.token)
            else:
                self._embeddings = np.ctypeslib.as_array(self._batch.embd, shape=(self._batch_size, width))
            self._positions = view(self._batch.pos)
            self._counts, self._wanted = view(self._batch.n_seq_id), view(self._batch.logits)
            self._in_others = self._batch_size  # tokens of the batch that may be in others than sequence 0
            self.decoder_start: int | None = None
            if lib.llama_model_has_encoder(self._model):
                self.decoder_start = lib.llama_model_decoder_start_token(self._model)
                self.encode(ENCODER_PROMPT)
            self._opened = opened.pop_all()

    def __enter__(self) -> LlamaCpp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the model; every later call is an error."""
        self._opened.close()
        self._context = None

    def fit(self, vocab_size: int) -> None:
        """Give as many logits as another model whose vocabulary has more or less padding: the rest is left out, what is missing is -inf.

        A token that only the other model has is read as the last one, as in a folder (``vocabulary_rows.fit_rows``).
        """
        if self.head is None:
            self.vocab_size = vocab_size

    def encode(self, prompt: Sequence[int]) -> None:
        if self.decoder_start is None:
            raise UserError("a decoder-only model has no encoder", file=self.path, remedy="prefill the prompt")
        lib.llama_memory_clear(self._memory, False)
        self.tokens = []
        every = range(self.settings.sequences)  # branches and batches answer the same prompt
        self._run(lib.llama_encode, prompt, range(len(prompt)), [every] * len(prompt), None)

    def prefill(self, tokens: Sequence[int]) -> Float32[np.ndarray, " vocab"]:
        for start in range(0, len(tokens) or 1, self._batch_size):
            logits = self._append(tokens[start : start + self._batch_size], last=1)
        return np.asarray(logits[0])

    def extend(self, tokens: Sequence[int]) -> Logits:
        return self._append(tokens)

    def greedy(self, tokens: Sequence[int]) -> Int[np.ndarray, " tokens"]:
        chosen = argmax(self._append(tokens, of_head=True))
        return chosen if self.head is None else np.asarray(self.head.kept[chosen])

    def predict(self, tokens: Sequence[int]) -> Float32[np.ndarray, " outputs"]:
        """Append ``tokens`` to the cache; return the logits after the last, those of a trimmed head as they are."""
        return np.asarray(self._append(tokens, last=1, of_head=True)[0])

    def guess(self, tokens: Sequence[int], min_prob: float = 0.0) -> int | None:
        best = confident_argmax(self.predict(tokens), min_prob)
        return best if best is None or self.head is None else int(self.head.kept[best])

    def guesses(self, tokens: Sequence[int], count: int, min_prob: float = 0.0) -> list[int]:
        found = confident_argmaxes(self._append(tokens, last=count, of_head=True), min_prob)
        return found if self.head is None else [int(token) for token in self.head.kept[found]]

    def _append(self, tokens: Sequence[int], *, last: int = 0, of_head: bool = False) -> Logits:
        """Append ``tokens`` to sequence 0; return the logits after each of them, or after so many at the end."""
        if not tokens:
            raise UserError("no tokens to read", remedy="give one or more")
        wanted = [False] * (len(tokens) - last) + [True] * last if 0 < last < len(tokens) else None
        positions = range(len(self.tokens), len(self.tokens) + len(tokens))
        logits = self.decode(tokens, positions, wanted=wanted, of_head=of_head)
        self.tokens.extend(tokens)
        return logits

    def trim(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot trim {len(self.tokens)} cached tokens to {length}")
        if not lib.llama_memory_seq_rm(self._memory, -1, length, -1):
            what = "this model's cache cannot forget single tokens"
            raise UserError(what, file=self.path, remedy="use a Llama model")
        del self.tokens[length:]

    def decode(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]] | None = None,
        wanted: Sequence[bool] | None = None,
        *,
        of_head: bool = False,
    ) -> Logits:
        """Run one batch: token ``i`` goes to ``positions[i]`` of every sequence in ``sequences[i]`` (sequence 0 if None).

        Returns the logits after each token, or after the ``wanted`` tokens: over the vocabulary, or of the head as it is, which may be trimmed.
        The caller keeps ``self.tokens`` up to date.
        """
        if max(positions) >= self.context_length:
            what = f"{max(positions) + 1} tokens do not fit the context of {self.context_length}"
            raise UserError(what, remedy="ask for fewer tokens, or set a larger context_length")
        self._run(lib.llama_decode, tokens, positions, sequences, wanted)
        rows = len(tokens) if wanted is None else sum(wanted)
        logits = np.ctypeslib.as_array(lib.llama_get_logits(self._context), shape=(rows, self.outputs))
        if self.head is not None:
            return logits if of_head else self.head.spread(logits)
        missing = 0 if of_head else max(self.vocab_size - self.outputs, 0)
        if missing:
            return np.pad(logits, ((0, 0), (0, missing)), constant_values=-np.inf)
        return logits[:, : self.vocab_size]

    def _run(
        self,
        call: Callable[..., int],
        tokens: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[Sequence[int]] | None,
        wanted: Sequence[bool] | None,
    ) -> None:
        """Fill the batch and run ``llama_decode`` or ``llama_encode`` on it."""
        count = len(tokens)
        if count > self._batch_size:
            remedy = "verify fewer tokens or sequences at once, or shorten the prompt of an encoder"
            raise UserError(f"{count} tokens in one call, but at most {self._batch_size} fit", remedy=remedy)
        if self.head is None:
            self._tokens[:count] = tokens
            if self.vocab_size > self.outputs:
                np.minimum(self._tokens[:count], self.outputs - 1, out=self._tokens[:count])
        else:
            self._embeddings[:count] = self.head.embeddings[list(tokens)]
        self._positions[:count] = positions
        self._wanted[:count] = True if wanted is None else wanted
        self._assign(sequences)
        self._batch.n_tokens = count
        status = call(self._context, self._batch)
        if status != 0:
            what = f"{call.__name__} returned {status}: {' '.join(ERRORS) or 'the cache is full'}"
            ERRORS.clear()
            raise UserError(what, file=self.path, remedy="check the token ids, or set a larger context_length")

    def _assign(self, sequences: Sequence[Sequence[int]] | None) -> None:
        """Write the sequences of each token into the batch; for None, only where an earlier call wrote others than sequence 0."""
        if sequences is None:
            sequences, self._in_others = [(0,)] * self._in_others, 0
        else:
            self._in_others = max(self._in_others, len(sequences))
        for index, members in enumerate(sequences):
            self._counts[index] = len(members)
            for slot, member in enumerate(members):
                self._batch.seq_id[index][slot] = member

    def fill(self, sequences: int, context: int) -> None:
        lib.llama_memory_clear(self._memory, False)
        self.tokens, self._filled = [], (sequences, context)
        for start in range(0, context, self._batch_size):
            positions = range(start, min(start + self._batch_size, context))
            self.decode([0] * len(positions), positions, wanted=[False] * (len(positions) - 1) + [True])
        for sequence in range(1, sequences):
            lib.llama_memory_seq_cp(self._memory, 0, sequence, -1, -1)

    def probe(self, tokens: int) -> None:
        sequences, context = self._filled
        positions = [*range(context, context + tokens)] * sequences
        members = [(sequence,) for sequence in range(sequences) for _ in range(tokens)] if sequences > 1 else None
        argmax(self.decode([0] * len(positions), positions, members, of_head=True))
        lib.llama_memory_seq_rm(self._memory, -1, context, -1)

    def copy(self, source: int, to: int, length: int) -> None:
        """Let sequence ``to`` hold the first ``length`` tokens of ``source`` too; with a shared cache, no memory is copied."""
        lib.llama_memory_seq_cp(self._memory, source, to, 0, length)

    def drop_branches(self) -> None:
        """Forget all sequences but 0."""
        lib.llama_memory_seq_keep(self._memory, 0)

    def clock(self) -> Callable[[], float]:
        # A single thread is the calling thread, whose CPU time other processes do not change. More threads need wall time.
        is_single = self.settings.threads == 1 and self.settings.gpu_layers == 0
        return time.thread_time if is_single else time.perf_counter

    def describe(self) -> dict[str, Any]:
        return {
            **describe_build(),
            "file": self.path.name,
            "parameters": lib.llama_model_n_params(self._model),
            "bytes": lib.llama_model_size(self._model),
            "weights": WEIGHTS.get(_metadata(self._model, "general.file_type") or ""),
            "inflated_from": _metadata(self._model, INFLATED_KEY),
            "head_tokens": None if self.head is None else self.outputs,
            "device": ", ".join(_gpus()) if self.settings.gpu_layers else "CPU",
            "threads": self.settings.threads,
            "gpu_layers": self.settings.gpu_layers,
            "context_length": self.context_length,
            "sequences": self.settings.sequences,
            "cache": "f16" if self.settings.gpu_layers else "f32",
            "flash_attention": bool(self.settings.gpu_layers),
            "clock": self.clock().__name__,
        }


def describe_build() -> dict[str, Any]:
    """Version, commit and CPU features of the installed llama.cpp."""
    import llama_cpp

    commit = getattr(lib._lib, "ggml_commit", None)
    if commit is not None:
        commit.restype = ctypes.c_char_p
    return {
        "engine": "llama.cpp",
        "llama_cpp_python": llama_cpp.__version__,
        "llama_version": lib.llama_version().decode(),
        "llama_commit": commit().decode() if commit is not None else None,
        "build": lib.llama_print_system_info().decode().strip(),
        "gpu": bool(lib.llama_supports_gpu_offload()),
        "gpus": _gpus(),
    }


@functools.cache
def _gpus() -> list[str]:
    """The names of the GPUs that llama.cpp can use, by functions of the library that the binding does not expose."""
    library = lib._lib
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_dev_description.restype = ctypes.c_char_p
    indices = map(ctypes.c_size_t, range(library.ggml_backend_dev_count()))
    devices = [ctypes.c_void_p(library.ggml_backend_dev_get(index)) for index in indices]
    return [
        library.ggml_backend_dev_description(device).decode()
        for device in devices
        if library.ggml_backend_dev_type(device) in GPU_TYPES
    ]


def check_device(gpu_layers: int) -> None:
    """Refuse layers on a GPU where llama.cpp has none."""
    if gpu_layers and not lib.llama_supports_gpu_offload():
        remedy = "set gpu_layers to 0, or install a CUDA build on a machine with a GPU"
        raise UserError("gpu_layers is set, but llama.cpp finds no GPU it can use", remedy=remedy)


def _load(path: Path, settings: EngineOptions) -> Any:
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="export the model first: draftlab gguf export")
    check_device(settings.gpu_layers)
    parameters = lib.llama_model_default_params()
    parameters.n_gpu_layers = settings.gpu_layers
    ERRORS.clear()
    model = lib.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        reason = ERRORS[0] if ERRORS else "llama.cpp gives no reason"
        raise UserError(f"llama.cpp cannot load it: {reason}", file=path, remedy="export the model again")
    if not lib.llama_model_has_decoder(model):
        lib.llama_model_free(model)
        raise UserError("it is only an encoder", file=path, remedy="use a model that writes text: Llama or T5")
    return model


def _open_context(model: Any, settings: EngineOptions) -> Any:
    if lib.llama_model_has_encoder(model) and settings.sequences > 1 and not settings.shared:
        what = f"llama.cpp aborts on an encoder-decoder with a cache for each of {settings.sequences} sequences"
        raise UserError(what, remedy="measure one sequence at a time, or let them share one cache")
    parameters = lib.llama_context_default_params()
    # llama.cpp rounds the size of the cache up, but not that of its buffers, on which the time of a step depends.
    length = -(-settings.context_length // CONTEXT_STEP) * CONTEXT_STEP
    parameters.n_ctx = length * (1 if settings.shared else settings.sequences)
    parameters.n_batch = parameters.n_ubatch = BATCH
    parameters.n_threads = parameters.n_threads_batch = settings.threads
    parameters.n_seq_max = settings.sequences
    parameters.kv_unified = settings.shared
    # On a CPU flash attention is slow, and a cache in float16 is neither faster nor exact.
    on_gpu = bool(settings.gpu_layers)
    parameters.flash_attn_type = (lib.LLAMA_FLASH_ATTN_TYPE_DISABLED, lib.LLAMA_FLASH_ATTN_TYPE_ENABLED)[on_gpu]
    parameters.type_k = parameters.type_v = (lib.GGML_TYPE_F32, lib.GGML_TYPE_F16)[on_gpu]
    # Without layers on a GPU, llama.cpp would still let one compute large batches.
    parameters.op_offload = parameters.offload_kqv = on_gpu
    parameters.no_perf = True
    context = lib.llama_init_from_model(model, parameters)
    if not context:
        reason = ERRORS[-1] if ERRORS else "no reason given"
        raise UserError(f"llama.cpp cannot open a context: {reason}", remedy="lower context_length or sequences")
    return context


def _digests(model: Any) -> dict[str, str]:
    """Digests of a file's vocabulary without padding: ``draftlab``, which the export wrote, and ``tokens``, of the tokens in the file."""
    digests, vocabulary = {"draftlab": _metadata(model, VOCABULARY_KEY)}, lib.llama_model_get_vocab(model)
    if lib.llama_vocab_type(vocabulary) != lib.LLAMA_VOCAB_TYPE_NONE:
        tokens = range(lib.llama_vocab_n_tokens(vocabulary))
        used = (t for t in tokens if not lib.llama_vocab_get_attr(vocabulary, t) & lib.LLAMA_TOKEN_ATTR_UNUSED)
        texts = (b"%d %s" % (token, lib.llama_vocab_get_text(vocabulary, token)) for token in used)
        digests["tokens"] = hashlib.sha256(b"\0".join(texts)).hexdigest()
    return {name: digest for name, digest in digests.items() if digest is not None}


def _metadata(model: Any, key: str) -> str | None:
    """One metadata value of a GGUF file as text."""
    buffer = ctypes.create_string_buffer(4096)
    size = lib.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode() if size >= 0 else None
