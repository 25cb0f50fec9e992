"""The jobs of a run that take a model, and their memory: on their device, on the machine, on the disk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.engine.settings import WHOLE_VOCAB, Recipe
from draftlab.files.packages import PREFIX
from draftlab.latency.settings import Engine
from draftlab.latency.sizes import BYTES, Model, Sizes, known_models, read_model
from draftlab.plan.memory import beside, decoding, host, recorded, training
from draftlab.plan.run import Run
from draftlab.plan.scale import MAIN, Pair
from draftlab.stages import STAGES
from draftlab.train.settings import Offline, Serving, Training

RECORDED = ("teacher", "none")
"""Sources of samples for which the target does not run again."""
OTHERWISE = 2000
"""Megabytes that a job requests at least, and where nothing is known of its models."""
SHARD = 10**10
"""Bytes of the largest file in which the hub has a model: one is read at a time."""


@dataclass(frozen=True)
class Job:
    """One job: its rule, what it makes, and bytes: the most that it takes on its device (None: not modelled), what it requests of the machine's
    own memory, and what it leaves on the disk."""

    rule: str
    pair: str
    name: str
    peak: int | None = None
    host: int | None = None
    disk: int = 0


def model_of(pair: Pair, role: str) -> Model | None:
    """A model of a pair: one that lies here, one of the table, or as its recipe makes it; None for another."""
    recipe = pair.models[role]
    if recipe.model:
        path = Path(recipe.model)
        return read_model(path) if path.exists() else known_models().get(recipe.model.partition("@")[0])
    if recipe.design == "scratch":
        return Model(sizes=_made(recipe, recipe.vocabulary))
    target = model_of(pair, "target")
    if target is None:
        return None
    pruned = target.sizes.model_copy(update={"layers": recipe.layers})
    return Model(sizes=pruned if recipe.design == "pruned" else _made(recipe, target.sizes.vocab))


def _made(recipe: Recipe, vocab: int) -> Sizes:
    fields = recipe.model_dump(include={"hidden", "ffn", "layers", "context", "heads"})
    return Sizes(kind=recipe.family, kv_heads=recipe.heads, vocab=vocab, tied=True, **fields)


def jobs(run: Run) -> Iterator[Job]:
    """Every job that takes a model, and every cell."""
    made: set[str] = set()
    for name in run.experiments:
        for cell in run.cells(name):
            yield _cell(run, name, cell)
            made |= set(run.reads(name, cell))
    for path in sorted(made):
        pair, kind, *rest = (*Path(path).relative_to(run.folder).parts, "")
        if kind == "models":
            yield _model(run, pair, rest[0])
        elif kind == "answers":
            yield _answer(run, pair, rest[0])
        elif kind == "pairs":
            yield _pairs(run, pair, rest[0])


def requested_mb(run: Run, rule: str, wildcards: Mapping[str, str]) -> int:
    """The megabytes that a job requests of a scheduler: ``memory_mb`` of the job of a ``rule`` with these ``wildcards``."""
    pair = wildcards.get("pair", MAIN)
    if rule in STAGES:
        job = _cell(run, wildcards["experiment"], wildcards["cell"])
    elif rule in ("target", "draft"):
        job = _model(run, pair, wildcards.get("draft", "target"))
    elif rule == "answer":
        job = _answer(run, pair, "{dataset}.{split}{temperature}".format(**wildcards))
    elif rule == "pairs":
        job = _pairs(run, pair, wildcards["dataset"])
    else:
        job = Job(rule, pair, "")
    return memory_mb(run, job)


def memory_mb(run: Run, job: Job) -> int:
    """What a job requests: the scale's number where it gives one, else what the job should take with some to spare, in multiples of 500 MB."""
    named = run.settings.asked(job.rule, job.pair).mem_mb
    return max(OTHERWISE, math.ceil((job.host or 0) / 5e8) * 500) if named is None else named


def has_gpu(run: Run, rule: str) -> bool:
    """Whether the jobs of a rule run on a GPU."""
    return run.settings.asked(rule).gpu > 0


def _model(run: Run, pair: str, role: str) -> Job:
    """A model is read from the hub, made of one that exists, or trained with texts as long as its context."""
    rule, settings = "target" if role == "target" else "draft", run.settings.pairs[pair]
    recipe, model = settings.models[role], model_of(settings, role)
    if model is None:
        return Job(rule, pair, role)
    sizes, disk = model.sizes, model.sizes.parameters * (model.stored or 4)
    if recipe.model:
        here = disk if Path(recipe.model).exists() or recipe.model.startswith(PREFIX) else min(disk, SHARD)
        return Job(rule, pair, role, host=host(here, 0, 0, 0), disk=disk)
    longest = recipe.context
    work = training(sizes, recipe.batch, longest, longest, 0, head=recipe.head)
    whole = model_of(settings, "target") if recipe.design != "scratch" else None
    return Job(rule, pair, role, host=host(whole.sizes.parameters * 4 if whole else 0, 0, 0, work), disk=disk)


def rows_of(pair: Pair, context: int) -> int:
    """Requests that are answered together."""
    return max(1, min(pair.answers.batch, pair.answers.batch_tokens // context))


def _answer(run: Run, pair: str, name: str) -> Job:
    settings = run.settings.pairs[pair]
    disk, peak = _pass(run, pair, name), _decoding(settings, ["target"])
    work = 0 if has_gpu(run, "answer") else peak or 0
    taken = None if peak is None else host(_weights(settings, "target"), disk, 0, work)
    return Job("answer", pair, name, peak, taken, disk)


def _pairs(run: Run, pair: str, name: str) -> Job:
    settings = run.settings.pairs[pair]
    peak, disk = _decoding(settings, ["target", "draft"]), _logits(run, pair)
    work = 0 if has_gpu(run, "pairs") else peak or 0
    weights = _weights(settings, "target") + _weights(settings, "draft")
    return Job("pairs", pair, name, peak, None if peak is None else host(weights, 0, disk, work), disk)


def _weights(pair: Pair, role: str) -> int:
    """Bytes of a model's weights as it is opened."""
    model = model_of(pair, role)
    wide = role != "target" or pair.answers.device == "cpu"
    return model.sizes.parameters * (4 if wide else BYTES[pair.answers.dtype]) if model else 0


def _pass(run: Run, pair: str, name: str) -> int:
    """Bytes of the target's recorded answers to one split of a dataset, if every answer is as long as it may be."""
    settings, (dataset, split) = run.settings, name.split(".")[:2]
    target, how = model_of(settings.pairs[pair], "target"), settings.pairs[pair].answers
    count = settings.data.eval if split == "eval" else settings.data.train_requests(dataset)
    return recorded(count, how.max_new_tokens, target.sizes.vocab if target else WHOLE_VOCAB + 1, how.keep)


def _logits(run: Run, pair: str) -> int:
    """Bytes of recorded logits of target and draft, in float32."""
    target = model_of(run.settings.pairs[pair], "target")
    return run.settings.data.pairs * target.sizes.vocab * 8 if target else 0


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
    others = sum(other.sizes.parameters * BYTES[how.dtype] for other in models[1:] if other)
    rows = rows_of(pair, context)
    return others + decoding(first.sizes, how.dtype, rows, context - how.max_new_tokens, how.max_new_tokens)


def _cell(run: Run, name: str, cell: str) -> Job:
    """The memory of a cell, that of its largest variant; every prompt is assumed to fill the draft's context."""
    every = [own.settings for own in run.cells(name)[cell]]
    own = max(every, key=lambda one: _peak(run, one) or 0)
    pair, stage = run.pair_of(name, cell), run.known[name].stage
    draft = model_of(run.settings.pairs[pair], own.draft) if isinstance(own, Training) else None
    disk = draft.sizes.parameters * (16 if isinstance(own, Offline | Serving) else 0) if draft else 0
    peak = _peak(run, own)
    return Job(stage, pair, f"{name}/{cell}", peak, _held(run, name, cell, stage, peak or 0), disk)


def _held(run: Run, name: str, cell: str, stage: str, peak: int) -> int:
    """What a cell requests of the machine's own memory, by the files that it reads."""
    weights = passes = logits = 0
    parts = {Path(path).relative_to(run.folder).parts[:3] for path in run.reads(name, cell)}
    for pair, kind, file in (own for own in parts if len(own) == 3 and own[0] in run.settings.pairs):
        if kind == "models" and file in run.settings.pairs[pair].models:
            weights += _weights(run.settings.pairs[pair], file)
        elif kind == "answers":
            passes += _pass(run, pair, file)
        elif kind == "pairs" and file.endswith(".safetensors"):
            logits += _logits(run, pair)
    return host(weights, passes, logits, 0 if has_gpu(run, stage) else peak)


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
