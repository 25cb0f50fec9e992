"""Medusa heads compared with a draft, each before and after it learnt from the requests that it served (OSD, Table 4)."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Dataset, Distinct
from draftlab.stages._counts import UnroundedCounts
from draftlab.stages._inputs import Distillation
from draftlab.stages._measures import ALPHA, BLOCK_EFFICIENCY
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing
from draftlab.train.settings import Serving, TimedUpdates

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from draftlab.engine.recording import TargetPass
    from draftlab.models import LanguageModel
    from draftlab.train.folders import Folders
    from draftlab.train.learning import Effort
    from draftlab.train.traffic import Traffic


class Settings(TimedUpdates, Serving):
    """Heads on the target compared with a draft, before and after both learnt from the stream (OSD, Table 4).

    Like released ones, the heads first learn other answers of their target: those to ``warm_requests`` of each dataset in ``warm``.
    """

    warm: Distinct[Dataset] = Field(min_length=1, description="datasets that the heads learn before the stream")
    warm_requests: int = Field(gt=0, description="most requests of each of these datasets")
    heads_learning_rate: float = Field(gt=0, description="learning rate of the heads, in place of learning_rate")
    widths: list[Count] = Field(min_length=1, description="number of guesses in the tree, for each head")
    verifiers: Distinct[Literal["rrs", "greedy", "typical"]] = Field(
        ["rrs", "typical"], description="how the tree is verified at temperature 1; typical is not lossless"
    )
    live_requests: int = Field(gt=0, description="held-out requests that every contender decodes")
    at_once: int = Field(gt=0, default=5, description="requests that a contender decodes on each turn")
    timed_updates: int = Field(gt=0, description="interleaved updates that give the time of an epoch")

    @property
    def datasets(self) -> list[Dataset]:
        return [self.dataset, *self.warm]


class Row(UnroundedCounts):
    """Some requests, as one contender decodes them."""

    block: int = column("number of this group of requests, from 0")
    requests: int = column("size of the group", "requests")
    contender: Literal["plain", "draft", "draft_osd", "medusa", "medusa_osd"] = column(
        "what does the drafting; osd: learnt online"
    )
    verifier: str = column("how the drafted tokens are verified")
    is_lossless: int = column("1 if the target's distribution is preserved, else 0")
    temperature: float = column("temperature of the target")
    seconds: float = timing("time for the group")
    plain_seconds: float = timing("time of plain decoding for as many tokens")
    same_text: int = column("requests whose text equals that of plain decoding", "requests")
    parameters: float = column("weights in addition to the target's", "weights")
    epoch_seconds: float = timing("time to learn from every answer of the stream once")
    seed: int = column("seed of the random orders")


class Derived:
    parameters_billion: float = column("weights in addition to the target's", "10^9")
    epoch_minutes: float = column("time to learn from every answer of the stream once", "min", timed=True)


MEASURES = {
    "speedup": Measure("plain_seconds", "seconds", "speed-up", "times plain decoding"),
    "block_efficiency": BLOCK_EFFICIENCY,
    "alpha": ALPHA,
    "parameters": Measure("parameters_billion", None, "parameters beside the target", "10^9"),
    "epoch_minutes": Measure("epoch_minutes", None, "time of an epoch", "min"),
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Let copies of the draft and of the heads learn from the stream, then decode held-out requests with every contender.

    What has learnt is kept in ``bench.parts``; a killed job repeats only the measurement.
    """
    import pandas as pd

    from draftlab.core.tree import Tree
    from draftlab.latency.pair import load_inflated
    from draftlab.models.clock import clock_of
    from draftlab.models.medusa import Medusa
    from draftlab.train.folders import Folders
    from draftlab.train.learning import learn_once
    from draftlab.train.medusa import contenders, decode_in_turns, epoch_seconds
    from draftlab.train.online import check_interval
    from draftlab.train.traffic import whole

    folders = Folders(inputs.answers, inputs.models, bench.kept)
    target = folders.target(settings.device, inputs.dtype)
    stream = whole(folders.recorded(settings.dataset, "train"), settings.dataset).reordered(settings.seed)
    stream = stream.take(range(min(settings.requests, len(stream))))
    check_interval(stream, settings)
    heads_settings = settings.model_copy(update={"learning_rate": settings.heads_learning_rate})
    heads = Medusa(target, Tree.of_widths(settings.widths))
    lessons = _lessons(folders, settings)
    effort = learn_once(heads, bench.part("heads.safetensors"), partial(_warmed, heads, lessons, heads_settings))
    models: dict[str, LanguageModel] = {"draft": folders.draft(settings), "medusa": heads}
    for name, serving in (("draft", settings), ("medusa", heads_settings)):
        models[f"{name}_osd"] = learner = copy.deepcopy(models[name])
        effort += learn_once(learner, bench.part(f"{name}.safetensors"), partial(_served, learner, stream, serving))
    records = folders.recorded(settings.dataset, "eval").answers[: settings.live_requests]
    prompts = [record.prompt_ids for record in records]
    size = settings.inflated_layers, settings.inflated_ffn
    target = load_inflated(target, inputs.models / "target", *size, settings.device)
    # An update of the heads reads the target, so it is timed with the one that decoding is.
    learners = {"draft": models["draft"], "medusa": heads.on(target)}
    seconds = epoch_seconds(learners, stream, settings, settings.timed_updates)
    parts = decode_in_turns(
        target,
        contenders(models, settings.verifiers),
        [prompts[start : start + settings.at_once] for start in range(0, len(prompts), settings.at_once)],
        clock_of(settings.device),
        settings.seed,
        draft_len=settings.draft_len,
        max_new_tokens=inputs.max_new_tokens,
        eos_ids=folders.tokenizer.eos_ids,
    )
    rows = pd.concat(parts, ignore_index=True)
    kind = rows["contender"].str.removesuffix("_osd")
    sizes = {name: sum(weight.numel() for weight in models[name].parameters()) for name in seconds}
    rows = rows.assign(parameters=kind.map(sizes).fillna(0), epoch_seconds=kind.map(seconds).fillna(0.0))
    return rows.assign(seed=settings.seed), folders.facts(effort) | {"tree": settings.widths}


def _served(learner: LanguageModel, stream: Traffic, settings: Settings, checkpoint: Path | None) -> Effort:
    """The cost of learning online along the stream."""
    from draftlab.train.online import serve

    return serve(learner, stream, settings, checkpoint=checkpoint)[1]


def _lessons(folders: Folders, settings: Settings) -> TargetPass:
    """The target's answers to other datasets, from which the heads learn first, as those of a release do."""
    from draftlab.engine.recording import join

    passes = [folders.recorded(dataset, "train") for dataset in settings.warm]
    return join([part.take(range(min(settings.warm_requests, len(part.answers)))) for part in passes])


def _warmed(heads: LanguageModel, lessons: TargetPass, settings: Settings, checkpoint: Path | None) -> Effort:
    """The cost of one epoch on the lessons."""
    from draftlab.train.learning import train
    from draftlab.train.sources import Scene

    count = len(lessons.answers)
    steps = math.ceil(count / settings.batch)
    return train(Scene(heads, lessons), range(count), steps, settings, checkpoint=checkpoint)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Sizes and times in the units of the papers."""
    return rows.assign(parameters_billion=rows["parameters"] / 1e9, epoch_minutes=rows["epoch_seconds"] / 60)


STAGE = stage_of(__name__, inputs=Distillation, exclusive=True)
