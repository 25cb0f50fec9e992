"""How long a job takes on a GPU: launching kernels, reading memory, and arithmetic. In seconds, for a decoder-only model.

The time of a decoding step is the larger of two: the CPU launches the kernels of each layer, and the GPU reads weights and cache from memory.
Reading prompts and learning are bound by arithmetic. The shares of a card's printed speed and the time to launch a layer were fitted on one
H100 (docs/paper.md). `python -m benchmarks.memory --device cuda` measures the same on another card.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from draftlab.core.settings import Settings
from draftlab.latency.sizes import BYTES, Sizes
from draftlab.plan.needs import RECORDED, Job, has_gpu, model_of, rows_of
from draftlab.plan.run import Run
from draftlab.plan.scale import Gpu
from draftlab.stages import STAGES
from draftlab.stages._decoding import Decoding
from draftlab.stages._schemes import is_counted
from draftlab.stages.blocks import Settings as Blocks
from draftlab.stages.live import PLAIN, Contender, Contest, contenders
from draftlab.stages.medusa import Settings as Medusa
from draftlab.stages.online import Settings as Online
from draftlab.stages.online_multidraft import Settings as Specialists
from draftlab.stages.tokens import Settings as Tokens
from draftlab.stages.trees import Settings as Trees
from draftlab.train.settings import Offline, Training

STREAMED = 0.75
"""The share of the printed bandwidth that a decoding step reaches."""
READING = 0.40
"""The share of the printed teraflops that reading prompts reaches."""
LEARNING = 0.30
"""The share of the printed teraflops that an update with autocast reaches."""

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
"""The makers' numbers, without sparsity."""


def flops(model: Sizes, rows: int, length: int) -> float:
    """Operations of one forward pass over ``rows`` texts of ``length`` tokens: two per weight and token, and attention to earlier tokens."""
    embedding = 0 if model.tied else model.vocab * model.hidden
    attention = 2 * model.layers * model.width * length
    return rows * length * (2.0 * (model.parameters - embedding) + attention)


@dataclass(frozen=True)
class OnCard:
    """A model with numbers of a ``dtype`` on a card. Its methods give seconds."""

    card: Card
    model: Sizes
    dtype: str

    @property
    def launching(self) -> float:
        """The kernels of all layers."""
        return self.model.layers * self.card.launch / 1e3

    def reading(self, rows: int, length: int) -> float:
        """One forward pass over ``rows`` texts."""
        return max(self.launching, flops(self.model, rows, length) / (self.card.teraflops * 1e12 * READING))

    def step(self, rows: int, context: float) -> float:
        """A decoding step, which gives each of ``rows`` requests one more token."""
        weights_and_cache = (self.model.parameters + rows * context * self.model.entry) * BYTES[self.dtype]
        return max(self.launching, weights_and_cache / (self.card.bandwidth * 1e9 * STREAMED))

    def answering(self, requests: int, rows: int, prompt: int, new: int) -> float:
        """Answers to ``requests`` with ``new`` tokens each, ``rows`` at a time."""
        batches, rows = math.ceil(requests / rows), min(rows, requests)
        return batches * (self.reading(rows, prompt) + new * self.step(rows, prompt + new / 2))

    def updating(self, rows: int, length: int, forwards: int) -> float:
        """``forwards`` passes over ``rows`` texts each, forward and backward, with the optimizer's step."""
        work = 3 * flops(self.model, rows, length) / (self.card.teraflops * 1e12 * LEARNING)
        launched = 3 * self.model.layers * self.card.launch / 1e3
        return forwards * (launched + work)


def drafting(target: OnCard, draft: OnCard, rows: int, prompt: int, new: int, drafts: int, draft_len: int) -> float:
    """Seconds to answer ``rows`` requests at once with ``drafts`` drafted sequences each, without verification.

    Every call of the target emits one token, the fewest. A model of transformers reads the cache of every sequence.
    """
    sequences, length = rows * drafts, prompt + new / 2
    copies = rows if target.model.kind == "llama" else sequences
    checked = max(target.step(copies, length), target.reading(sequences, draft_len + 1))
    call = draft_len * draft.step(sequences, length) + checked
    return target.reading(rows, prompt) + draft.reading(rows, prompt) + new * call


def seconds(run: Run, job: Job, card: Card, prompt: int) -> float | None:
    """Seconds of a job on a card, with prompts of ``prompt`` tokens and answers of the greatest length; None where that is not modelled."""
    if not has_gpu(run, job.rule, job.pair):
        return None
    if job.rule in STAGES:
        name, _, cell = job.name.partition("/")
        times = [of_variant(run, variant.settings, card, prompt) for variant in run.cells(name)[cell]]
        return None if None in times else sum(filter(None, times))
    pair, data = run.settings.pairs[job.pair], run.settings.data
    target, new = model_of(pair, "target"), pair.answers.max_new_tokens
    if target is None or job.rule not in ("answer", "pairs"):
        return None
    dataset, split = f"{job.name}.eval".split(".")[:2]
    count = data.eval if split == "eval" else data.train_requests(dataset)
    if job.rule == "pairs":
        count = math.ceil(data.pairs / new)
    return OnCard(card, target.sizes, pair.answers.dtype).answering(count, rows_of(pair, prompt + new), prompt, new)


def of_variant(run: Run, settings: Any, card: Card, prompt: int) -> float | None:
    """Seconds of one variant; None for a stage that is not modelled."""
    if not isinstance(settings, Decoding | Specialists | Medusa | Offline | Online | Tokens):
        return None
    pair = run.settings.pairs[settings.pair]
    of_target, of_draft = model_of(pair, "target"), model_of(pair, getattr(settings, "draft", "draft"))
    if of_target is None or of_draft is None:
        return None
    target, draft = (OnCard(card, model.sizes, pair.answers.dtype) for model in (of_target, of_draft))
    if of_draft.is_head and isinstance(settings, Offline | Online):
        settings = settings.model_copy(update={"reads_target": True})
    if isinstance(settings, Decoding):
        return _decoding(settings, prompt, target, draft)
    if isinstance(settings, Specialists):
        return _specialists(settings, prompt, target, draft, pair.answers.max_new_tokens)
    if isinstance(settings, Medusa):
        return _medusa(run, settings, prompt, target, draft)
    if isinstance(settings, Online):
        return _online(run, settings, prompt, target, draft)
    if isinstance(settings, Tokens):
        count = settings.epochs * run.settings.data.train_requests(settings.dataset)
        return _distilling(run, settings, prompt, draft, count, measured=2)
    return _offline(run, settings, prompt, target, draft)


def _decoding(settings: Decoding, prompt: int, target: OnCard, draft: OnCard) -> float:
    """Seconds in which contenders decode the held-out requests, or are counted along texts of the target; verification is left out."""
    rows, new, length = settings.batch, settings.max_new_tokens, settings.draft_len
    batches, written = math.ceil(settings.requests / rows), settings.requests * new

    def decoded(one: Contender, requests: int) -> float:
        """Seconds in which a contender decodes this many requests of each batch."""
        if one.scheme == PLAIN:
            return batches * target.answering(requests, rows, prompt, new)
        return batches * drafting(target, draft, requests, prompt, new, one.num_drafts, length)

    texts = target.answering(settings.requests, rows, prompt, new)
    texts += batches * draft.reading(rows, prompt + new)
    every = contenders(settings, runs=False) if isinstance(settings, Contest) else []
    if isinstance(settings, Trees):  # after each token, target and draft each grow a tree by their own confidence
        grown = written * (1 + (length - 1) * settings.width)
        total = texts + sum(model.reading(grown, 1) for model in (target, draft))
    elif isinstance(settings, Blocks):
        total = len({(one.target_temperature, one.top_k) for one in every}) * texts
        total += sum(decoded(one, rows) for one in every if not is_counted(one.scheme))
        total += sum(decoded(one, min(settings.timed, rows)) for one in every if settings.timed)
    else:
        total = sum(decoded(one, rows) for one in every)
    return len(settings.datasets) * total


def _specialists(settings: Specialists, prompt: int, target: OnCard, draft: OnCard, recorded: int) -> float:
    """Seconds in which a shared draft and one for each topic learn from a stream, and their arrangements decode; verification is left out."""
    topics, new, at_once = len(settings.topics), settings.max_new_tokens, settings.update_interval
    # The specialists together make as many updates as the shared draft.
    steps = 2 * math.ceil(topics * settings.stream / at_once)
    learnt = steps * draft.reading(at_once, prompt + recorded)
    learnt += draft.updating(at_once, prompt + recorded, steps)
    rows = settings.batch or settings.requests
    one, several = (
        math.ceil(settings.requests / rows) * drafting(target, draft, rows, prompt, new, count, settings.draft_len)
        for count in (1, topics)
    )
    return len(settings.seeds) * (learnt + topics * (2 * one + 4 * len(settings.schemes) * several))


def _medusa(run: Run, settings: Medusa, prompt: int, target: OnCard, draft: OnCard) -> float:
    """Seconds in which heads and a draft learn, and every contender decodes the held-out requests one by one; verification is left out.

    Heads read the states of the target: once to learn from a recorded answer, and once more to serve it.
    """
    answers, data = run.settings.pairs[settings.pair].answers, run.settings.data
    new, at_once, heads = answers.max_new_tokens, settings.update_interval, len(settings.widths)
    warm = sum(min(settings.warm_requests, data.train_requests(name)) for name in settings.warm)
    served = min(settings.requests, data.train_requests(settings.dataset))
    steps, text = math.ceil(served / at_once), prompt + new
    total = steps * draft.reading(at_once, text) + draft.updating(at_once, text, steps)
    total += (2 * served + warm) / at_once * target.reading(at_once, text)
    learnt = (served + warm) * new * heads * target.model.hidden * (target.model.hidden + target.model.vocab)
    total += 6 * learnt / (target.card.teraflops * 1e12 * LEARNING)
    plain = target.answering(settings.live_requests, 1, prompt, new)
    drafted = drafting(target, draft, 1, prompt, new, 1, settings.draft_len)
    # Greedy: plain, draft and heads, each also learnt; sampled: plain, the draft that learnt, and its heads by every verifier.
    return total + (4 + len(settings.verifiers)) * plain + 3 * settings.live_requests * drafted


def _replaying(run: Run, draft: OnCard, text: int) -> float:
    """Seconds in which a draft reads the held-out requests of a dataset."""
    return math.ceil(run.settings.data.eval / AT_ONCE) * draft.reading(AT_ONCE, text)


def _online(run: Run, settings: Online, prompt: int, target: OnCard, draft: OnCard) -> float:
    """Seconds in which a draft is distilled before it serves, reads a stream or decodes it with its target, and learns from it."""
    text = prompt + run.settings.pairs[settings.pair].answers.max_new_tokens
    groups = len(settings.stream.groups) if settings.stream else 0
    count = settings.stream.per_group * groups if settings.stream else 0
    count = count or sum(run.settings.data.train_requests(name) for name in settings.datasets)
    steps = math.ceil(count / settings.update_interval)
    total = 0.0 if settings.live else steps * draft.reading(settings.update_interval, text)
    held_out = settings.probes * len(settings.datasets)
    total += held_out * _replaying(run, draft, text)
    if settings.learns:
        total += draft.updating(settings.update_interval + settings.replay, text, steps)
    batch, warm_steps = settings.batch, 0
    if settings.warm_on != "nothing":
        warm = settings.warm_share * (count if settings.warm_on == "stream" else settings.aside * max(groups, 1))
        warm_steps = math.ceil(warm / settings.batch) * settings.warm_epochs
        batch, warm_steps = (settings.update_interval, steps) if settings.warm_fair else (settings.batch, warm_steps)
        total += draft.updating(batch, text, warm_steps)
    if settings.reads_target or settings.parallel:  # each token once for each place in a block
        total *= settings.draft_len
    if settings.reads_target:  # the target computes its states anew wherever the draft reads a text
        passes = steps * (1 + settings.learns)
        total += passes * target.reading(settings.update_interval, text)
        total += held_out * _replaying(run, target, text) + warm_steps * target.reading(batch, text)
    if settings.live:
        total += steps * drafting(target, draft, settings.update_interval, prompt, text - prompt, 1, settings.draft_len)
    return total


def _distilling(run: Run, settings: Training, prompt: int, draft: OnCard, count: int, measured: int) -> float:
    """Seconds in which a draft learns from ``count`` recorded answers, and is ``measured`` so many times."""
    text = prompt + run.settings.pairs[settings.pair].answers.max_new_tokens
    rows = min(settings.micro_batch or settings.batch, settings.batch)
    learnt = draft.updating(rows, text, math.ceil(count / rows))
    return learnt + measured * _replaying(run, draft, text)


def _offline(run: Run, settings: Offline, prompt: int, target: OnCard, draft: OnCard) -> float:
    """Seconds in which a draft learns and is measured, and in which answers that are not recorded are written and scored."""
    answers, data = run.settings.pairs[settings.pair].answers, run.settings.data
    new, text = answers.max_new_tokens, prompt + answers.max_new_tokens
    # Each process learns from its share of every batch; all of them wait for the one that measures.
    processes = run.settings.compute.processes
    settings = settings.model_copy(update={"batch": math.ceil(settings.batch / processes)})
    count = settings.epochs * (settings.requests or data.train_requests(settings.dataset))
    count = math.ceil(count / processes) if settings.loss != "none" else 0
    measured = 1 + settings.probes * settings.epochs
    total = _distilling(run, settings, prompt, draft, count, measured)
    if settings.reads_target or settings.parallel:  # each token once for each place in a block
        total *= settings.longest
    if settings.reads_target:  # from states that the target computes anew
        texts = count + measured * data.eval
        total += math.ceil(texts / settings.batch) * target.reading(settings.batch, text)
    if count and settings.sample_source not in RECORDED:
        # Those of several updates, if they fit together (train.learning).
        at_once = min(settings.sample_batch, max(1, settings.sample_batch // settings.batch) * settings.batch)
        if settings.sample_source == "mix_request":  # the target's half of the answers is recorded
            count, at_once = math.ceil(count / 2), math.ceil(at_once / 2)
        total += replace(draft, dtype="float32").answering(count, at_once, prompt, new)
        if settings.sample_source == "mix_token":  # the target reads along and needs no further pass to score the text
            total += target.answering(count, at_once, prompt, new)
        else:
            total += math.ceil(count / at_once) * target.reading(at_once, text)
    if settings.live:
        rows = min(settings.sample_batch, data.eval)
        decoded = drafting(target, draft, rows, prompt, new, 1, settings.draft_len)
        total += measured * math.ceil(data.eval / rows) * decoded
    return total
