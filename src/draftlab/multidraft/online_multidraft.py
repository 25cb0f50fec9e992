"""The two papers joined: drafts that each learnt one topic online, verified together as non-identical drafts of every request.

Against them, at equal target calls and equal updates: routing (each request drafted by its topic's specialist, as many times), and as
many copies of one shared draft that learnt all topics.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from draftlab.core.sampling import Sampling
from draftlab.engine.answers import Answer
from draftlab.engine.recording import TargetPass, load_pass
from draftlab.engine.speculate import speculate
from draftlab.files.weights import check_sizes
from draftlab.models import LanguageModel, load_model, load_tokenizer
from draftlab.train.online import serve
from draftlab.train.settings import Serving
from draftlab.train.traffic import Traffic, join

if TYPE_CHECKING:
    from draftlab.stages.online_multidraft import Settings as OnlineMultidraft


def online_multidraft(
    settings: OnlineMultidraft, target_folder: Path, draft_folder: Path, answers: Mapping[str, Mapping[str, Path]]
) -> pd.DataFrame:
    """Let drafts learn along an i.i.d. mixture of the topics, then decode held-out requests with each arrangement of them.

    ``answers``: topic -> split -> folder of a recorded pass. Rows: ``seed, dataset`` (the topic), ``request, drafts`` (original, shared, routed,
    specialists), ``num_drafts, scheme, accepted, visited, emitted, blocks`` (target calls).
    """
    check_sizes(target_folder, draft_folder)
    target, tokenizer = load_model(target_folder, device=settings.device), load_tokenizer(target_folder)
    passes = {split: [load_pass(answers[topic][split]) for topic in settings.topics] for split in ("train", "eval")}
    frames = []
    for seed in settings.seeds:
        stream = _mixture(passes["train"], settings, seed)
        shared, *specialists = (
            load_model(draft_folder, device=settings.device) for _ in range(1 + len(settings.topics))
        )
        learning = _learning(settings, seed)
        serve(shared, stream, learning)
        for topic, specialist in zip(settings.topics, specialists, strict=True):
            own = [place for place, group in enumerate(stream.group) if group == topic]
            serve(specialist, stream.take(own), learning)
        original = load_model(draft_folder, device=settings.device)
        for number, topic in enumerate(settings.topics):
            arranged = _arrangements(original, shared, specialists, number)
            requests = passes["eval"][number].answers[: settings.requests]
            for (drafts, models), scheme in itertools.product(arranged.items(), settings.schemes):
                if len(models) == 1 and scheme != settings.schemes[0]:
                    continue  # with one sequence every scheme is single-draft verification
                rows = _decoded(target, models, requests, scheme, tokenizer.eos_ids, settings, seed)
                frames.append(
                    rows.assign(seed=seed, dataset=topic, drafts=drafts, num_drafts=len(models), scheme=scheme)
                )
    return pd.concat(frames, ignore_index=True)


def _mixture(passes: Sequence[TargetPass], settings: OnlineMultidraft, seed: int) -> Traffic:
    """The first ``stream`` requests of each topic in one random order."""
    places = [(number, place) for number in range(len(passes)) for place in range(settings.stream)]
    drawn = np.random.default_rng(seed).permutation(len(places))
    order = [places[i] for i in drawn]
    groups, count = [settings.topics[number] for number, _ in order], len(order)
    return Traffic(join(passes, order), groups, groups, np.zeros(count, int), np.ones(count, bool), drawn)


def _learning(settings: OnlineMultidraft, seed: int) -> Serving:
    """How every draft learns: an update per ``update_interval`` of its own requests, so all specialists together make as many as the
    shared draft."""
    names = ("learning_rate", "update_interval", "loss", "loss_positions", "draft_len", "device")
    own = {"dataset": "+".join(settings.topics), "seed": seed, "batch": settings.update_interval}
    return Serving.model_validate(own | {name: getattr(settings, name) for name in names})


def _arrangements(
    original: LanguageModel, shared: LanguageModel, specialists: Sequence[LanguageModel], topic: int
) -> dict[str, list[LanguageModel]]:
    """Which models draft a request of this topic; the router makes no mistakes here (``osd_routing`` measures them)."""
    count, own = len(specialists), specialists[topic]
    return {
        "original": [original] * count,
        "shared, one": [shared],
        "shared": [shared] * count,
        "routed, one": [own],
        "routed": [own] * count,
        "specialists": list(specialists),
    }


def _decoded(
    target: LanguageModel,
    models: list[LanguageModel],
    requests: Sequence[Answer],
    scheme: str,
    eos_ids: Sequence[int],
    settings: OnlineMultidraft,
    seed: int,
) -> pd.DataFrame:
    """Decode the requests as one batch, a row for each."""
    same = all(model is models[0] for model in models)
    traces = speculate(
        target,
        models[0] if same else models,
        [request.prompt_ids for request in requests],
        draft_len=settings.draft_len,
        max_new_tokens=settings.max_new_tokens,
        eos_ids=eos_ids,
        num_drafts=len(models),
        verifier=scheme if len(models) > 1 else "single",  # every scheme's distribution for one draft
        sampling=Sampling(settings.temperature),
        generator=torch.Generator(target.device).manual_seed(seed),
    ).traces
    counts = ("accepted", "visited", "emitted")
    rows = ({name: sum(getattr(t, name)) for name in counts} | {"blocks": len(t.emitted)} for t in traces)
    return pd.DataFrame(rows).assign(request=range(len(requests)))
