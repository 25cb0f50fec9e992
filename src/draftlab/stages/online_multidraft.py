"""Drafts that specialise online in different topics, used together as non-identical drafts; compared with routing and one shared draft."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from draftlab.core.settings import Dataset, Distinct, Dtype, NonNegativeInt, PairName, Seed, TorchDevice
from draftlab.core.settings import Settings as Base
from draftlab.engine.answers import recorded_name
from draftlab.errors import UserError
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._measures import BLOCK_EFFICIENCY
from draftlab.stages._places import Places
from draftlab.stages._schemes import Verifier
from draftlab.stages._stage import Bench, Facts, Files, column, stage_of
from draftlab.train.settings import Loss, LossPositions, Serving

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.engine.answers import Answer
    from draftlab.engine.recording import TargetPass
    from draftlab.models import LanguageModel
    from draftlab.train.traffic import Traffic


class Settings(Base):
    pair: PairName = "main"
    topics: list[Dataset] = Field(min_length=2, description="datasets, each of which has a specialist among the drafts")
    schemes: Distinct[Verifier] = Field(
        ["importance_truncated", "specinfer"], min_length=1, description="how several drafts are verified"
    )
    stream: int = Field(gt=0, description="requests of each topic that drafts learn from")
    requests: int = Field(gt=0, description="held-out requests of each topic that are decoded")
    batch: NonNegativeInt = Field(0, description="requests that are decoded together; 0: all")
    update_interval: int = Field(gt=0, description="requests between two updates; the second learns from all of them")
    learning_rate: float = Field(gt=0, description="learning rate of AdamW")
    loss: Loss = "forward_kl"
    loss_positions: LossPositions = "all"
    draft_len: int = Field(gt=0, description="tokens of a drafted sequence")
    max_new_tokens: int = Field(gt=0, description="most tokens of an answer")
    temperature: float = Field(1.0, gt=0, description="temperature at which target and drafts sample")
    device: TorchDevice = "cpu"
    seeds: Distinct[Seed] = Field(min_length=1, description="seeds of the stream's order and of the sampling")

    @model_validator(mode="after")
    def _every_draft_learns(self) -> Settings:
        if self.loss == "none":
            raise ValueError("loss none is for a draft that is not trained: name a loss")
        if self.update_interval > self.stream:
            what = f"update_interval is {self.update_interval}, but a specialist serves {self.stream} requests"
            raise ValueError(f"{what}: lower update_interval, or raise stream")
        return self


class Row:
    """A held-out request, decoded with an arrangement of drafts."""

    accepted: int = column("drafted tokens that were accepted", "tokens")
    visited: int = column("drafted tokens that were judged: accepted ones, and the first rejected one", "tokens")
    emitted: int = column("tokens of the answer", "tokens")
    blocks: int = column("target calls")
    request_id: int = column("number of the held-out request in its topic")
    seed: int = column("seed of the stream's order and of the sampling")
    dataset: str = column("topic of the request")
    drafts: Literal["original", "shared, one", "shared", "routed, one", "routed", "specialists"] = column(
        "which models draft"
    )
    num_drafts: int = column("drafted sequences")
    scheme: str = column("how drafts are verified")


MEASURES = {
    "block_efficiency": BLOCK_EFFICIENCY,
}


class Inputs(TargetAndDraft):
    """A pair, the folder of the target's recorded answers, and the target's number type.

    **Fields:**
    - `answers`: folder of the target's recorded answers
    - `dtype`: number type of the target
    """

    answers: Path
    dtype: Dtype = "float32"

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        pair = variants[0].pair
        return cls(
            target=places.model("target", pair),
            draft=places.model("draft", pair),
            answers=places.recorded(pair),
            dtype=places.answers[pair].dtype,
        )

    def reads(self, variants: Sequence[Any]) -> Files:
        topics = dict.fromkeys(topic for settings in variants for topic in settings.topics)
        names = [recorded_name(topic, split) for topic in topics for split in ("train", "eval")]
        return {
            "models": [self.target, self.draft],
            "answers": [self.answers / name / "answers.jsonl" for name in names],
        }


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Let drafts learn along an i.i.d. mixture of the topics, then decode held-out requests with each arrangement of them.

    All arrangements make equally many target calls and updates: routing drafts each request with its topic's specialist, as many times as
    there are specialists; the shared draft learnt all topics.

    Drafts that have learnt and tables that are finished are kept in ``bench.parts``; a killed job goes on after them.
    """
    import pandas as pd

    from draftlab.engine.recording import load_pass
    from draftlab.files.weights import check_sizes
    from draftlab.models import load_model, load_tokenizer

    def passes(split: str) -> list[TargetPass]:
        return [load_pass(inputs.answers / recorded_name(topic, split)) for topic in settings.topics]

    def fresh_draft() -> LanguageModel:
        return load_model(inputs.draft, device=settings.device)

    check_sizes(inputs.target, inputs.draft)
    target = load_model(inputs.target, inputs.dtype, settings.device)
    tokenizer = load_tokenizer(inputs.target)
    recorded, held_out = passes("train"), passes("eval")
    for topic, answers in zip(settings.topics, recorded, strict=True):
        if (count := len(answers.answers)) < settings.stream:
            what = f"only {count} answers of {topic} for {settings.stream} requests to learn from"
            raise UserError(what, remedy="lower stream, or raise data.train of the scale")
    frames: list[pd.DataFrame] = []
    for seed in settings.seeds:
        stream, learning = _mixture(recorded, settings, seed), _learning(settings, seed)
        of_topics = [stream.take([n for n, group in enumerate(stream.group) if group == t]) for t in settings.topics]
        shared, *specialists = (
            _after_learning(fresh_draft(), served, learning, bench.part(f"{seed}.{number}.draft.safetensors"))
            for number, served in enumerate([stream, *of_topics])
        )
        original = fresh_draft()
        for number, topic in enumerate(settings.topics):
            arranged = _arrangements(original, shared, specialists, number)
            requests = held_out[number].answers[: settings.requests]
            for (drafts, models), scheme in itertools.product(arranged.items(), settings.schemes):
                if len(models) == 1 and scheme != settings.schemes[0]:
                    continue  # with one sequence every scheme is single-draft verification
                decode = partial(_decode, target, models, requests, scheme, tokenizer.eos_ids, settings, seed)
                rows = bench.rows(f"{seed}.{len(frames)}", decode)
                frames.append(
                    rows.assign(seed=seed, dataset=topic, drafts=drafts, num_drafts=len(models), scheme=scheme)
                )
    return pd.concat(frames, ignore_index=True), {}


def _mixture(passes: Sequence[TargetPass], settings: Settings, seed: int) -> Traffic:
    """Mix the first ``stream`` requests of each topic in random order."""
    import numpy as np

    from draftlab.engine.recording import join
    from draftlab.train.traffic import Traffic

    mixed = join([recorded.take(range(settings.stream)) for recorded in passes])
    count = len(mixed.answers)
    drawn = np.random.default_rng(seed).permutation(count)
    groups = [settings.topics[number // settings.stream] for number in drawn]
    return Traffic(mixed.take(drawn), groups, groups, np.zeros(count, int), np.ones(count, bool), drawn)


def _learning(settings: Settings, seed: int) -> Serving:
    """How every draft learns: an update per ``update_interval`` requests that it serves, so all specialists together make as many updates
    as the shared draft."""
    names = {"learning_rate", "update_interval", "loss", "loss_positions", "draft_len", "device"}
    others = {"dataset": "+".join(settings.topics), "seed": seed, "batch": settings.update_interval}
    return Serving.model_validate(others | settings.model_dump(include=names))


def _after_learning(draft: LanguageModel, traffic: Traffic, learning: Serving, part: Path | None) -> LanguageModel:
    """The draft after it learnt along ``traffic``; its weights are kept in ``part``."""
    from draftlab.train.learning import learn_once
    from draftlab.train.online import serve

    learn_once(draft, part, lambda checkpoint: serve(draft, traffic, learning, checkpoint=checkpoint)[1])
    return draft


def _arrangements(
    original: LanguageModel, shared: LanguageModel, specialists: Sequence[LanguageModel], topic: int
) -> dict[str, list[LanguageModel]]:
    """The models that draft a request of this topic, by arrangement; the router makes no mistakes here (``osd_routing`` measures them)."""
    count, routed = len(specialists), specialists[topic]
    return {
        "original": [original] * count,
        "shared, one": [shared],
        "shared": [shared] * count,
        "routed, one": [routed],
        "routed": [routed] * count,
        "specialists": list(specialists),
    }


def _decode(
    target: LanguageModel,
    models: list[LanguageModel],
    requests: Sequence[Answer],
    scheme: str,
    eos_ids: Sequence[int],
    settings: Settings,
    seed: int,
) -> pd.DataFrame:
    import torch

    from draftlab.core.sampling import Sampling
    from draftlab.core.verify import any_verifier
    from draftlab.engine.speculate import speculate
    from draftlab.train.offline import trace_counts

    same = all(model is models[0] for model in models)
    traces = speculate(
        target,
        models[0] if same else models,
        [request.prompt_ids for request in requests],
        draft_len=settings.draft_len,
        max_new_tokens=settings.max_new_tokens,
        eos_ids=eos_ids,
        num_drafts=len(models),
        verifier=any_verifier(scheme if len(models) > 1 else "single"),  # every scheme's distribution for one draft
        sampling=Sampling(settings.temperature),
        generator=torch.Generator(target.device).manual_seed(seed),
        batch=settings.batch or None,
    ).traces
    return trace_counts(traces)[["accepted", "visited", "emitted", "blocks", "request_id"]]


STAGE = stage_of(__name__, split="eval")
