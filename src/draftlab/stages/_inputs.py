"""Inputs that several stages share: how they are found in a run's folder, and which files they stand for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field
from tyro.constructors import PrimitiveConstructorSpec

from draftlab.core.settings import Dataset, Dtype, Settings, TopP, Whole
from draftlab.engine.answers import recorded_name
from draftlab.stages._places import Places
from draftlab.stages._stage import Files, NoInputs

AS_JSON = PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda words: json.loads(words[0]),
    is_instance=lambda value: value is None or isinstance(value, Settings),
    str_from_instance=lambda value: ["null" if value is None else value.model_dump_json()],
)
"""On a command line, settings inside settings are one word of JSON."""


class Target(NoInputs):
    """A target alone: the folder of a model, a GGUF file, or the name of an architecture."""

    target: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        """Those of the cell's pair."""
        return cls(**{role: places.model(role, variants[0].pair) for role in cls.model_fields})

    def reads(self, variants: Sequence[Any]) -> Files:
        """The models."""
        return {"models": list(self.model_dump().values())}


class TargetAndDraft(Target):
    """A target and its draft, as ``Target``."""

    draft: Path


class OnPairs(Settings):
    """Settings of experiments on recorded probability pairs. If ``datasets`` is empty or names none of the pair's, all of the pair's are used.

    ``positions`` is the most positions used of each dataset. ``top_k`` 0 keeps every token; ``synthetic`` adds the family of model-like
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


class RecordedPairs(NoInputs):
    """The folder of recorded logits of target and draft."""

    pairs: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        """Those of the cell's pair."""
        return cls(pairs=places.distributions(variants[0].pair))

    def reads(self, variants: Sequence[Any]) -> Files:
        """A file for each dataset."""
        names = dict.fromkeys(name for own in variants for name in own.datasets)
        return {"pairs": [self.pairs / f"{name}.safetensors" for name in names]}


class Distillation(NoInputs):
    """What distillation reads: folders of models and of the target's recorded answers, and how the target is read where it runs again."""

    models: Path
    answers: Path
    max_new_tokens: int
    dtype: Dtype = "float32"

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        """The models and answers of the cell's pair."""
        pair = variants[0].pair
        how = places.answers[pair]
        folders = {"models": places.models(pair), "answers": places.recorded(pair)}
        return cls(**folders, max_new_tokens=how.max_new_tokens, dtype=how.dtype)

    def reads(self, variants: Sequence[Any]) -> Files:
        """The target, every draft that a variant opens, and the recorded answers to both splits of its datasets."""
        drafts = sorted({name for own in variants for name in own.drafts_opened})
        every = [(own, dataset, split) for own in variants for dataset in own.datasets for split in ("train", "eval")]
        passes = sorted({recorded_name(dataset, split, own.temperature) for own, dataset, split in every})
        return {
            "models": [self.models / name for name in ("target", *drafts)],
            "answers": [self.answers / name / "answers.jsonl" for name in passes],
        }
