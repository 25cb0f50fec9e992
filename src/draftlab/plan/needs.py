"""The jobs of a run that use a model, and the bytes that each takes on its device, on the machine, and on the disk."""

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
from draftlab.plan.memory import beside, comparing, decoding, heads, host, recorded, speculating, states_of, training
from draftlab.plan.run import Run
from draftlab.plan.scale import MAIN, Pair
from draftlab.stages import STAGES
from draftlab.stages._contenders import BEFORE, DISTILLED
from draftlab.stages._decoding import Decoding
from draftlab.stages._schemes import is_counted
from draftlab.stages.blocks import Settings as Blocks
from draftlab.stages.latency_branches import Settings as Branches
from draftlab.stages.latency_cost import Settings as Costs
from draftlab.stages.latency_null import Settings as Null
from draftlab.stages.latency_requests import Settings as Requests
from draftlab.stages.latency_update import Settings as UpdateCost
from draftlab.stages.live import Contest
from draftlab.stages.medusa import Settings as Medusa
from draftlab.stages.online import Settings as Online
from draftlab.stages.online_multidraft import Settings as Specialists
from draftlab.train.settings import BreakEven, Offline, Serving, TimedUpdates, Training, Updates

RECORDED = ("teacher", "none")
"""Sources of samples for which the target does not run again."""
LEAST_MB = 2000
"""The fewest megabytes that a job requests, also where nothing is known of its models."""
SHARD = 10**10
"""Bytes of the largest file of a model on the hub: one is read at a time."""


@dataclass(frozen=True)
class Job:
    """One job: its rule, the name of its result, and bytes: the peak on its device (None: not modelled), the request for host memory, and
    the size of its results on disk."""

    rule: str
    pair: str
    name: str
    peak: int | None = None
    host: int | None = None
    disk: int = 0


def model_of(pair: Pair, role: str) -> Model | None:
    """The sizes of a model of a pair, from its files, from the table of known models, or from its recipe; None if unknown."""
    recipe = pair.models[role]
    if recipe.model:
        path = Path(recipe.model)
        return read_model(path) if path.exists() else known_models().get(recipe.model.partition("@")[0])
    if recipe.design == "scratch":
        return Model(sizes=_sizes_of(recipe, recipe.vocabulary))
    target = model_of(pair, "target")
    if target is None:
        return None
    if recipe.design == "pruned":
        return Model(sizes=target.sizes.model_copy(update={"layers": recipe.layers}))
    return Model(sizes=_sizes_of(recipe, target.sizes.vocab))


def _sizes_of(recipe: Recipe, vocab: int) -> Sizes:
    fields = recipe.model_dump(include={"hidden", "ffn", "layers", "context", "heads"})
    return Sizes(kind=recipe.family, kv_heads=recipe.heads, vocab=vocab, tied=True, **fields)


def jobs(run: Run) -> Iterator[Job]:
    """Every job that uses a model, a classifier of requests too, and every cell."""
    files: set[tuple[str, ...]] = set()
    for name in run.experiments:
        for cell in run.cells(name):
            yield _cell(run, name, cell)
            files |= run.made_files(name, cell)
    job_of = {"models": _model, "answers": _answer, "pairs": _pairs}
    for parts in sorted(files):
        pair, kind, name = (*parts, "", "")[:3]
        if kind in job_of:
            yield job_of[kind](run, pair, name)
        elif pair == "data" and len(parts) == 4:  # data/DATASET/LABEL/FILE
            yield Job("label", MAIN, ".".join(parts[1:]))


def requested_mb(run: Run, rule: str, wildcards: Mapping[str, str]) -> int:
    """The megabytes that the job of a ``rule`` with these ``wildcards`` requests of a scheduler."""
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
    """The megabytes that a job requests: the scale's number where it gives one, else the estimate, in multiples of 500 MB."""
    given = run.settings.asked(job.rule, job.pair).mem_mb
    return max(LEAST_MB, math.ceil((job.host or 0) / 5e8) * 500) if given is None else given


def has_gpu(run: Run, rule: str, pair: str) -> bool:
    """Whether the jobs of a rule for this pair run on a GPU."""
    return run.settings.asked(rule, pair).gpu > 0


def _model(run: Run, pair: str, role: str) -> Job:
    """The job that reads a model from the hub, derives it from another one, or trains it on texts as long as its context."""
    rule, settings = "target" if role == "target" else "draft", run.settings.pairs[pair]
    recipe, model = settings.models[role], model_of(settings, role)
    if model is None:
        disk = _stored(recipe.model)
        return Job(rule, pair, role, host=host(disk) if disk else None, disk=disk)
    sizes, disk = model.sizes, model.sizes.parameters * (model.stored or 4)
    if recipe.model:
        is_local = Path(recipe.model).exists() or recipe.model.startswith(PREFIX)
        return Job(rule, pair, role, host=host(disk if is_local else min(disk, SHARD)), disk=disk)
    work = training(sizes, recipe.batch, recipe.context, recipe.context, 0, head=recipe.head)
    base = model_of(settings, "target") if recipe.design != "scratch" else None
    return Job(rule, pair, role, host=host(base.sizes.parameters * 4 if base else 0, work=work), disk=disk)


def rows_of(pair: Pair, context: int) -> int:
    """The number of requests that are answered together."""
    return max(1, min(pair.answers.batch, pair.answers.batch_tokens // context))


def _answer(run: Run, pair: str, name: str) -> Job:
    return _recording(run, "answer", pair, name, ["target"], passes=_pass(run, pair, name))


def _pairs(run: Run, pair: str, name: str) -> Job:
    return _recording(run, "pairs", pair, name, ["target", "draft"], logits=_logits(run, pair))


def _recording(run: Run, rule: str, pair: str, name: str, roles: list[str], passes: int = 0, logits: int = 0) -> Job:
    """The job that records what the models of these ``roles`` give: so many bytes of answers, or of logits."""
    settings = run.settings.pairs[pair]
    peak, weights = _decoding(settings, roles), sum(_weights(settings, role) for role in roles)
    work = 0 if has_gpu(run, rule, pair) else peak or 0
    memory = host(weights, passes, logits, work) if weights else None
    return Job(rule, pair, name, peak, memory, passes + logits)


def _weights(pair: Pair, role: str) -> int:
    """Bytes of a model's weights in memory; of a folder whose sizes are not known, as if its files held two for each weight."""
    model, given = model_of(pair, role), pair.models[role].model
    is_float32 = role != "target" or pair.answers.device == "cpu"
    each = 4 if is_float32 else BYTES[pair.answers.dtype]
    return model.sizes.parameters * each if model else _stored(given) * each // 2


def _stored(model: str | None) -> int:
    """Bytes of the weights in a model's folder; 0 for one on the hub."""
    return sum(file.stat().st_size for file in Path(model).glob("*.safetensors")) if model else 0


def _pass(run: Run, pair: str, name: str) -> int:
    """Bytes of the target's recorded answers to one split of a dataset, if every answer has the greatest length."""
    settings, (dataset, split) = run.settings, name.split(".")[:2]
    target, answers = model_of(settings.pairs[pair], "target"), settings.pairs[pair].answers
    count = settings.data.eval if split == "eval" else settings.data.train_requests(dataset)
    vocab, keep = target.sizes.vocab if target else WHOLE_VOCAB + 1, max(answers.keep, answers.top_k)
    return recorded(count, answers.max_new_tokens, vocab, keep)


def _logits(run: Run, pair: str) -> int:
    """Bytes of recorded logits of target and draft, in float32."""
    target = model_of(run.settings.pairs[pair], "target")
    return run.settings.data.pairs * target.sizes.vocab * 8 if target else 0


def _context(pair: Pair, model: Sizes) -> int:
    """The number of tokens of the longest request."""
    return model.context if model.kind == "t5" else min(model.context, pair.target.context)


def _decoding(pair: Pair, roles: list[str]) -> int | None:
    """Peak of decoding a full batch of the longest requests with the first model of ``roles``, while the others are loaded."""
    models = [model_of(pair, role) for role in roles]
    first, dtype, new = models[0], pair.answers.dtype, pair.answers.max_new_tokens
    if first is None or None in models:
        return None
    context = _context(pair, first.sizes)
    others = sum(other.sizes.parameters * BYTES[dtype] for other in models[1:] if other)
    return others + decoding(first.sizes, dtype, rows_of(pair, context), context - new, new, pair.answers.device)


def _cell(run: Run, name: str, cell: str) -> Job:
    """The job of a cell, sized by its largest variant; every prompt is assumed to fill the draft's context."""
    variants = [variant.settings for variant in run.cells(name)[cell]]
    largest = max(variants, key=lambda settings: _peak(run, settings) or 0)
    pair, stage, peak = run.pair_of(name, cell), run.at_scale[name].stage, _peak(run, largest)
    saves = isinstance(largest, Offline | Updates)
    draft = model_of(run.settings.pairs[pair], largest.draft) if saves else None
    disk = 16 * draft.sizes.parameters if draft else 0
    return Job(stage, pair, f"{name}/{cell}", peak, _host(run, name, cell, stage, peak or 0), disk)


def _host(run: Run, name: str, cell: str, stage: str, peak: int) -> int:
    """The host memory that a cell requests, by the files that it reads; each process of a training reads all of them."""
    weights = passes = logits = 0
    parts = {path[:3] for path in run.made_files(name, cell)}
    for pair, kind, file in (path for path in parts if len(path) == 3 and path[0] in run.settings.pairs):
        if kind == "models" and file in run.settings.pairs[pair].models:
            weights += _weights(run.settings.pairs[pair], file)
        elif kind == "answers":
            passes += _pass(run, pair, file)
        elif kind == "pairs" and file.endswith(".safetensors"):
            logits += _logits(run, pair)
    processes = run.settings.compute.processes if STAGES[stage].launch else 1
    return processes * host(weights, passes, logits, 0 if has_gpu(run, stage, run.pair_of(name, cell)) else peak)


def _peak(run: Run, settings: Any) -> int | None:
    """The bytes that a variant takes on its device; None where that is not modelled."""
    if isinstance(settings, Engine):
        return _engine(run, settings)
    if isinstance(settings, Decoding):
        return _drafted(run.settings.pairs[settings.pair], settings)
    if isinstance(settings, Specialists):
        return _specialists(run.settings.pairs[settings.pair], settings)
    if not isinstance(settings, Training):
        return None
    if isinstance(settings, Offline):  # each process has its share of a batch
        share = math.ceil(settings.batch / run.settings.compute.processes)
        settings = settings.model_copy(update={"batch": share})
    pair = run.settings.pairs[settings.pair]
    draft = model_of(pair, settings.draft)
    if draft is None:
        return None
    if isinstance(settings, TimedUpdates):
        return _timed(pair, settings, draft.sizes, pair.answers.max_new_tokens)
    return _learning(pair, settings, draft)


def _learning(pair: Pair, settings: Training, model: Model) -> int | None:
    """The peak of a draft that learns, perhaps beside its target."""
    draft, target, length = model.sizes, model_of(pair, "target"), _context(pair, model.sizes)
    dtype, answer, rows, places = pair.answers.dtype, pair.answers.max_new_tokens, settings.batch, 1
    reads_target = model.is_head or getattr(settings, "reads_target", False)
    if reads_target or getattr(settings, "parallel", model.parallel):  # it learns once for each token of a block
        places = max([settings.draft_len, *getattr(settings, "draft_lens", [])])
    if isinstance(settings, Serving):
        at_once, before = settings.update_interval + settings.replay, _batch_before(settings)
        update = max(
            _updating(draft, at_once, length, answer, settings, places),
            _distilling(draft, before, length, answer, settings, places),
        )
        rows = max(at_once, before)
    else:
        update = _distilling(draft, rows, length, answer, settings, places)
    is_recorded = not isinstance(settings, Offline) or settings.sample_source in RECORDED
    is_beside = isinstance(settings, Offline | Online) and (settings.live or not is_recorded)
    if target is None:
        return None if reads_target or is_beside else update
    if reads_target:
        update += states_of(target.sizes, dtype, min(settings.micro_batch or rows, rows) * length)
    if not isinstance(settings, Offline | Online) or not is_beside:
        return update
    prompt = _context(pair, target.sizes) - answer
    rows = settings.sample_batch if isinstance(settings, Offline) else settings.update_interval
    return beside(target.sizes, dtype, draft, update, rows, prompt, answer, settings.device)


def _batch_before(settings: Serving) -> int:
    """The requests of an update of the draft that is distilled besides the one that learns while it serves; 0 if there is none."""
    if not isinstance(settings, Online):
        return settings.batch
    if settings.warm_on == "nothing":
        return 0
    return settings.update_interval if settings.warm_fair else settings.batch


def _distilling(draft: Sizes, batch: int, length: int, answer: int, settings: Training, places: int = 1) -> int:
    """The peak of an update on ``batch`` recorded answers."""
    rows = min(settings.micro_batch or batch, batch)
    return training(draft, rows, length, answer, batch, settings.autocast, places=places)


def _updating(draft: Sizes, requests: int, length: int, answer: int, settings: Updates, places: int = 1) -> int:
    """The peak of an update on ``requests`` that were served."""
    rows = min(settings.micro_batch or requests, requests)
    return training(draft, rows, length, answer, rows, settings.autocast, in_parts=rows < requests, places=places)


def _drafted(pair: Pair, settings: Decoding) -> int | None:
    """The peak of target and draft that decode with several drafted sequences, or are compared along the target's texts."""
    target, draft = model_of(pair, "target"), model_of(pair, "draft")
    if target is None or draft is None:
        return None
    dtype, device, new = pair.answers.dtype, pair.answers.device, settings.max_new_tokens
    rows, prompt, nucleus = settings.batch, _context(pair, target.sizes) - new, settings.top_p < 1
    peaks = []
    if not isinstance(settings, Contest) or isinstance(settings, Blocks):
        branching = not isinstance(settings, Contest)
        peaks.append(comparing(target.sizes, dtype, rows, prompt, new, nucleus, device, branching))
    if isinstance(settings, Contest):
        live = rows
        if isinstance(settings, Blocks) and all(map(is_counted, settings.schemes)):
            live = min(settings.timed, rows)
        sizes = (target.sizes, draft.sizes, (dtype, dtype), live, prompt, new, max(settings.num_drafts))
        peaks.append(speculating(*sizes, settings.draft_len, nucleus, device))
    return draft.sizes.parameters * BYTES[dtype] + max(peaks)


def _specialists(pair: Pair, settings: Specialists) -> int | None:
    """The peak of a target beside drafts that learn one after the other, and then draft together: one per topic, a shared one, and the original.

    Those that have learnt keep the gradients of their last update.
    """
    target, draft = model_of(pair, "target"), model_of(pair, "draft")
    if target is None or draft is None:
        return None
    drafts, new = len(settings.topics), settings.max_new_tokens
    prompt, dtypes = _context(pair, target.sizes) - new, (pair.answers.dtype, "float32")
    rows, count = settings.batch or settings.requests, settings.update_interval
    update = training(draft.sizes, count, _context(pair, draft.sizes), pair.answers.max_new_tokens, count)
    learning = target.sizes.parameters * BYTES[dtypes[0]] + update
    sizes = (target.sizes, draft.sizes, dtypes, rows, prompt, new, drafts, settings.draft_len)
    together = speculating(*sizes, False, settings.device) + (8 + 4) * draft.sizes.parameters
    return 8 * drafts * draft.sizes.parameters + max(learning, together)


def _timed(pair: Pair, settings: TimedUpdates, draft: Sizes, answer: int) -> int | None:
    """The peak of learning that is timed beside the target: of Medusa heads, or of drafts for several intervals and of a larger draft."""
    target = model_of(pair, "target")
    if target is None:
        return None
    dtype, length = pair.answers.dtype, _context(pair, target.sizes)
    if isinstance(settings, Medusa):
        requests = max(settings.batch, settings.update_interval + settings.replay)
        rows = min(settings.micro_batch or requests, requests)
        return heads(target.sizes, dtype, draft, len(settings.widths), rows, length, answer)
    if not isinstance(settings, BreakEven) or (larger := model_of(pair, settings.larger)) is None:
        return None
    learners = 16 * draft.parameters * len(settings.intervals) + 4 * (draft.parameters + larger.sizes.parameters)
    updates = [_updating(draft, max(settings.intervals), length, answer, settings)]
    updates.append(_updating(larger.sizes, settings.batch, length, answer, settings))
    return target.sizes.parameters * BYTES[dtype] + learners + max(updates)


def _engine(run: Run, settings: Engine) -> int | None:
    """The memory of a target and its drafts: weights in their type, and the cache of the longest request, or of each request of the largest call.

    llama.cpp's cache is in float16 on a GPU, torch's in the type of the weights; on a CPU both are in float32. A draft whose updates are timed
    also learns.
    """
    if run.settings.by_architecture or settings.weights not in ("f16", "bf16", "f32"):
        return None
    pair = run.settings.pairs[settings.pair]
    models = [model_of(pair, role) for role in ("target", *_drafts_of(settings))]
    if None in models:
        return None
    target, *drafts = (model.sizes for model in models if model)
    size = 4 if settings.weights == "f32" else 2
    entry = 4 if not settings.gpu_layers and settings.device == "cpu" else 2 if settings.gpu_layers else size
    total = 0
    for sizes in (_inflated(target, settings), *drafts):
        tokens = _context(pair, sizes)
        if isinstance(settings, Costs):
            tokens = max(settings.batch) * (max(settings.context) + max(settings.verified))
        total += sizes.parameters * size + tokens * sizes.entry * entry
    if isinstance(settings, UpdateCost):  # the draft's weights become float32
        (draft,), length = drafts, settings.prompt + settings.generated
        total += training(draft, settings.update_interval, length, settings.generated, 0) - draft.parameters * size
    return total


def _drafts_of(settings: Engine) -> list[str]:
    """The drafts that a measurement opens; one that was distilled is as large as the pair's draft."""
    if isinstance(settings, Requests):
        return ["draft" if name in (BEFORE, DISTILLED) else name for name in settings.contenders]
    return [] if isinstance(settings, Branches | Null) else [getattr(settings, "role", "draft")]


def _inflated(target: Sizes, settings: Engine) -> Sizes:
    """The sizes of a target that is padded (``latency.inflate``)."""
    larger = {
        "layers": max(settings.inflated_layers, target.layers),
        "ffn": max(settings.inflated_ffn, target.ffn),
        "hidden": settings.inflated_widths * target.hidden,
        "head_dim": target.head_dim or target.hidden // target.heads,
    }
    return target.model_copy(update=larger)
