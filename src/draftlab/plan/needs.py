"""What a run will need before anything runs: jobs by rule, memory, disk, downloads, and repositories that ask for access."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from draftlab.data import registry
from draftlab.files.checkout import WORKFLOW
from draftlab.latency.settings import Engine
from draftlab.latency.sizes import BYTES, Model, Sizes, known_models
from draftlab.plan.memory import beside, decoding, recorded, training
from draftlab.plan.run import Run, load_run
from draftlab.plan.scale import Gpu, Pair
from draftlab.train.settings import Offline, Serving, Training

GPUS: dict[Gpu, int] = {"rtx4090": 24, "a100-40": 40, "a100-80": 80, "h100": 80, "h200": 141}
"""Gigabytes (2^30 bytes) of memory."""
RECORDED = ("teacher", "none")
"""Sources of samples for which the target does not run again."""


@dataclass(frozen=True)
class Job:
    """One job: its rule, what it makes, the most memory that it takes on its device (None: not modelled), and bytes on the disk."""

    rule: str
    pair: str
    name: str
    peak: int | None = None
    disk: int = 0


def model_of(pair: Pair, role: str) -> Model | None:
    """A model of a pair: of the table, or as its recipe makes it; None for another that exists already."""
    recipe = pair.models[role]
    if recipe.model:
        return known_models().get(recipe.model.partition("@")[0])
    kind, heads = recipe.family, recipe.heads
    fields = recipe.model_dump(include={"hidden", "ffn", "layers", "context"})
    return Model(sizes=Sizes(kind=kind, heads=heads, kv_heads=heads, vocab=recipe.vocabulary, tied=True, **fields))


def jobs(run: Run) -> Iterator[Job]:
    """Every job that takes a model, and every cell."""
    made: set[str] = set()
    for name, experiment in run.experiments.items():
        for cell in run.cells(name):
            yield _cell(run, name, cell, experiment.stage)
            made |= set(run.reads(name, cell))
    for path in sorted(made):
        pair, kind, *rest = (*Path(path).relative_to(run.folder).parts, "")
        if kind == "models":
            model = model_of(run.settings.pairs[pair], rest[0])
            disk = model.sizes.parameters * (model.stored or 4) if model else 0
            yield Job("target" if rest[0] == "target" else "draft", pair, rest[0], disk=disk)
        elif kind == "answers":
            yield _answer(run, pair, rest[0])
        elif kind == "pairs":
            yield Job("pairs", pair, rest[0], _decoding(run.settings.pairs[pair], ["target", "draft"]))


def _answer(run: Run, pair: str, name: str) -> Job:
    how, (dataset, split) = run.settings.pairs[pair].answers, name.split(".")[:2]
    count = run.settings.data.eval if split == "eval" else run.settings.data.train_requests(dataset)
    disk = recorded(count, how.max_new_tokens, how.keep)
    return Job("answer", pair, name, _decoding(run.settings.pairs[pair], ["target"]), disk)


def _context(pair: Pair, own: Sizes) -> int:
    """The number of tokens of the longest request."""
    return own.context if own.kind == "t5" else min(own.context, pair.target.context)


def _decoding(pair: Pair, roles: list[str]) -> int | None:
    """The memory to decode a full batch of the longest requests with the first model of ``roles``, with the others loaded."""
    models, how = [model_of(pair, role) for role in roles], pair.answers
    first = models[0]
    if first is None or None in models:
        return None
    context = _context(pair, first.sizes)
    rows = max(1, min(how.batch, how.batch_tokens // context))
    others = sum(other.sizes.parameters * BYTES[how.dtype] for other in models[1:] if other)
    return others + decoding(first.sizes, how.dtype, rows, context - how.max_new_tokens, how.max_new_tokens)


def _cell(run: Run, name: str, cell: str, stage: str) -> Job:
    """The memory of a cell, that of its largest variant; every prompt is assumed to fill the draft's context."""
    every = [own.settings for own in run.cells(name)[cell]]
    own = max(every, key=lambda one: _peak(run, one) or 0)
    pair = run.pair_of(name, cell)
    draft = model_of(run.settings.pairs[pair], own.draft) if isinstance(own, Training) else None
    disk = draft.sizes.parameters * (16 if isinstance(own, Offline | Serving) else 0) if draft else 0
    return Job(stage, pair, f"{name}/{cell}", _peak(run, own), disk)


def _peak(run: Run, own: Any) -> int | None:
    if isinstance(own, Engine):
        return _engine(run, own)
    if not isinstance(own, Offline | Serving):
        return None
    pair = run.settings.pairs[own.pair]
    draft, answer = model_of(pair, own.draft), pair.answers.max_new_tokens
    if draft is None:
        return None
    if isinstance(own, Serving):
        size = own.update_interval + own.replay
        rows = size
    else:
        size, rows = own.batch, own.micro_batch or own.batch
    length = _context(pair, draft.sizes)
    learns = training(draft.sizes, rows, length, answer, size, own.autocast)
    if isinstance(own, Serving) or (own.sample_source in RECORDED and not own.live):
        return learns
    target = model_of(pair, "target")
    if target is None:
        return None
    prompt = _context(pair, target.sizes) - answer
    return beside(target.sizes, pair.answers.dtype, draft.sizes, learns, own.sample_batch, prompt, answer)


def _engine(run: Run, own: Engine) -> int | None:
    """The memory of target and draft in llama.cpp for one request: weights in their type, and a float16 cache of the whole context."""
    if run.settings.by_architecture or own.weights not in ("f16", "bf16", "f32"):
        return None
    models = [model_of(run.settings.pairs[own.pair], role) for role in ("target", "draft")]
    if None in models:
        return None
    size = 4 if own.weights == "f32" else 2
    return sum(m.sizes.parameters * size + m.sizes.context * m.sizes.entry * 2 for m in models if m)


def lines(run: Run, gpu: Gpu) -> Iterator[str]:
    """The table by rule, the jobs that do not fit a ``gpu``, downloads, and repositories that ask for access."""
    every, room = list(jobs(run)), GPUS[gpu] * 2**30
    yield f"{'rule':<22}{'jobs':>6}{'GPU, GB':>10}{'host, GB':>10}{'disk, GB':>10}"
    for rule in dict.fromkeys(job.rule for job in every):
        own = [job for job in every if job.rule == rule]
        peaks = [job.peak for job in own if job.peak]
        asked = max(run.settings.asked(rule, job.pair).mem_mb for job in own)
        shown = f"{max(peaks) / 1e9:,.1f}" if peaks and run.settings.asked(rule).gpu else "-"
        yield f"{rule:<22}{len(own):>6}{shown:>10}{asked / 1e3:>10,.0f}{sum(job.disk for job in own) / 1e9:>10,.1f}"
    yield f"{'in all':<22}{len(every):>6}{'':>20}{sum(job.disk for job in every) / 1e9:>10,.1f}"
    yield "GPU: the most that any job takes, with every prompt as long as the context allows; host: what the scale requests"
    yield "Hours are left out: docs/paper.md says how fast one H100 answers and trains"
    names = {
        recipe.model.partition("@")[0]
        for pair in run.settings.pairs.values()
        for recipe in pair.models.values()
        if recipe.model
    }
    known = known_models()
    stored = {name: known[name].sizes.parameters * known[name].stored for name in sorted(names & set(known))}
    for name, size in stored.items():
        yield f"download {size / 1e9:>8,.1f} GB  {name}"
    yield f"download {sum(stored.values()) / 1e9:>8,.1f} GB  in all, without the datasets, whose sizes are not known in advance"
    fetched = run.settings.every_dataset if run.settings.data.source == "hub" else []
    gated = [found.hub_id for name in fetched if (found := registry.find(name)).gated == "yes"]
    yield from (f"requires access: https://huggingface.co/datasets/{name}" for name in gated)
    large = [job for job in every if job.peak and job.peak > room and run.settings.asked(job.rule).gpu]
    for job in large:
        yield f"does not fit {gpu} ({GPUS[gpu]} GB): {job.rule} {job.pair} {job.name}, {(job.peak or 0) / 2**30:,.1f} GB"
    if not large:
        yield f"every job that is modelled fits {gpu} ({GPUS[gpu]} GB)"


def show(*, config: tuple[str, ...] = (), gpu: Gpu = "a100-80") -> None:
    """Print what a run will need, without running it: jobs, memory, disk, downloads, and what does not fit --gpu; --config is as for snakemake."""
    given = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in config)}
    print(*lines(load_run(given, WORKFLOW), gpu), sep="\n")
