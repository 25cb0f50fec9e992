"""How long a job takes on a GPU: launching kernels, reading memory, and arithmetic. In seconds, for a decoder-only model.

A step of decoding waits for the slower of two: the CPU, which launches the kernels of each layer, and the memory, which holds weights and cache.
Reading prompts and learning wait for the arithmetic. Three shares of a card's printed speed, and the time to launch a layer, were chosen once on one
H100; docs/paper.md has what was measured there. `python -m benchmarks.memory --device cuda` measures the same on another card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from draftlab.core.settings import Settings
from draftlab.latency.sizes import BYTES, Sizes
from draftlab.plan.needs import RECORDED, Job, has_gpu, model_of, rows_of
from draftlab.plan.run import Run
from draftlab.plan.scale import Gpu
from draftlab.stages import STAGES
from draftlab.stages.online import Settings as Online
from draftlab.train.settings import Offline

STREAMED = 0.75
"""The share of the memory's bandwidth that a step of decoding reaches."""
READING = 0.40
"""The share of the arithmetic that reading prompts reaches."""
LEARNING = 0.30
"""The share that an update with autocast reaches."""

AT_ONCE = 16
"""Held-out requests that a replay reads at once."""


class Card(Settings):
    """A GPU: ``memory`` in GiB, ``bandwidth`` in GB/s, ``teraflops`` of 16-bit matrix products, and the milliseconds in which the CPU beside it
    launches the kernels of one layer."""

    memory: float = Field(gt=0)
    bandwidth: float = Field(gt=0)
    teraflops: float = Field(gt=0)
    launch: float = Field(default=0.37, gt=0)


GPUS: dict[Gpu, Card] = {
    "rtx4090": Card(memory=24, bandwidth=1008, teraflops=165),
    "a100-40": Card(memory=40, bandwidth=1555, teraflops=312),
    "a100-80": Card(memory=80, bandwidth=2039, teraflops=312),
    "h100": Card(memory=80, bandwidth=3350, teraflops=989),
    "h200": Card(memory=141, bandwidth=4800, teraflops=989),
}
"""As their makers print them, without sparsity."""


def flops(model: Sizes, rows: int, length: int) -> float:
    """Arithmetic of one forward of ``rows`` texts of ``length`` tokens: two operations a weight and token, and attention to what came before."""
    embedding = 0 if model.tied else model.vocab * model.hidden
    attention = 2 * model.layers * model.width * length
    return rows * length * (2.0 * (model.parameters - embedding) + attention)


def reading(card: Card, model: Sizes, rows: int, length: int) -> float:
    """Seconds of one forward over ``rows`` texts."""
    return max(model.layers * card.launch / 1e3, flops(model, rows, length) / (card.teraflops * 1e12 * READING))


def step(card: Card, model: Sizes, dtype: str, rows: int, context: float) -> float:
    """Seconds in which each of ``rows`` requests gets one more token."""
    held = (model.parameters + rows * context * model.entry) * BYTES[dtype]
    return max(model.layers * card.launch / 1e3, held / (card.bandwidth * 1e9 * STREAMED))


def answering(card: Card, model: Sizes, dtype: str, requests: int, rows: int, prompt: int, new: int) -> float:
    """Seconds in which ``requests`` are answered with ``new`` tokens each, ``rows`` at a time."""
    batches = math.ceil(requests / rows)
    whole = min(rows, requests)
    return batches * (reading(card, model, whole, prompt) + new * step(card, model, dtype, whole, prompt + new / 2))


def updating(card: Card, model: Sizes, rows: int, length: int, forwards: int = 1) -> float:
    """Seconds of an update: ``forwards`` passes over ``rows`` texts each, forward and backward, and the optimizer's step."""
    launched = 3 * model.layers * card.launch / 1e3
    work = 3 * flops(model, rows, length) / (card.teraflops * 1e12 * LEARNING)
    return forwards * (launched + work)


@dataclass(frozen=True)
class Clock:
    """What hours depend on besides the run: the card, and the length of a usual prompt."""

    card: Card
    prompt: int


def seconds(run: Run, job: Job, clock: Clock) -> float | None:
    """How long a job takes on the card of ``clock``, with answers as long as they may be; None where that is not modelled."""
    if not has_gpu(run, job.rule):
        return None
    settings = run.settings.pairs[job.pair]
    target, how = model_of(settings, "target"), settings.answers
    if job.rule in STAGES:
        name, _, cell = job.name.partition("/")
        each = [_learning(run, own.settings, clock) for own in run.cells(name)[cell]]
        return None if None in each else sum(own for own in each if own is not None)
    if target is None or job.rule not in ("answer", "pairs"):
        return None
    dataset, split = f"{job.name}.eval".split(".")[:2]
    data = run.settings.data
    count = data.eval if split == "eval" else data.train_requests(dataset)
    if job.rule == "pairs":
        count = math.ceil(data.pairs / how.max_new_tokens)
    rows = rows_of(settings, clock.prompt + how.max_new_tokens)
    return answering(clock.card, target.sizes, how.dtype, count, rows, clock.prompt, how.max_new_tokens)


def _learning(run: Run, own: Any, clock: Clock) -> float | None:
    """Seconds of one variant; None for a stage that is not modelled."""
    if not isinstance(own, Offline | Online):
        return None
    pair = run.settings.pairs[own.pair]
    target, draft = model_of(pair, "target"), model_of(pair, own.draft)
    if target is None or draft is None:
        return None
    if isinstance(own, Online):
        return _online(run, own, clock, draft.sizes)
    return _offline(run, own, clock, target.sizes, draft.sizes)


def _replayed(run: Run, clock: Clock, draft: Sizes, text: int) -> float:
    """Seconds in which a draft reads the held-out requests."""
    return math.ceil(run.settings.data.eval / AT_ONCE) * reading(clock.card, draft, AT_ONCE, text)


def _online(run: Run, own: Online, clock: Clock, draft: Sizes) -> float:
    """Seconds in which a draft reads a stream and learns from it, perhaps after a start."""
    data, card = run.settings.data, clock.card
    text = clock.prompt + run.settings.pairs[own.pair].answers.max_new_tokens
    groups = len(own.stream.groups) if own.stream else 0
    count = own.stream.per_group * groups if own.stream else 0
    count = count or sum(data.train_requests(name) for name in own.datasets)
    steps = math.ceil(count / own.update_interval)
    taken = steps * reading(card, draft, own.update_interval, text) + own.probes * _replayed(run, clock, draft, text)
    if own.learns:
        taken += updating(card, draft, own.update_interval + own.replay, text, steps)
    if own.warm_on != "nothing":
        first = own.warm_share * (count if own.warm_on == "stream" else own.aside * max(groups, 1))
        epochs = math.ceil(first / own.batch) * own.warm_epochs
        taken += updating(card, draft, own.batch, text, steps if own.warm_fair else epochs)
    return taken


def _offline(run: Run, own: Offline, clock: Clock, target: Sizes, draft: Sizes) -> float:
    """Seconds in which answers are written and scored where they are not recorded, learnt, and replayed."""
    how, data, card = run.settings.pairs[own.pair].answers, run.settings.data, clock.card
    new, text = how.max_new_tokens, clock.prompt + how.max_new_tokens
    rows = own.micro_batch or own.batch
    count = own.epochs * (own.requests or data.train_requests(own.dataset)) if own.loss != "none" else 0
    taken = updating(card, draft, rows, text, math.ceil(count / rows))
    taken += (1 + own.probes * own.epochs) * _replayed(run, clock, draft, text)
    if count and own.sample_source not in RECORDED:
        at_once = min(own.sample_batch, own.batch)
        taken += answering(card, draft, "float32", count, at_once, clock.prompt, new)
        taken += math.ceil(count / at_once) * reading(card, target, at_once, text)
        if own.sample_source != "student":  # of a mixture the target writes a part
            taken += answering(card, target, how.dtype, count, at_once, clock.prompt, new)
    if own.live:
        taken += answering(card, target, how.dtype, data.eval, AT_ONCE, clock.prompt, new)
    return taken
