"""``draftlab profile``: what steps of a pair cost on this machine, in llama.cpp."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from draftlab.core.settings import Flat
from draftlab.errors import UserError
from draftlab.serving.profiles import Attention, Costs, Profile, save

CONTEXTS, BATCHES, TOKENS, PROMPT = (64, 512), (1, 4), (1, 2, 4, 8), 256
Rows = list[tuple[int, int, int, float]]
"""(tokens in the step, sequences, tokens cached in all, milliseconds)"""


@dataclass(frozen=True)
class Asked:
    """What to time, and the limits to write into the profile."""

    target: Path
    """A model folder or a GGUF file."""
    draft: Path | None = None
    """The same."""
    name: str = "here"
    """Of the profile."""
    threads: int = 1
    """Threads of llama.cpp."""
    gpu_layers: int = 0
    """Layers on the GPU; -1: all."""
    blocks: int = 5
    """Repeats of each measurement."""
    kv_tokens: int = 8192
    """Tokens that the server can cache, as written into the profile."""
    max_sequences: int = 16
    """Requests that the server decodes at once, as written into the profile."""
    seed: int = 0
    """Of the order of measurements."""


def profile(asked: Flat[Asked], *, out: Path) -> None:
    """Measure the cost of target and draft steps in llama.cpp on this machine, and write a hardware profile for draftlab load."""
    save(measure(asked), out)


def measure(asked: Asked) -> Profile:
    """Time steps of the pair over a grid of batches and contexts, with target and draft in turn and in random order; then ``fit`` them."""
    from draftlab.files.machine import machine
    from draftlab.latency.pair import open_pair
    from draftlab.latency.settings import Engine

    if asked.blocks < 1:
        raise UserError(f"{asked.blocks} blocks", remedy="measure at least one")
    settings = Engine.model_validate({"threads": asked.threads, "gpu_layers": asked.gpu_layers, "weights": "q8_0"})
    length, sequences = max(CONTEXTS) + max(TOKENS), max(BATCHES)
    drafts = [asked.draft] if asked.draft is not None else []
    rng = np.random.default_rng(asked.seed)
    with open_pair(asked.target, *drafts, settings=settings, context_length=length, sequences=sequences) as models:
        found: list[Rows] = [[] for _ in models]
        clock = models[0].clock()
        grid = [(batch, context) for batch in BATCHES for context in CONTEXTS]
        for block in range(-1, asked.blocks):  # the first warms up
            print(f"block {block + 1} of {asked.blocks}", file=sys.stderr)
            for batch, context in rng.permutation(grid).tolist():
                for model, rows in zip(models, found, strict=True):
                    started = clock()
                    model.fill(1, PROMPT)
                    times = [(PROMPT, 0, 0, clock() - started)]
                    model.fill(batch, context)
                    for tokens in rng.permutation(TOKENS).tolist():
                        started = clock()
                        model.probe(tokens)
                        times.append((batch * tokens, batch, batch * context, clock() - started))
                    if block >= 0:
                        rows += [(n, b, c, seconds * 1e3) for n, b, c, seconds in times]
    here = machine()
    costs = [fit(rows) for rows in found]
    return Profile(
        name=asked.name,
        hardware=f"{here['processor']}, {asked.threads} threads, {asked.gpu_layers} layers on a GPU",
        model=asked.target.name,
        engine=f"llama-cpp-python {here['packages'].get('llama-cpp-python', '')}",
        source=f"draftlab profile: medians of {asked.blocks} blocks; the head is part of what a token costs",
        licence="measured here",
        target=costs[0],
        draft=costs[1] if asked.draft else None,
        kv_tokens=asked.kv_tokens,
        max_sequences=asked.max_sequences,
        max_tokens=512,
    )


def fit(rows: Sequence[tuple[int, int, int, float]]) -> Costs:
    """Fit a time for each number of tokens, and one for each cached token, by least squares on the relative errors of the medians."""
    from scipy.optimize import nnls

    cells: dict[tuple[int, int, int], list[float]] = {}
    for tokens, batch, cached, milliseconds in rows:
        cells.setdefault((tokens, batch, cached), []).append(milliseconds)
    sizes = sorted({tokens for tokens, _, _ in cells})
    design, times = np.zeros((len(cells), len(sizes) + 1)), np.zeros(len(cells))
    for row, ((tokens, _, cached), seen) in enumerate(cells.items()):
        design[row, sizes.index(tokens)] = 1
        design[row, -1] = cached
        times[row] = np.median(seen)
    found, _ = nnls(design / times[:, None], np.ones(len(times)))
    table = {size: float(value) for size, value in zip(sizes, found[:-1], strict=True)}
    return Costs(tokens=table, decode=Attention(per_cached=float(found[-1])))
