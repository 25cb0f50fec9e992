"""What ``workflow/scales/<scale>.yaml`` may contain: data, pairs of models, and the needs of jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from draftlab.core.settings import Dataset, Device, Seed, Settings
from draftlab.data import streams
from draftlab.engine.settings import Answers, Recipe
from draftlab.files.checkout import WORKFLOW
from draftlab.files.registries import choice
from draftlab.plan.grids import Axis

SCALES = tuple(sorted(path.stem for path in (WORKFLOW / "scales").glob("*.yaml")))
"""Each scale is a file."""
if TYPE_CHECKING:
    Scale = str
    Cleaner = str
else:
    Cleaner = choice([], ["row"])
    Scale = Literal[SCALES]

Gpu = Literal["rtx4090", "a100-40", "a100-80", "h100", "h200"]

MAIN = "main"
"""The default pair of experiments."""
RUN_FOLDERS = ("cells", "data", "drafts", "figures", "logs", "packages", "tensorboard", "verifiers")
"""The other folders of a run, which no pair may be called."""
PAIR_FOLDERS = ("target", "tokenizer")
"""The other models of a pair, which no draft may be called."""


def _no_other_folder(*taken: str) -> AfterValidator:
    """A check that a name, which becomes a folder, is not one of those that are ``taken``."""

    def check(name: str) -> str:
        if name in taken:
            raise ValueError("a run has another folder of this name")
        return name

    return AfterValidator(check)


def _has_no_duplicates(datasets: list[Dataset]) -> list[Dataset]:
    """A list in which no dataset stands twice: its rows would be learnt twice, and its jobs would have one name."""
    if twice := next((name for number, name in enumerate(datasets) if name in datasets[:number]), None):
        raise ValueError(f"{twice} stands here twice")
    return datasets


Datasets = Annotated[list[Dataset], AfterValidator(_has_no_duplicates)]
"""Different datasets."""
Rows = Annotated[int, Field(gt=0, le=10**9)]
"""A number of rows, requests or positions; no disk holds more."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$")]
"""The name of a pair or a draft: a folder, a wildcard of the rules, and a part of PAIR.ROLE."""


class Data(Settings):
    """Where prompts come from, and how many of each dataset are used."""

    source: Literal["generator", "raw", "hub"]
    datasets: Datasets
    extra: Datasets = Field([], description="further datasets; a raw folder may lack them")
    raw_rows: Rows = Field(description="raw rows to fetch from the training split")
    raw_rows_of: dict[Dataset, Rows] = Field({}, description="exceptions, by dataset")
    train: Rows = Field(description="requests of the stream and of offline distillation")
    train_of: dict[Dataset, Rows] = Field({}, description="exceptions, by dataset")
    eval: Rows = Field(description="held-out requests")
    pairs: Rows = Field(description="positions whose target and draft distributions are recorded, per dataset")
    seed: Seed = 0
    label: dict[Literal["language", "topic"], Literal["langid", "hub"]] = Field(
        {}, description="how to find classes that the rows do not contain"
    )
    router: dict[streams.GroupBy, Literal["langid", "naive_bayes", "hub"]] = Field(
        {"dataset": "naive_bayes", "language": "langid", "topic": "naive_bayes"},
        description="how to find a request's class when it arrives",
    )
    classifier: str = Field(
        "alimazhar-110/website_classification@main",
        description="the classifier for the method hub: a folder, or ``owner/name@revision``",
    )
    template_options: dict[str, Any] = Field(
        {},
        description="variables for the target's chat template, such as {enable_thinking: false}; a request's own prevail",
    )
    cleaners: dict[Dataset, Cleaner] = Field(
        {}, description="your own cleaners by dataset, FILE.py:OBJECT: a function of a row that returns its prompt"
    )
    on_bad_row: Literal["keep", "stop"] = "keep"
    profile: Literal["clean", "osd_repo_2024"] = "clean"

    def rows_of(self, dataset: Dataset) -> int:
        """Raw rows fetched of a dataset's training split."""
        return self.raw_rows_of.get(dataset, self.raw_rows)

    def train_requests(self, dataset: Dataset) -> int:
        """Requests of a dataset that are answered for training."""
        return self.train_of.get(dataset, self.train)

    @property
    def asks_classifier(self) -> bool:
        """Whether labels or routes come from the classifier."""
        return "hub" in {*self.label.values(), *self.router.values()}

    @model_validator(mode="after")
    def _is_consistent(self) -> Data:
        _has_no_duplicates([*self.datasets, *self.extra])
        for dataset in [*self.datasets, *self.extra]:
            rows, requests = self.rows_of(dataset), self.train_requests(dataset)
            if rows < requests:
                raise ValueError(f"{requests} requests of {dataset} are asked for, but only {rows} raw rows")
        for key, methods in (("label", self.label), ("router", self.router)):
            if wrong := next(
                (name for name, method in methods.items() if method == "langid" and name != "language"), None
            ):
                raise ValueError(f"{key}.{wrong} is langid, which finds languages alone")
        if self.asks_classifier and not self.classifier:
            raise ValueError("classifier is empty, but label or router has the method hub, which needs one")
        return self


class Inflated(Settings):
    """The size to which a small target is padded where time is measured, so that it costs as much as a large one (``latency.inflate``)."""

    layers: int = Field(gt=0)
    ffn: int = Field(gt=0)
    widths: Literal[1, 4, 16, 64] = 1

    @property
    def settings(self) -> dict[str, int]:
        """The same as settings of a measurement."""
        return {f"inflated_{name}": value for name, value in self.model_dump().items()}


class Pair(Settings):
    """A target with its drafts, which share a tokenizer; small models learn the requests of ``datasets`` (the main pair: of all datasets).

    ``inflated`` holds for every measurement of time whose own settings do not say ``inflated_layers``.
    """

    target: Recipe
    drafts: dict[Annotated[Name, _no_other_folder(*PAIR_FOLDERS)], Recipe]
    answers: Answers
    datasets: Datasets = []
    inflated: Inflated | None = None

    @property
    def models(self) -> dict[str, Recipe]:
        """Every model by the name of its folder."""
        return {"target": self.target} | self.drafts

    def with_models(self, models: dict[str, str]) -> Pair:
        """The pair with existing models in these roles."""
        recipes = {role: self.models[role].model_copy(update={"model": name}) for role, name in models.items()}
        target, drafts = recipes.pop("target", self.target), self.drafts | recipes
        return self.model_copy(update={"target": target, "drafts": drafts})


class Compute(Settings):
    """Where drafts are trained: device, bfloat16 products over float32 weights, processes (``torchrun``)."""

    device: Device = "cpu"
    autocast: bool = False
    processes: int = Field(default=1, gt=0)


class Needs(Settings):
    """What a job requests from a scheduler: ``mem_mb`` (by default computed by ``plan.needs``), ``runtime`` in minutes, ``gpu`` devices."""

    threads: int = Field(gt=0, default=1)
    mem_mb: int | None = Field(gt=0, default=None)
    runtime: int = Field(gt=0, default=30)
    gpu: int = Field(ge=0, default=0)


class Limits(Settings):
    """What no job may request, also when it is tried again: of a cluster, the longest job in minutes, and the memory of its nodes in MB."""

    runtime: int | None = Field(gt=0, default=None)
    mem_mb: int | None = Field(gt=0, default=None)


class Size(Settings):
    """What one scale changes in an experiment: values of axes, and fixed settings."""

    axes: dict[str, Axis] = {}
    fixed: dict[str, Any] = {}


class ScaleSettings(Settings):
    """One scale: ``pairs`` by name, and ``needs`` of jobs by rule (``rule.pair`` for a rule that makes one model or pair), within ``limits``.

    ``experiments``: what runs by default, with its sizes, in addition to experiments whose own files have sizes for this scale.
    ``extends: SCALE`` includes everything in that scale's file; keys given beside it override it one by one.
    ``by_architecture``: a model is an architecture of ``workflow/models.csv``, built with random weights where it is measured.
    """

    data: Data
    pairs: dict[Annotated[Name, _no_other_folder(*RUN_FOLDERS)], Pair]
    compute: Compute = Compute()
    needs: dict[str, Needs] = {}
    limits: Limits = Limits()
    by_architecture: bool = False
    experiments: dict[str, Size] = {}

    @field_validator("pairs")
    @classmethod
    def _has_main(cls, pairs: dict[str, Pair]) -> dict[str, Pair]:
        if MAIN not in pairs:
            raise ValueError(f"no pair is called {MAIN}")
        return pairs

    @model_validator(mode="after")
    def _check(self) -> ScaleSettings:
        trains = self.needs.get("offline", Needs())
        trained = self.compute.device == "cuda" and not self.by_architecture
        if trained and trains.gpu != self.compute.processes:
            raise ValueError(f"compute.processes is {self.compute.processes}, but needs.offline.gpu is {trains.gpu}")
        return self

    @property
    def datasets(self) -> list[Dataset]:
        """Every dataset of the main pair."""
        return self.data.datasets + self.data.extra

    @property
    def every_dataset(self) -> list[Dataset]:
        """Every dataset of any pair."""
        return list(dict.fromkeys([*self.datasets, *(name for pair in self.pairs.values() for name in pair.datasets)]))

    @property
    def named_models(self) -> dict[str, str]:
        """The files, folders and hub ids that the scale names as models, by key."""
        return {} if self.by_architecture else {key: name for key, name in self._models.items() if name}

    @property
    def named_architectures(self) -> dict[str, str]:
        """What the scale names as models to be built with random weights, by key; '' where it names none."""
        return self._models if self.by_architecture else {}

    @property
    def _models(self) -> dict[str, str]:
        models = {name: pair.models.items() for name, pair in self.pairs.items()}
        return {f"pairs.{name}.{role}": model.model or "" for name in models for role, model in models[name]}

    def datasets_of(self, pair: str) -> list[Dataset]:
        """The datasets that the models of a pair learn, and that the pair is measured on."""
        return self.pairs[pair].datasets or self.datasets

    def within(self, resource: Literal["runtime", "mem_mb"], wanted: int) -> int:
        """What a job that wants so much of a resource requests: no more than the limit."""
        limit = getattr(self.limits, resource)
        return wanted if limit is None else min(wanted, limit)

    def asked(self, rule: str, pair: str = MAIN) -> Needs:
        """What a job of a rule wants; ``latency`` stands for every stage whose name begins with it."""
        names = (f"{rule}.{pair}", rule, "latency" if rule.startswith("latency_") else rule)
        return next((self.needs[name] for name in names if name in self.needs), Needs())
