"""Input files that several stages share: where they lie in a run's folder, and which files the workflow must make first."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field
from tyro.constructors import PrimitiveConstructorSpec

from draftlab.core.settings import Dataset, Dtype, NonNegativeInt, Settings, TopP
from draftlab.engine.answers import recorded_name
from draftlab.stages._places import Places
from draftlab.stages._stage import Files, NoInputs, column

if TYPE_CHECKING:
    from draftlab.core.sampling import Sampling

AS_JSON = PrimitiveConstructorSpec[Any](
    nargs=1,
    metavar="JSON",
    instance_from_str=lambda arguments: json.loads(arguments[0]),
    is_instance=lambda value: value is None or isinstance(value, Settings),
    str_from_instance=lambda value: ["null" if value is None else value.model_dump_json()],
)
"""On a command line, settings inside settings are one argument in JSON."""


class Target(NoInputs):
    """A target: the folder of a model, a GGUF file, or the name of an architecture."""

    target: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        return cls(target=places.model("target", variants[0].pair))

    def reads(self, variants: Sequence[Any]) -> Files:
        return {"models": list(self.model_dump().values())}


class TargetAndDraft(Target):
    """A target and its draft; a setting ``role`` may name another draft of the pair."""

    draft: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        pair, role = variants[0].pair, getattr(variants[0], "role", "draft")
        return cls(target=places.model("target", pair), draft=places.model(role, pair))


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
    seed: NonNegativeInt = 0

    def sampling(self, temperature: float) -> Sampling:
        """How a model is sampled at this temperature."""
        from draftlab.core.sampling import Sampling

        return Sampling(temperature, top_k=self.top_k or None, top_p=self.top_p)


class PairsRow:
    """A text, its dataset, and how its tokens are drafted."""

    request_id: int = column("number of the text; in the synthetic family each context is a text")
    dataset: str = column("dataset of the text")
    draft_temperature: float = column("temperature of the draft")
    num_drafts: int = column("drafted tokens of a position")


class RecordedPairs(NoInputs):
    """The folder of recorded logits of target and draft."""

    pairs: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        return cls(pairs=places.distributions(variants[0].pair))

    def reads(self, variants: Sequence[Any]) -> Files:
        names = dict.fromkeys(name for settings in variants for name in settings.datasets)
        return {"pairs": [self.pairs / f"{name}.safetensors" for name in names]}


class Distillation(NoInputs):
    """What distillation reads: folders of models and of the target's recorded answers, and how to run the target where it runs again."""

    models: Path
    answers: Path
    max_new_tokens: int
    dtype: Dtype = "float32"

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
