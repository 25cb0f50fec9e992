"""``draftlab profile``: what steps of a pair cost on this machine, in llama.cpp or in torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from draftlab.core.settings import Device, Flat
from draftlab.errors import UserError
from draftlab.serving.profiles import Attention, Costs, Profile, save

if TYPE_CHECKING:
    from draftlab.models.backend import LatencyBackend

CONTEXTS, BATCHES, TOKENS, PROMPT = (64, 512), (1, 4), (1, 2, 4, 8), 256
Times = list[tuple[int, int, float]]
"""(tokens in the step, tokens cached in all, milliseconds)"""


@dataclass(frozen=True)
class ProfileSettings:
    """What to time, and the limits to write into the profile."""

    target: Path
    """the target: a model folder or a GGUF file"""
    draft: Path | None = None
    """the draft, likewise; without one, only the target is measured"""
    name: str = "here"
    """name of the profile"""
    backend: Literal["llama_cpp", "torch"] = "llama_cpp"
    """the inference engine; torch takes model folders only"""
    weights: Literal["own", "f32", "f16", "bf16", "q8_0", "q4_0"] | None = None
    """type of the weights; own: as a GGUF file holds them. Without one: own if the target is such a file, else q8_0, in torch bf16"""
    device: Device = "cpu"
    """where torch computes; llama.cpp has gpu-layers instead"""
    threads: int = 1
    """CPU threads of the engine"""
    gpu_layers: int = 0
    """layers that llama.cpp runs on the GPU; -1: all"""
    blocks: int = 5
    """repeats of each measurement"""
    kv_tokens: int = 8192
    """tokens that the server can cache, as written into the profile"""
    max_sequences: int = 16
    """requests that the server decodes at once, as written into the profile"""
    seed: int = 0
    """seed of the order of measurements"""


def profile(settings: Flat[ProfileSettings], *, out: Path) -> None:
    """Measure the cost of target and draft steps on this machine, and write a hardware profile for draftlab load.

    **Arguments:**
    - `out`: the YAML file to write
    """
    found = measure(settings)
    save(found, out)
    print(f"{out}: {summary(found)}")


def summary(found: Profile) -> str:
    """What a step takes for one request, in words.

    >>> costs = Costs(tokens={1: 10.0, 8: 17.0})
    >>> summary(Profile(name="a", hardware="b", model="c", engine="d", source="e", licence="f", target=costs, draft=costs.scaled(0.1), kv_tokens=1, max_sequences=1))
    'a step of the target takes 10 ms, reading five tokens 1.40 times as long; a draft step takes 0.100 of it'
    """
    alone = found.target.step(1, 1, 1, 0.0)
    text = f"a step of the target takes {alone:.3g} ms, reading five tokens {found.target.step(5, 5, 1, 0.0) / alone:.2f} times as long"
    return text + (f"; a draft step takes {found.draft.step(1, 1, 1, 0.0) / alone:.3f} of it" if found.draft else "")


def measure(settings: ProfileSettings) -> Profile:
    """Time steps of the pair over a grid of batches and contexts, with target and draft in turn and in random order; then ``fit`` them.

    ``per_block`` is the time of a block in draftlab's own loop in which no model runs.
    """
    from draftlab.files.machine import machine
    from draftlab.files.weights import is_gguf
    from draftlab.latency.cost import around_calls
    from draftlab.latency.pair import open_pair
    from draftlab.latency.settings import Engine

    if settings.blocks < 1:
        raise UserError(f"--blocks is {settings.blocks}", remedy="give 1 or more")
    if min(settings.kv_tokens, settings.max_sequences) < 1 or settings.seed < 0:
        what = f"--kv-tokens is {settings.kv_tokens}, --max-sequences {settings.max_sequences}, --seed {settings.seed}"
        raise UserError(what, remedy="give at least 1 token and 1 sequence, and a seed of 0 or more")
    for model in filter(None, (settings.target, settings.draft)):
        _check_file(model, settings.backend)
    by_default = "bf16" if settings.backend == "torch" else "own" if is_gguf(settings.target) else "q8_0"
    names = ("backend", "device", "threads", "gpu_layers")
    engine = {name: getattr(settings, name) for name in names} | {"weights": settings.weights or by_default}
    after = max(TOKENS) + 1  # what a sequence reads after its context
    length, sequences = max(CONTEXTS) + after, max(BATCHES)
    drafts = [settings.draft] if settings.draft is not None else []
    with open_pair(
        settings.target, *drafts, settings=Engine.model_validate(engine), context_length=length, sequences=sequences
    ) as models:
        described = models[0].describe()
        room = min(model.context_length for model in models) - after
        if room < PROMPT:
            what, remedy = f"a context of {room + after} tokens", f"use models that hold {PROMPT + after} or more"
            raise UserError(what, file=settings.target, remedy=remedy)
        per_block = 1e3 * around_calls(models[0], PROMPT // 2, settings.seed)["loop_seconds"]
        costs = [fit(times) for times in _times(models, room, settings)]
    hardware, software = _names(settings, described, machine())
    return Profile(
        name=settings.name,
        hardware=hardware,
        model=settings.target.name,
        engine=software,
        source=f"draftlab profile: medians of {settings.blocks} blocks; the head is part of what a token costs",
        licence="measured here",
        target=costs[0],
        draft=costs[1] if drafts else None,
        per_block=max(per_block, 0.0),
        kv_tokens=settings.kv_tokens,
        max_sequences=settings.max_sequences,
        max_tokens=512,
    )


def _check_file(model: Path, backend: str) -> None:
    """Refuse a GGUF file that is not there, or that the engine does not read."""
    if model.suffix == ".gguf" and not model.exists():
        raise UserError("no such file", file=model, remedy="check the path")
    if model.is_file() and backend == "torch":
        remedy = "leave out --backend, or make a folder of it: draftlab gguf import"
        raise UserError("a file, but torch takes model folders only", file=model, remedy=remedy)


def _times(models: Sequence[LatencyBackend], room: int, settings: ProfileSettings) -> list[Times]:
    """The times of steps of each model, at contexts of at most ``room`` tokens, each after ``UNTIMED`` steps of its own shape."""
    from draftlab.latency.controlled import UNTIMED

    rng = np.random.default_rng(settings.seed)
    times: list[Times] = [[] for _ in models]
    clock = models[0].clock()
    grid = [(batch, context) for batch in BATCHES for context in (min(each, room) for each in CONTEXTS)]
    for block in range(-1, settings.blocks):  # the first warms up
        print("warming up" if block < 0 else f"block {block + 1} of {settings.blocks}", file=sys.stderr)
        for batch, context in rng.permutation(grid).tolist():
            for model, rows in zip(models, times, strict=True):
                started = clock()
                model.fill(1, PROMPT)
                new = [(PROMPT, 0, 1e3 * (clock() - started))]
                model.fill(batch, context)
                for tokens in rng.permutation(TOKENS).tolist():
                    for _ in range(UNTIMED):
                        model.probe(tokens)
                    started = clock()
                    model.probe(tokens)
                    new.append((batch * tokens, batch * context, 1e3 * (clock() - started)))
                if block >= 0:
                    rows += new
    return times


def _names(settings: ProfileSettings, described: dict[str, Any], here: dict[str, Any]) -> tuple[str, str]:
    """The hardware and the engine, in words."""
    processor = f"{here['processor']}, {settings.threads} thread{'s' * (settings.threads > 1)}"
    if settings.backend == "torch":
        device = processor if settings.device == "cpu" else described["device"]
        return device, f"torch {described['torch']}, {described['weights']}"
    version = here["packages"].get("llama-cpp-python", "")
    return f"{processor}, {settings.gpu_layers} layers on a GPU", f"llama-cpp-python {version}, {described['weights']}"


def fit(times: Times) -> Costs:
    """Fit a time for each number of tokens, and one for each cached token, by least squares on the relative errors of the medians."""
    cells: dict[tuple[int, int], list[float]] = {}
    for tokens, cached, ms in times:
        cells.setdefault((tokens, cached), []).append(ms)
    sizes = sorted({tokens for tokens, _ in cells})
    design = np.array([[*(tokens == size for size in sizes), cached] for tokens, cached in cells], dtype=float)
    *by_size, per_cached = fit_relative(design, [float(np.median(seen)) for seen in cells.values()])
    return Costs(tokens=dict(zip(sizes, by_size, strict=True)), decode=Attention(per_cached=per_cached))


def fit_relative(design: Float64[np.ndarray, "cells terms"], times: ArrayLike) -> list[float]:
    """The non-negative coefficients of ``design`` with the least squares of the relative errors of ``times``."""
    from scipy.optimize import nnls

    coefficients, _ = nnls(design / np.asarray(times)[:, None], np.ones(len(design)))
    return [float(value) for value in coefficients]
