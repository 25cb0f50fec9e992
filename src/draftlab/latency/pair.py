"""A target and a draft, opened on llama.cpp for a measurement, from model folders or GGUF files."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftlab.experiments import Engine
from draftlab.latency.backend import LatencyBackend, Settings, check_pair
from draftlab.latency.inflate import inflate
from draftlab.latency.llama_cpp import LlamaCpp
from draftlab.latency.self_check import self_check
from draftlab.models.gguf import export


@contextlib.contextmanager
def open_pair(target: Path, *drafts: Path, engine: Settings, settings: Engine) -> Iterator[list[LlamaCpp]]:
    """Yield the target and the drafts, ready; a folder is exported first, a GGUF file is taken as it is."""
    self_check()
    with tempfile.TemporaryDirectory(prefix="draftlab-") as name, contextlib.ExitStack() as stack:
        scratch = Path(name)
        if settings.inflated_layers:
            ffn = settings.inflated_ffn or None
            inflate(target, scratch / "inflated", layers=settings.inflated_layers, ffn=ffn, seed=settings.seed)
            target = scratch / "inflated"
        models = []
        for index, path in enumerate((target, *drafts)):
            if path.is_dir():
                path, folder = scratch / f"{index}-{path.name}.gguf", path
                export(folder, path, settings.weights, vocabulary=False)
            models.append(stack.enter_context(LlamaCpp(path, engine)))
        for draft in models[1:]:
            check_pair(models[0], draft)
        yield models


def describe(engine: Settings, target: LatencyBackend, *drafts: LatencyBackend) -> dict[str, Any]:
    """What ``run.json`` says of the engines behind a table of timings."""
    models = {"target": target.describe(), "drafts": [draft.describe() for draft in drafts]}
    return {"engine": asdict(engine), **models}
