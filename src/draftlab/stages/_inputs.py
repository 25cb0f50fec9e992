"""Inputs that several stages share: how they are found in a run's folder, and which files they stand for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field
from tyro.constructors import PrimitiveConstructorSpec

from draftlab.core.settings import Dataset, Dtype, Settings, TopP, Whole
from draftlab.engine.answers import recorded_name
from draftlab.latency.settings import Engine
from draftlab.stages._places import Places
from draftlab.train.settings import Training

AS_JSON = PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda words: json.loads(words[0]),
    is_instance=lambda value: value is None or isinstance(value, Settings),
    str_from_instance=lambda value: ["null" if value is None else value.model_dump_json()],
)
"""On a command line, settings inside settings are one word of JSON."""

Files = dict[str, list[Path]]
"""Kind (models, answers, data, ...) -> files; of a model its folder."""


class Target(Settings):
    """A target alone: the folder of a model, a GGUF file, or the name of an architecture."""

    target: Path


class TargetAndDraft(Target):
    """A target and its draft, as ``Target``."""

    draft: Path


def locate_target(variants: Sequence[Engine], places: Places) -> Target:
    """The target of the cell's pair."""
    return Target(target=places.model("target", variants[0].pair))


def locate_pair(variants: Sequence[Engine], places: Places) -> TargetAndDraft:
    """The target and the draft of the cell's pair."""
    pair = variants[0].pair
    return TargetAndDraft(target=places.model("target", pair), draft=places.model("draft", pair))


def reads_pair(variants: Sequence[Any], inputs: Target) -> Files:
    """The models."""
    return {"models": list(inputs.model_dump().values())}


class OnPairs(Settings):
    """What experiments on recorded probability pairs share; ``datasets`` empty, or none of the pair's: all of the pair's.

    ``positions`` bounds how many of each dataset are used. ``top_k`` 0 keeps every token; ``synthetic`` adds the family of model-like
    distributions.
    """

    pair: str = "multidraft"
    datasets: list[Dataset] = []
    synthetic: bool = False
    positions: int = Field(gt=0, default=1_000_000)
    top_k: int = Field(ge=0, default=0)
    top_p: TopP = 1.0
    seed: Whole = 0

    @property
    def synthetic_seed(self) -> int | None:
        """The seed of the synthetic family; None without it."""
        return self.seed if self.synthetic else None


class RecordedPairs(Settings):
    """The folder of recorded logits of target and draft."""

    pairs: Path


def locate_pairs(variants: Sequence[OnPairs], places: Places) -> RecordedPairs:
    """Those of the cell's pair."""
    return RecordedPairs(pairs=places.distributions(variants[0].pair))


def reads_pairs(variants: Sequence[OnPairs], inputs: RecordedPairs) -> Files:
    """A file for each dataset."""
    names = dict.fromkeys(name for own in variants for name in own.datasets)
    return {"pairs": [inputs.pairs / f"{name}.safetensors" for name in names]}


class Distillation(Settings):
    """What distillation reads: folders of models and of the target's recorded answers, and how the target is read where it runs again."""

    models: Path
    answers: Path
    max_new_tokens: int
    dtype: Dtype = "float32"


def locate_distillation(variants: Sequence[Training], places: Places) -> Distillation:
    """The models and answers of the cell's pair."""
    pair = variants[0].pair
    how = places.answers[pair]
    folders = {"models": places.models(pair), "answers": places.recorded(pair)}
    return Distillation(**folders, max_new_tokens=how.max_new_tokens, dtype=how.dtype)


def reads_distillation(variants: Sequence[Training], inputs: Distillation) -> Files:
    """The target, every draft that a variant opens, and the recorded answers to both splits of its datasets."""
    drafts = sorted({name for own in variants for name in own.drafts_opened})
    every = [(own, dataset, split) for own in variants for dataset in own.datasets for split in ("train", "eval")]
    passes = sorted({recorded_name(dataset, split, own.temperature) for own, dataset, split in every})
    return {
        "models": [inputs.models / name for name in ("target", *drafts)],
        "answers": [inputs.answers / name / "answers.jsonl" for name in passes],
    }
