"""torch as a ``LatencyBackend``: any ``LanguageModel``, on a GPU or a CPU, without compilation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float32, Int

from draftlab.core.sampling import most_probable
from draftlab.errors import UserError
from draftlab.latency.settings import Engine
from draftlab.latency.shapes import random_model
from draftlab.models import Cache, Dtype, LanguageModel, Tokenizer, load_model, load_tokenizer
from draftlab.models.backend import ENCODER_PROMPT, EngineOptions, Logits, confident_argmax, confident_argmaxes
from draftlab.models.gguf_vocabulary import vocabulary_digest

DTYPES: dict[str, Dtype] = {"own": "float32", "f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class TorchBackend:
    """One model with its cache; the cache of an encoder-decoder is its decoder's."""

    def __init__(
        self, name: str, model: LanguageModel, settings: EngineOptions, tokenizer: Tokenizer | None = None
    ) -> None:
        self.name, self.model, self.settings = name, model, settings
        self.ends = set(tokenizer.eos_ids) if tokenizer else set[int]()
        self.vocabulary = {"draftlab": vocabulary_digest(tokenizer.backend)} if tokenizer else dict[str, str]()
        self.vocab_size = model.vocab_size
        self.context_length = min(settings.context_length, model.context_length)
        self.decoder_start: int | None = None
        if getattr(model, "is_encoder_decoder", False):
            self.decoder_start = int(model.decoder().prefill([ENCODER_PROMPT], 0)[1])
        self.encode([0] if self.decoder_start is None else ENCODER_PROMPT)
        self._filled = (0, 0)

    def fit(self, vocab_size: int) -> None:
        """Give as many logits as another model whose vocabulary has more or less padding, as ``LlamaCpp.fit`` does."""
        self.vocab_size = vocab_size

    def encode(self, prompt: Sequence[int]) -> None:
        self.tokens: list[int] = []
        with torch.inference_mode():
            self._cache: Cache = self.model.decoder().prefill([prompt], self.context_length)[0]

    def _run(self, cache: Cache, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        with torch.inference_mode():
            return cache.extend(torch.tensor(tokens, device=self.model.device))

    def _append(self, tokens: Sequence[int]) -> torch.Tensor:
        if not tokens:
            raise UserError("no tokens to read", remedy="give one or more")
        if len(self.tokens) + len(tokens) > self.context_length:
            raise UserError(
                f"{len(self.tokens) + len(tokens)} tokens do not fit the context of {self.context_length}",
                remedy="ask for fewer tokens, or set a larger context_length",
            )
        missing = self.vocab_size - self.model.vocab_size
        read = [min(token, self.model.vocab_size - 1) for token in tokens] if missing > 0 else tokens
        logits = self._run(self._cache, [read])[0]
        self.tokens.extend(tokens)
        return F.pad(logits, (0, missing), value=-torch.inf) if missing else logits

    def prefill(self, tokens: Sequence[int]) -> Float32[np.ndarray, " vocab"]:
        return np.asarray(self._append(tokens)[-1].float().cpu().numpy())

    def extend(self, tokens: Sequence[int]) -> Logits:
        return np.asarray(self._append(tokens).float().cpu().numpy())

    def greedy(self, tokens: Sequence[int]) -> Int[np.ndarray, " tokens"]:
        return np.asarray(most_probable(self._append(tokens)).cpu().numpy())  # waits for the GPU

    def guess(self, tokens: Sequence[int], min_prob: float = 0.0) -> int | None:
        return confident_argmax(self.prefill(tokens), min_prob)

    def guesses(self, tokens: Sequence[int], count: int, min_prob: float = 0.0) -> list[int]:
        return confident_argmaxes(self.extend(tokens)[-count:], min_prob)

    def trim(self, length: int) -> None:
        if not 0 <= length <= len(self.tokens):
            raise ValueError(f"cannot trim {len(self.tokens)} cached tokens to {length}")
        self._cache.crop([length])
        del self.tokens[length:]

    def fill(self, sequences: int, context: int) -> None:
        self._filled = (sequences, context)
        with torch.inference_mode():
            self._batch = self.model.decoder().prefill(
                [ENCODER_PROMPT[:1] * (context + 1)] * sequences, self.context_length - context
            )[0]
        if not any(self._batch.lengths):  # an encoder-decoder, whose decoder has read nothing yet
            self._run(self._batch, [[0] * context] * sequences)
        if self.model.device.type == "cuda":
            torch.cuda.synchronize(self.model.device)  # no result is read here that the GPU would have to finish first

    def probe(self, tokens: int) -> None:
        sequences, context = self._filled
        most_probable(self._run(self._batch, [[0] * tokens] * sequences)).cpu()
        self._batch.crop([context] * sequences)

    def clock(self) -> Callable[[], float]:
        is_single = self.model.device.type == "cpu" and self.settings.threads == 1
        return time.thread_time if is_single else time.perf_counter

    def describe(self) -> dict[str, Any]:
        weights = list(self.model.parameters())
        cuda = self.model.device.type == "cuda"
        return {
            "engine": "torch",
            "torch": torch.__version__,
            "cuda": torch.version.cuda if cuda else None,
            "model": self.name,
            "parameters": sum(weight.numel() for weight in weights),
            "bytes": sum(weight.nbytes for weight in weights),
            "weights": str(weights[0].dtype).removeprefix("torch."),
            "device": torch.cuda.get_device_name(self.model.device) if cuda else "CPU",
            "threads": self.settings.threads,
            "context_length": self.context_length,
            "clock": self.clock().__name__,
        }

    def close(self) -> None:
        for name in ("model", "_cache", "_batch"):
            vars(self).pop(name, None)


def open_torch(path: Path, settings: Engine, engine: EngineOptions) -> TorchBackend:
    """Open a model folder, or an architecture of ``shapes`` by name, as ``settings`` say."""
    if settings.weights not in DTYPES:
        raise UserError(f"torch has no {settings.weights} weights", remedy=f"use one of {', '.join(DTYPES)}")
    torch.set_num_threads(settings.threads)
    dtype = DTYPES[settings.weights]
    if not path.is_dir():
        model = random_model(str(path), getattr(torch, dtype), torch.device(settings.device), settings.seed)
        return TorchBackend(str(path), model, engine)
    tokenizer = load_tokenizer(path) if (path / "tokenizer.json").is_file() else None
    return TorchBackend(path.name, load_model(path, dtype, settings.device), engine, tokenizer)
