"""The cost of serving with a draft and of updating it, in measured seconds and in bytes."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64

from draftlab.core import theory
from draftlab.models import LanguageModel
from draftlab.models.clock import clock_of
from draftlab.train import training
from draftlab.train.online import learn, replay_server, whole_answers
from draftlab.train.settings import BreakEven
from draftlab.train.traffic import Traffic

STEPS = 8
"""Steps in one timing: a single step is too short for the clock."""

LARGER = "update larger"
"""The price of an update of the larger draft, which is distilled beforehand."""

Prices = dict[str, Float64[np.ndarray, " measurements"]]
"""Measured seconds by name: a step of the ``draft`` or ``larger`` draft, reading a block (``target``), and each kind of update."""


def affordable(every: Traffic, after: int, tokens: float) -> list[int]:
    """The requests after the first ``after`` that together hold this many tokens."""
    records = every.answers.answers[after:]
    read = np.cumsum([len(record.prompt_ids) + len(record.answer_ids) for record in records])
    return list(range(after, after + min(len(records), 1 + int((read < tokens).sum()))))


def priced(
    rows: pd.DataFrame,
    sizes: Mapping[str, theory.ModelSize],
    prices: Prices,
    settings: BreakEven,
    name: str,
    *,
    update: str = "",
    share: float = 0.0,
) -> pd.DataFrame:
    """Add the seconds and bytes of serving each request with the draft ``name``, and of its ``share`` of an ``update``.

    Request r has the prices of measurement r modulo their number, so that an interval over requests includes their noise.
    """
    at = rows["stream_index"].to_numpy() % len(prices["target"])
    block = settings.draft_len * prices[name][at] + prices["target"][at]
    terms = theory.traffic_terms(
        sizes["target"],
        sizes[name],
        tokens=1,
        context=settings.context,
        draft_len=settings.draft_len,
        block_length=1.0,
        updates_per_request=share,
        train_gb=sizes[name].weights,
    )
    updates = terms.pop("update_gb")
    return rows.assign(
        serve_seconds=rows["blocks"] * block,
        serve_gb=rows["blocks"] * sum(terms.values()),
        update_seconds=share * prices[update][at] if update else 0.0,
        update_gb=updates,
    )


def measure(
    target: LanguageModel, draft: LanguageModel, larger: LanguageModel, stream: Traffic, settings: BreakEven
) -> Prices:
    """Time every step and update in turn; the first measurement of each is left out, and copies of the drafts are updated.

    An update of the small draft learns from the positions that serving leaves it, one of the larger draft from whole answers.
    """
    clock, rng = clock_of(settings.device), np.random.default_rng(settings.seed)
    prices: dict[str, list[float]] = {}
    prompt = [3] * settings.context
    widths = {"draft": 1, "larger": 1, "target": settings.draft_len + 1}
    with torch.inference_mode():
        caches = {
            name: model.decoder().prefill([prompt], widths[name] * STEPS)[0]
            for name, model in (("draft", draft), ("larger", larger), ("target", target))
        }
    updates = {f"update {i}": (draft, i) for i in settings.intervals} | {LARGER: (larger, settings.batch)}
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
            if name != LARGER:
                requests = [lesson.request for lesson in lessons]
                _, lessons = replay_server(learners[name], stream, requests, settings, rng)
            begin = clock()
            learn(learners[name], optimizers[name], lessons, settings)
            seconds[name] = clock() - begin
        if number >= 0:
            for name, taken in seconds.items():
                prices.setdefault(name, []).append(taken)
    return {name: np.array(taken) for name, taken in prices.items()}
