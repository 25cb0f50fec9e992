"""Medusa heads against a draft, each as it was and after it learnt from what it served (OSD, Table 4 and the answer on Medusa).

Heads are a draft to everything here: the same training, serving, verification and counts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from draftlab.core.sampling import Sampling
from draftlab.core.verify.greedy import greedy
from draftlab.core.verify.single import single
from draftlab.core.verify.specinfer import rrs
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.typical import typical
from draftlab.engine.generate import GREEDY, generate
from draftlab.engine.speculate import BlockTrace, speculate
from draftlab.models import LanguageModel
from draftlab.models.medusa import Medusa
from draftlab.models.tree import Tree
from draftlab.train import training
from draftlab.train.jobs import Folders
from draftlab.train.learning import train
from draftlab.train.offline import trace_counts
from draftlab.train.online import learn, serve
from draftlab.train.sources import Scene
from draftlab.train.timed import clock_of, dear_target, whole_answers
from draftlab.train.traffic import Traffic, join, whole

if TYPE_CHECKING:
    from draftlab.stages._inputs import Distillation
    from draftlab.stages._stage import Bench
    from draftlab.stages.medusa import Settings as MedusaSettings

SAMPLED = Sampling(1.0)
TREE_VERIFIERS: dict[str, TokenVerifier] = {"single": single, "rrs": rrs, "greedy": greedy, "typical": typical}
"""How drafts and trees are verified here; typical acceptance is the one that is not lossless."""


def medusa(settings: MedusaSettings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Rows: ``seed, contender`` (plain, draft, draft_osd, medusa, medusa_osd), ``verifier, is_lossless, temperature, block``
    (of ``at_once`` requests), counts, ``seconds`` and ``plain_seconds`` of the same requests, ``same_text``: requests that read as plainly
    decoded, of ``requests``; ``parameters`` beside the target, and
    ``epoch_seconds`` of learning from ``requests`` answers."""
    folders = Folders.of(inputs, bench)
    target = folders.target(settings.device)
    stream = whole(folders.recorded(settings.dataset, "train", 0.0), settings.dataset).reordered(settings.seed)
    stream = stream.take(range(min(settings.requests, len(stream))))
    models: dict[str, LanguageModel] = {
        "draft": folders.draft(settings),
        "medusa": warmed(Medusa(target, Tree(tuple(settings.widths))), folders, settings),
    }
    for name in list(models):
        models[f"{name}_osd"] = copy.deepcopy(models[name])
        serve(models[f"{name}_osd"], stream, _learning_rate(settings, name))
    seconds = epoch_seconds({name: models[name] for name in ("draft", "medusa")}, stream, settings)
    rows = pd.concat(decoded(models, folders, settings), ignore_index=True)
    kind = rows["contender"].str.removesuffix("_osd")
    sizes = {name: sum(weight.numel() for weight in models[name].parameters()) for name in seconds}
    rows = rows.assign(parameters=kind.map(sizes).fillna(0), epoch_seconds=kind.map(seconds).fillna(0.0))
    return rows.assign(seed=settings.seed), {"tree": settings.widths}


def _learning_rate(settings: MedusaSettings, name: str) -> MedusaSettings:
    rate = settings.heads_learning_rate if name == "medusa" else settings.learning_rate
    return settings.model_copy(update={"learning_rate": rate})


def warmed(heads: Medusa, folders: Folders, settings: MedusaSettings) -> Medusa:
    """Heads as they would be released: one epoch on the target's answers to other datasets."""
    passes = [folders.recorded(dataset, "train", 0.0) for dataset in settings.warm]
    places = [(n, p) for n, found in enumerate(passes) for p in range(min(settings.warm_requests, len(found.answers)))]
    scene = Scene(heads, None, join(passes, places), folders.max_new_tokens, ())
    train(scene, range(len(places)), math.ceil(len(places) / settings.batch), _learning_rate(settings, "medusa"))
    return heads


def epoch_seconds(models: dict[str, LanguageModel], stream: Traffic, settings: MedusaSettings) -> dict[str, float]:
    """Seconds to learn once from every answer of the stream: the mean of interleaved updates of copies, the first ones left out."""
    learners = {name: copy.deepcopy(model) for name, model in models.items()}
    optimizers = {name: training.adamw(learner, settings.learning_rate) for name, learner in learners.items()}
    clock, spent = clock_of(settings.device), dict.fromkeys(models, 0.0)
    for update in range(-1, settings.timed_updates):
        lessons = whole_answers(stream, update * settings.batch, settings.batch)
        for name, learner in learners.items():
            begin = clock()
            learn(learner, optimizers[name], lessons, settings)
            spent[name] += (clock() - begin) * (update >= 0)
    return {name: taken / settings.timed_updates * len(stream) / settings.batch for name, taken in spent.items()}


@dataclass(frozen=True)
class Contender:
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
        return speculate(target, model, prompts, verifier=TREE_VERIFIERS[self.verifier], **shape, **options).traces


def contenders(models: dict[str, LanguageModel], settings: MedusaSettings) -> list[Contender]:
    """Plain decoding and every model greedily; at temperature 1 the models that learnt, heads by every verifier of the tree."""
    with_plain: dict[str, LanguageModel | None] = {"plain": None, **models}
    unsampled = [Contender(name, model, GREEDY) for name, model in with_plain.items()]
    sampled = [Contender(name, with_plain[name], SAMPLED) for name in ("plain", "draft_osd")]
    heads = [Contender("medusa_osd", models["medusa_osd"], SAMPLED, verifier) for verifier in settings.verifiers]
    return [*unsampled, *sampled, *heads]


def decoded(models: dict[str, LanguageModel], folders: Folders, settings: MedusaSettings) -> Iterator[pd.DataFrame]:
    """Decode held-out requests, some at a time by all contenders in a shuffled order, with a target as expensive as asked for."""
    rng, clock, target = np.random.default_rng(settings.seed), clock_of(settings.device), dear_target(folders, settings)
    every = contenders(models, settings)
    records = folders.recorded(settings.dataset, "eval", 0.0).answers[: settings.live_requests]
    prompts = [record.prompt_ids for record in records]
    for block, start in enumerate(range(0, len(prompts), settings.at_once)):
        part, found = prompts[start : start + settings.at_once], {}
        for number in rng.permutation(len(every)).tolist():
            begin = clock()
            traces = every[number].decode(
                target,
                part,
                draft_len=settings.draft_len,
                max_new_tokens=folders.max_new_tokens,
                eos_ids=folders.tokenizer.eos_ids,
                generator=torch.Generator(target.device).manual_seed(block),
            )
            found[number] = traces, clock() - begin
        plain = {one.sampling: found[number] for number, one in enumerate(every) if one.model is None}
        for number, one in enumerate(every):
            (traces, seconds), (texts, plain_seconds) = found[number], plain[one.sampling]
            same = sum(mine.answer_ids == its.answer_ids for mine, its in zip(traces, texts, strict=True))
            sums = trace_counts(traces).drop(columns="request").sum().to_frame().T
            yield sums.assign(
                block=block,
                requests=len(part),
                contender=one.name,
                verifier=one.verifier,
                is_lossless=int(TREE_VERIFIERS[one.verifier].is_lossless),
                temperature=one.sampling.temperature,
                seconds=seconds,
                plain_seconds=plain_seconds,
                same_text=same,
            )
