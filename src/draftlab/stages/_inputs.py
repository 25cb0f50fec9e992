"""Input files that several stages share: where they lie in a run's folder, and which files the workflow must make first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field
from tyro.constructors import PrimitiveConstructorSpec

from draftlab.core.settings import Dtype, Settings
from draftlab.engine.answers import recorded_name
from draftlab.stages._places import Places
from draftlab.stages._stage import Files, NoInputs

AS_JSON = PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda arguments: json.loads(arguments[0]),
    is_instance=lambda value: value is None or isinstance(value, Settings),
    str_from_instance=lambda value: ["null" if value is None else value.model_dump_json()],
)
"""On a command line, settings inside settings are one argument in JSON."""


class Target(NoInputs):
    """A target."""

    target: Path = Field(description="the target: the folder of a model, a GGUF file, or the name of an architecture")

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        return cls(target=places.model("target", variants[0].pair))

    def reads(self, variants: Sequence[Any]) -> Files:
        return {"models": list(self.model_dump().values())}


class TargetAndDraft(Target):
    """A target and its draft; a setting ``role`` may name another draft of the pair."""

    same: ClassVar[tuple[str, ...]] = ("pair", "role")
    draft: Path = Field(description="the draft, likewise")

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        pair, role = variants[0].pair, getattr(variants[0], "role", "draft")
        return cls(target=places.model("target", pair), draft=places.model(role, pair))


class Distillation(NoInputs):
    """What distillation reads, and how to run the target where it runs again."""

    models: Path = Field(description="folder of the models: target and drafts")
    answers: Path = Field(description="folder of the target's recorded answers")
    max_new_tokens: int = Field(description="most tokens of an answer that is written anew")
    dtype: Dtype = Field("float32", description="number type of the target where it runs again")

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        pair = variants[0].pair
        answers = places.answers[pair]
        folders = {"models": places.models(pair), "answers": places.recorded(pair)}
        return cls(**folders, max_new_tokens=answers.max_new_tokens, dtype=answers.dtype)

    def reads(self, variants: Sequence[Any]) -> Files:
        """The target, every draft that a variant opens, and the recorded answers to both splits of its datasets."""
        drafts = sorted({name for settings in variants for name in settings.drafts_opened})
        passes = {
            recorded_name(dataset, split, settings.temperature)
            for settings in variants
            for dataset in settings.datasets
            for split in ("train", "eval")
        }
        return {
            "models": [self.models / name for name in ("target", *drafts)],
            "answers": [self.answers / name / "answers.jsonl" for name in sorted(passes)],
        }
