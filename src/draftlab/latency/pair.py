"""A target and a draft, opened on llama.cpp for a measurement, from model folders or GGUF files."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftlab.latency.backend import LatencyBackend, Settings, check_pair
from draftlab.latency.inflate import inflate
from draftlab.latency.llama_cpp import LlamaCpp
from draftlab.latency.self_check import self_check
from draftlab.models.gguf import Weights, export


@contextlib.contextmanager
def open_pair(
    target: Path,
    *drafts: Path,
    settings: Settings,
    weights: Weights = "f32",
    inflated_layers: int = 0,
    inflated_ffn: int = 0,
) -> Iterator[list[LlamaCpp]]:
    """Yield the target and the drafts, ready; a folder is exported as ``weights`` first, a GGUF file is taken as it is.

    ``inflated_layers`` > 0 makes the target cost more without changing what it computes (``inflate``).
    """
    self_check()
    with tempfile.TemporaryDirectory(prefix="draftlab-") as name, contextlib.ExitStack() as stack:
        scratch = Path(name)
        if inflated_layers:
            inflate(target, scratch / "inflated", layers=inflated_layers, ffn=inflated_ffn or None)
            target = scratch / "inflated"
        models = []
        for index, path in enumerate((target, *drafts)):
            if path.is_dir():
                path, folder = scratch / f"{index}-{path.name}.gguf", path
                export(folder, path, weights, vocabulary=False)
            models.append(stack.enter_context(LlamaCpp(path, settings)))
        for draft in models[1:]:
            check_pair(models[0], draft)
        yield models


def describe(settings: Settings, target: LatencyBackend, *drafts: LatencyBackend) -> dict[str, Any]:
    """What ``run.json`` says of the engines behind a table of timings."""
    models = {"target": target.describe(), "drafts": [draft.describe() for draft in drafts]}
    return {"engine": asdict(settings), **models}
