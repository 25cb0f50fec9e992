"""Medusa heads against a draft: decoding in turns, and the time that an epoch takes.

Heads are a draft to everything here: the same training, serving, verification and counts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch

from draftlab.core.sampling import GREEDY, Sampling
from draftlab.core.verify.greedy import greedy
from draftlab.core.verify.rrs import rrs
from draftlab.core.verify.single import single
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.typical import typical
from draftlab.engine.generate import generate
from draftlab.engine.speculate import BlockTrace, speculate
from draftlab.models import LanguageModel
from draftlab.models.clock import clock_of
from draftlab.models.medusa import Medusa
from draftlab.progress import progress
from draftlab.train import training
from draftlab.train.offline import trace_counts
from draftlab.train.online import learn, whole_answers
from draftlab.train.settings import Serving
from draftlab.train.traffic import Traffic

SAMPLED = Sampling(1.0)
MEDUSA_VERIFIERS: dict[str, TokenVerifier] = {"single": single, "rrs": rrs, "greedy": greedy, "typical": typical}
"""How drafts and trees are verified here; only typical acceptance is not lossless."""


def epoch_seconds(
    models: dict[str, LanguageModel], stream: Traffic, settings: Serving, updates: int
) -> dict[str, float]:
    """Seconds to learn once from every answer of the stream: the mean over ``updates`` updates of copies that take turns, after one warm-up update."""
    learners = {name: copy.deepcopy(model) for name, model in models.items()}
    optimizers = {name: training.adamw(learner, settings.learning_rate) for name, learner in learners.items()}
    clock, spent = clock_of(settings.device), dict.fromkeys(models, 0.0)
    for update in range(-1, updates):
        lessons = whole_answers(stream, update * settings.batch, settings.batch)
        for name, learner in learners.items():
            begin = clock()
            learn(learner, optimizers[name], lessons, settings)
            spent[name] += (clock() - begin) * (update >= 0)
    return {name: taken / updates * len(stream) / settings.batch for name, taken in spent.items()}


@dataclass(frozen=True)
class Strategy:
    """A way to decode; without a model it is plain decoding."""

    name: str
    model: LanguageModel | None
    sampling: Sampling
    verifier: str = "single"

    def decode(self, target: LanguageModel, prompts: Sequence[Sequence[int]], **options: Any) -> list[BlockTrace]:
        """Decode requests one after the other; plain decoding is a block per token."""
        draft_len = options.pop("draft_len")
        options |= {"sampling": self.sampling, "batch": 1}
        if self.model is None:
            answers = generate(target, prompts, **options)
            return [BlockTrace.plain(answer) for answer in answers]
        model, shape = self.model, {"draft_len": draft_len}
        if isinstance(model, Medusa):
            model, shape = model.on(target), {"draft_len": model.tree.depth, "num_drafts": model.tree.leaves}
        return speculate(target, model, prompts, verifier=MEDUSA_VERIFIERS[self.verifier], **shape, **options).traces


def contenders(models: dict[str, LanguageModel], tree_verifiers: Sequence[str]) -> list[Strategy]:
    """Plain decoding and every model greedily; at temperature 1 the models that learnt, heads by every verifier of the tree."""
    with_plain: dict[str, LanguageModel | None] = {"plain": None, **models}
    unsampled = [Strategy(name, model, GREEDY) for name, model in with_plain.items()]
    sampled = [Strategy(name, with_plain[name], SAMPLED) for name in ("plain", "draft_osd")]
    heads = [Strategy("medusa_osd", models["medusa_osd"], SAMPLED, verifier) for verifier in tree_verifiers]
    return [*unsampled, *sampled, *heads]


def decode_in_turns(
    target: LanguageModel,
    every: Sequence[Strategy],
    blocks: Sequence[Sequence[Sequence[int]]],
    clock: Callable[[], float],
    seed: int,
    **options: Any,
) -> Iterator[pd.DataFrame]:
    """Decode each of ``blocks`` of prompts by all contenders in a shuffled order; a row of counts and seconds for each.

    Sampled texts differ in length: ``plain_seconds`` are those of plain decoding for as many tokens.
    """
    rng = np.random.default_rng(seed)
    for block, prompts in enumerate(progress(blocks, "groups of requests")):
        decoded = {}
        for number in rng.permutation(len(every)).tolist():
            begin = clock()
            generator = torch.Generator(target.device).manual_seed(seed * 1_000_003 + block)
            traces = every[number].decode(target, prompts, generator=generator, **options)
            decoded[number] = traces, clock() - begin
        plain = {each.sampling: decoded[number] for number, each in enumerate(every) if each.model is None}
        for number, contender in enumerate(every):
            (traces, seconds), (plain_traces, plain_seconds) = decoded[number], plain[contender.sampling]
            pairs = zip(traces, plain_traces, strict=True)
            same = sum(trace.answer_ids == of_plain.answer_ids for trace, of_plain in pairs)
            sums = trace_counts(traces).drop(columns="request_id").sum().to_frame().T
            plain_tokens = sum(len(of_plain.answer_ids) for of_plain in plain_traces)
            yield sums.assign(
                block=block,
                requests=len(prompts),
                contender=contender.name,
                verifier=contender.verifier,
                is_lossless=int(MEDUSA_VERIFIERS[contender.verifier].is_lossless),
                temperature=contender.sampling.temperature,
                seconds=seconds,
                plain_seconds=plain_seconds * (sums["emitted"] / plain_tokens),
                same_text=same,
            )
