"""Opens a target and its drafts on an engine, for a measurement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab.errors import UserError
from draftlab.files.scratch import scratch
from draftlab.files.seals import sealed_digest, verify
from draftlab.files.weights import is_gguf
from draftlab.latency.inflate import inflate
from draftlab.latency.self_check import self_check
from draftlab.latency.settings import Engine
from draftlab.models import LanguageModel, load_model
from draftlab.models.backend import EngineOptions, LatencyBackend, check_pair, have_same_tokens
from draftlab.models.config import read_config
from draftlab.models.cores import pinned
from draftlab.models.gguf import Weights, export
from draftlab.models.gguf_import import check_loads, original
from draftlab.models.llama_cpp import LlamaCpp, check_device

if TYPE_CHECKING:
    from draftlab.latency.torch_backend import TorchBackend


@contextlib.contextmanager
def open_pair(
    target: Path,
    *drafts: Path,
    settings: Engine,
    context_length: int,
    sequences: int = 1,
    shared: bool = False,
) -> Iterator[list[LatencyBackend]]:
    """Yield the target and the drafts as backends. A target smaller than in ``settings`` is inflated first.

    llama.cpp opens a GGUF file, or the file from which a folder was made; any other folder is exported first. torch opens a folder. Both also
    take the name of an architecture in ``workflow/models.csv``, which gets random weights. Temporary files are in ``TMPDIR``. On a CPU, the
    process is pinned to as many cores as it has threads.

    **Raises:** ``UserError`` if a GGUF file holds other weights than ``settings`` name, or if a model cannot be opened.
    """
    engine = EngineOptions(context_length, settings.threads, settings.gpu_layers, sequences, shared)
    with scratch() as folder, contextlib.ExitStack() as stack:
        layers, ffn, widths = settings.inflated_layers, settings.inflated_ffn, settings.inflated_widths
        if layers or ffn or widths > 1:
            target = inflated(target, folder / "inflated", layers, ffn, widths)
        paths = [target, *drafts]
        if settings.weights == "own" and settings.backend == "llama_cpp":
            paths = [original(path, "set weights to another type") or path for path in paths]
        default: Weights = "q8_0" if is_gguf(paths[0]) else "f32"
        weights = default if settings.weights == "own" else settings.weights
        models: list[LlamaCpp | TorchBackend] = []
        for index, path in enumerate(paths):
            model = _open(path, folder / f"{index}-{path.name}.gguf", settings, weights, engine)
            stack.callback(model.close)
            if path.is_file() and settings.weights not in ("own", stored := model.describe()["weights"]):
                remedy = f"set weights to own, or give the folder that `draftlab gguf import --path {path.name}` writes"
                raise UserError(f"the file holds {stored} weights, not {settings.weights}", file=path, remedy=remedy)
            models.append(model)
        for path, draft in zip(drafts, models[1:], strict=True):
            if have_same_tokens(models[0], draft):
                draft.fit(models[0].vocab_size)
            check_pair(models[0], draft, path)
        if not settings.gpu_layers and settings.device == "cpu":
            stack.enter_context(pinned(settings.threads))
        yield [*models]


def inflated(target: Path, out: Path, least_layers: int, least_ffn: int, widths: int = 1) -> Path:
    """Write ``target`` to ``out`` with at least these layers and this feed-forward width, on ``widths`` times its channels."""
    if target.is_file():
        remedy = "give the model folder, or inflate nothing"
        raise UserError("a GGUF file cannot be inflated", file=target, remedy=remedy)
    config = read_config(target)
    layers = max(least_layers, config.get("num_hidden_layers", 0))
    inflate(target, out, layers=layers, ffn=max(least_ffn, config.get("intermediate_size", 0)), widths=widths)
    return out


def load_inflated(target: LanguageModel, folder: Path, layers: int, ffn: int, device: str) -> LanguageModel:
    """The ``target`` in a folder, or the same with at least these layers and this feed-forward width; its answers stay as they are."""
    if not layers and not ffn:
        return target
    with scratch() as out:
        return load_model(inflated(folder, out / "inflated", layers, ffn), device=device)


def _open(
    path: Path, exported: Path, settings: Engine, weights: Weights, engine: EngineOptions
) -> LlamaCpp | TorchBackend:
    if settings.backend == "torch":
        from draftlab.latency.torch_backend import open_torch

        return open_torch(path, settings, engine)
    self_check()
    check_device(settings.gpu_layers)  # before gigabytes are written
    if path.is_dir():
        export(path, exported, weights, vocabulary=False)
        path = exported
    elif not path.exists():
        from draftlab.latency.shapes import random_gguf

        random_gguf(str(path), exported, weights, settings.seed)
        path = exported
    elif sealed_digest(path) is None:  # the file of a folder was tried when the folder was made
        check_loads(path)
    return LlamaCpp(verify(path), engine)


def describe(*models: LatencyBackend) -> dict[str, Any]:
    """The engines behind a table of timings, for ``run.json``."""
    target, *drafts = (model.describe() for model in models)
    return {"target": target, "drafts": drafts}
