"""A GGUF target in llama.cpp for plain decoding and recording, with one sequence per row of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.engine.settings import Answering
from draftlab.errors import UserError
from draftlab.files.scratch import scratch
from draftlab.files.seals import verify
from draftlab.files.weights import is_gguf
from draftlab.models import TokenIds
from draftlab.models.backend import EngineOptions
from draftlab.models.config import read_sizes
from draftlab.models.cores import usable
from draftlab.models.gguf import Weights, export
from draftlab.models.gguf_import import original
from draftlab.models.llama_cpp import BATCH, LlamaCpp
from draftlab.models.products import number_type

WEIGHTS: dict[str, Weights] = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
"""The GGUF type to which a folder without a GGUF file is exported, by its number type."""


@contextlib.contextmanager
def open_gguf(target: Path, settings: Answering) -> Iterator[GgufTarget]:
    """Open a GGUF file, the file from which a folder was made, or an export of the folder."""
    sizes = read_sizes(target)
    if sizes.get("model_type") == "t5":
        raise UserError(
            "llama.cpp answers only for decoder-only targets", file=target, remedy="use answers.engine transformers"
        )
    with scratch() as folder, contextlib.ExitStack() as stack:
        path = target if is_gguf(target) else original(target, "set answers.engine to transformers")
        if path is None:
            path = folder / f"{target.name}.gguf"
            export(target, path, WEIGHTS[number_type(settings.dtype, settings.device)], vocabulary=False)
        model = GgufTarget(verify(path), sizes, -1 if settings.device == "cuda" else 0)
        stack.callback(model.close)
        yield model


class GgufTarget:
    """A ``Decodable``, its ``Decoder``, and the ``Cache`` of one batch. Row b is sequence ``rows[b]`` in llama.cpp."""

    def __init__(self, path: Path, sizes: Mapping[str, Any], gpu_layers: int = 0) -> None:
        self.vocab_size, self.context_length = int(sizes["vocab_size"]), int(sizes["max_position_embeddings"])
        self._path, self._gpu_layers = path, gpu_layers
        self._model: LlamaCpp | None = None
        self.rows: list[int] = []
        self.lengths: list[int] = []

    @property
    def description(self) -> dict[str, Any]:
        """Build, weights, device and threads of llama.cpp."""
        return self._model.describe() if self._model else {}

    def close(self) -> None:
        """Free the model."""
        if self._model:
            self._model.close()
            self._model = None

    def decoder(self) -> GgufTarget:
        return self

    def prefill(self, prompts: TokenIds, room: int) -> tuple[GgufTarget, Int[Tensor, " batch"]]:
        model = self._with_room(len(prompts), max(map(len, prompts)) + room)
        model.trim(0)
        self.rows, self.lengths = list(range(len(prompts))), [len(prompt) - 1 for prompt in prompts]
        fed = [(token, at, row) for row, prompt in enumerate(prompts) for at, token in enumerate(prompt[:-1])]
        for start in range(0, len(fed), BATCH):
            tokens, positions, rows = zip(*fed[start : start + BATCH], strict=True)
            wanted = [False] * (len(tokens) - 1) + [True]  # llama.cpp requires the logits of at least one token
            model.decode(tokens, positions, [(row,) for row in rows], wanted)
        return self, torch.tensor([prompt[-1] for prompt in prompts])

    def extend(self, tokens: Int[Tensor, "batch 1"]) -> Float[Tensor, "batch 1 vocab"]:
        """The logits lie in llama.cpp's memory and are valid until the next call."""
        assert self._model is not None
        logits = self._model.decode(tokens[:, 0].tolist(), self.lengths, [(row,) for row in self.rows])
        self.lengths = [length + 1 for length in self.lengths]
        return torch.from_numpy(logits)[:, None]

    def crop(self, lengths: Sequence[int]) -> None:
        raise NotImplementedError("plain decoding never crops")

    def take(self, rows: Sequence[int], since: Sequence[int] | None = None) -> None:
        self.rows, self.lengths = [self.rows[row] for row in rows], [self.lengths[row] for row in rows]

    def _with_room(self, sequences: int, length: int) -> LlamaCpp:
        """The model with a cache for this many sequences of this length; opened again if its cache is too small."""
        model = self._model  # its cache may be longer than was asked for
        if model and sequences <= model.settings.sequences and length <= model.context_length:
            return model
        self.close()
        threads = min(torch.get_num_threads(), len(usable()))
        self._model = LlamaCpp(self._path, EngineOptions(length, threads, self._gpu_layers, sequences))
        self._model.fit(self.vocab_size)  # a folder may have other padding than the file from which it was made
        return self._model
