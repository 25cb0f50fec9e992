"""What ``workflow/scales/<scale>.yaml`` may say: data, models, answers, and what jobs need."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from draftlab.data import streams

Scale = Literal["smoke", "laptop", "shapes", "shapes_cpu", "paper"]
Dataset = str
Count = Annotated[int, Field(gt=0)]
Whole = Annotated[int, Field(ge=0)]
Template = Literal["vicuna_v1.1", "vicuna_short", "plain", "own"]


class Settings(BaseModel):
    """Base of every model here: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class Data(Settings):
    """Where prompts come from, and how many of each dataset are used."""

    source: Literal["generator", "raw", "hub"]
    datasets: list[str]
    extra: list[str] = Field([], description="further datasets; a raw folder may lack them")
    raw_rows: int = Field(gt=0, description="raw rows fetched of the training split")
    train: int = Field(gt=0, description="requests of the stream and of offline distillation")
    train_of: dict[str, Count] = Field({}, description="other numbers of them, by dataset")
    eval: int = Field(gt=0, description="held-out requests")
    pairs: int = Field(gt=0, description="positions whose target and draft distributions are recorded, per dataset")
    seed: Whole = 0
    label: dict[Literal["language", "topic"], Literal["langid", "hub"]] = Field(
        {}, description="how classes are found that the rows do not carry"
    )
    router: dict[streams.GroupBy, Literal["langid", "naive_bayes", "hub"]] = Field(
        {"dataset": "naive_bayes", "language": "langid", "topic": "naive_bayes"},
        description="how a request's class is named as it arrives",
    )
    classifier: str = Field(
        "alimazhar-110/website_classification@main",
        description="what the method hub asks: a folder, or ``owner/name@revision``",
    )
    on_bad_row: Literal["keep", "stop"] = "keep"
    profile: Literal["clean", "osd_repo_2024"] = "clean"


class Recipe(Settings):
    """A model: one that exists (``model``: a folder, or ``owner/name[@revision]`` of the hub), or one of a ``family`` trained on the spot.

    A T5 has ``layers`` in its encoder and as many in its decoder.
    """

    model: str | None = None
    family: Literal["llama", "t5"] = "llama"
    hidden: Count = 64
    layers: Count = 1
    heads: Count = 2
    ffn: Count = 172
    context: Count = 512
    vocabulary: Count = 1024
    steps: Whole = 300
    batch: Count = 16
    learning_rate: float = Field(default=3e-3, gt=0)
    documents: Whole = 8000
    seed: Whole = 0


class Answers(Settings):
    """How the target answers: the recorded pass that every variant shares."""

    max_new_tokens: int = Field(gt=0)
    template: Template = "vicuna_short"
    batch: int = Field(gt=0, default=64)
    keep: int = Field(
        gt=0, default=64, description="most probable tokens recorded of a distribution over a large vocabulary"
    )
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"


class Compute(Settings):
    """Where drafts are trained: device, bfloat16 products over float32 weights, processes (``accelerate launch``)."""

    device: Literal["cpu", "cuda"] = "cpu"
    autocast: bool = False
    processes: int = Field(default=1, gt=0)


class Needs(Settings):
    """What a job asks of a scheduler: ``mem_mb``, ``runtime`` in minutes, ``gpu`` devices."""

    threads: int = Field(gt=0, default=1)
    mem_mb: int = Field(gt=0, default=2000)
    runtime: int = Field(gt=0, default=30)
    gpu: int = Field(ge=0, default=0)


class Pair(Settings):
    """Another target with its drafts: the datasets that it is measured on, which are also what small models of it learn.

    It answers as the scale's own target does, unless ``answers`` say otherwise.
    """

    datasets: list[Dataset] = []
    target: Recipe = Recipe()
    draft: Recipe = Recipe()
    drafts: dict[str, Recipe] = {}
    answers: Answers | None = None


class ScaleSettings(Settings):
    """One ``workflow/scales/<scale>.yaml``; ``drafts`` are further ones beside ``draft``, ``multidraft`` the pair of the multi-draft
    experiments, ``t5`` the encoder-decoders, ``needs`` what the jobs of a rule ask for (rules not named: the defaults of ``Needs``)."""

    data: Data
    target: Recipe
    draft: Recipe
    drafts: dict[str, Recipe] = {}
    answers: Answers
    compute: Compute = Compute()
    multidraft: Pair = Pair()
    t5: Pair = Pair()
    needs: dict[str, Needs] = {}

    @model_validator(mode="after")
    def _check(self) -> ScaleSettings:
        trains = self.needs.get("offline", Needs())
        if self.compute.device == "cuda" and trains.gpu != self.compute.processes:
            raise ValueError(f"compute.processes is {self.compute.processes}, but needs.offline.gpu is {trains.gpu}")
        return self
