"""What updates of a draft cost against what they save: seconds and bytes, by update interval, and against a larger static draft."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64

from draftlab.core import theory
from draftlab.engine.replay import agree_along, walk
from draftlab.errors import UserError
from draftlab.models import LanguageModel
from draftlab.models.weights import moved
from draftlab.train import training
from draftlab.train.jobs import Folders
from draftlab.train.learning import train
from draftlab.train.offline import counts
from draftlab.train.online import learn, serve
from draftlab.train.sources import Scene
from draftlab.train.timed import clock_of, dear_target, whole_answers
from draftlab.train.traffic import Traffic, whole

if TYPE_CHECKING:
    from draftlab.stages._inputs import Distillation
    from draftlab.stages._stage import Bench
    from draftlab.stages.break_even import Settings as BreakEven

STEPS = 8
"""Steps in a row of one timing: a single one is too short for the clock."""

Prices = dict[str, Float64[np.ndarray, " measurements"]]
"""Seconds of a step of ``draft`` and ``larger``, of verifying a block (``target``), of an update of ``larger`` and of one at each interval."""


def break_even(settings: BreakEven, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows: ``seed, contender`` (static, online, larger), ``update_interval`` (0: none), ``record, request, emitted, blocks``; of the record
    ``serve_seconds, serve_gb`` and its share of the training, ``update_seconds, update_gb``; ``static_seconds, static_gb`` of the draft as it was.
    Record r has the prices of measurement r modulo their number, so an interval over requests holds their noise too."""
    return _compared(settings, Folders.of(inputs, bench)).assign(seed=settings.seed), {}


def _compared(settings: BreakEven, folders: Folders) -> pd.DataFrame:
    recorded = folders.recorded(settings.dataset, "train", 0.0)
    if len(recorded.answers) < 2 * settings.requests:
        what = f"{len(recorded.answers)} answers, {settings.requests} to serve and as many to distil on"
        raise UserError(what, remedy="lower requests, or raise data.train of the scale")
    every = whole(recorded, settings.dataset).reordered(settings.seed)
    stream, target = every.take(range(settings.requests)), dear_target(folders, settings)
    draft, larger = (
        folders.draft(settings.model_copy(update={"draft": name})) for name in (settings.draft, settings.larger)
    )
    prices = measure(target, draft, larger, stream, settings)
    names = {"target": "target", "draft": settings.draft, "larger": settings.larger}
    size = {role: moved(folders.models / name) for role, name in names.items()}

    def priced(rows: pd.DataFrame, name: str, update: str = "", share: float = 0.0) -> pd.DataFrame:
        """With seconds and bytes; ``share``: updates per request."""
        at = rows["record"].to_numpy() % settings.measurements
        block = settings.draft_len * prices[name][at] + prices["target"][at]
        terms = theory.traffic_terms(
            size["target"],
            size[name],
            tokens=1,
            context=settings.context,
            draft_len=settings.draft_len,
            block_length=1.0,
            updates_per_request=share,
            train_gb=size[name].weights,
        )
        updates = terms.pop("update_gb")
        seconds = share * prices[update][at] if update else 0.0
        return rows.assign(serve_seconds=rows["blocks"] * block, serve_gb=rows["blocks"] * sum(terms.values())).assign(
            update_seconds=seconds, update_gb=updates
        )

    static = priced(_served(draft, stream, settings), "draft")
    runs = {("static", 0): static}
    read = 0
    for interval in settings.intervals:
        learner = copy.deepcopy(draft)
        rows, effort = serve(learner, stream, settings.model_copy(update={"update_interval": interval}))
        read = max(read, effort.tokens)
        runs["online", interval] = priced(rows, "draft", f"update {interval}", 1 / interval)
    affordable = _affordable(every, read * size["draft"].weights / size["larger"].weights, settings)
    steps = math.ceil(len(affordable) / settings.batch)
    train(Scene(larger, None, every.answers, folders.max_new_tokens, ()), affordable, steps, settings)
    larger_rows = _served(larger, stream, settings)
    runs["larger", 0] = priced(larger_rows, "larger", "update larger", steps / len(stream))
    beside = {f"static_{unit}": static[f"serve_{unit}"].to_numpy() for unit in ("seconds", "gb")}
    return pd.concat(
        [rows.assign(contender=name, update_interval=interval, **beside) for (name, interval), rows in runs.items()],
        ignore_index=True,
    )


def _served(draft: LanguageModel, stream: Traffic, settings: BreakEven) -> pd.DataFrame:
    rows = counts(walk(agree_along(draft, stream.answers), settings.draft_len))
    return stream.numbered(rows, range(len(stream)))


def _affordable(every: Traffic, tokens: float, settings: BreakEven) -> list[int]:
    """The first requests after the stream that hold this many tokens."""
    records = every.answers.answers[settings.requests :]
    read = np.cumsum([len(record.prompt_ids) + len(record.answer_ids) for record in records])
    return list(range(settings.requests, settings.requests + 1 + int((read < tokens).sum())))[: len(records)]


def measure(
    target: LanguageModel,
    draft: LanguageModel,
    larger: LanguageModel,
    stream: Traffic,
    settings: BreakEven,
) -> Prices:
    """Interleaved timings of every step and update, the first of each left out; updates are those of copies."""
    clock = clock_of(settings.device)
    found: dict[str, list[float]] = {}
    prompt = [3] * settings.context
    widths = {"draft": 1, "larger": 1, "target": settings.draft_len + 1}
    with torch.inference_mode():
        caches = {
            name: model.prefill([prompt], widths[name] * STEPS)[0]
            for name, model in (("draft", draft), ("larger", larger), ("target", target))
        }
    updates = {f"update {i}": (draft, i) for i in settings.intervals} | {"update larger": (larger, settings.batch)}
    learners = {name: copy.deepcopy(model) for name, (model, _) in updates.items()}
    optimizers = {name: training.adamw(model, settings.learning_rate) for name, model in learners.items()}
    for number in range(-1, settings.measurements):
        seconds: dict[str, float] = {}
        for name, cache in caches.items():
            tokens = torch.full((1, widths[name]), 3, device=target.device)
            begin = clock()
            with torch.inference_mode():
                for _ in range(STEPS):
                    cache.extend(tokens)
                    cache.crop([settings.context - 1])
            seconds[name] = (clock() - begin) / STEPS
        for name, (_, size) in updates.items():
            lessons = whole_answers(stream, number * size, size)
            begin = clock()
            learn(learners[name], optimizers[name], lessons, settings)
            seconds[name] = clock() - begin
        if number >= 0:
            for name, taken in seconds.items():
                found.setdefault(name, []).append(taken)
    return {name: np.array(taken) for name, taken in found.items()}
