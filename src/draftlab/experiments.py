"""A run's plan: the scale, the experiments' YAML files, their cells, and what each cell's command line is.

One frozen model per stage says which settings exist and which values are allowed; a YAML file that asks for anything else
is refused before any job starts. The Snakefile imports this module, so it must stay free of torch.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import importlib.util
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from draftlab.datasets import registry, streams
from draftlab.errors import UserError

Scale = Literal["smoke", "laptop", "shapes", "paper"]
Dataset = str
Template = Literal["vicuna_v1.1", "vicuna_short", "plain", "own"]
SampleSource = Literal["none", "teacher", "student", "mix_token", "mix_request"]
Loss = Literal["none", "hard_label", "forward_kl", "reverse_kl", "jsd_0.1", "jsd_0.5", "jsd_0.9", "tvd", "jeffreys_0.9"]
LossPositions = Literal["rejected", "all", "block_end", "repository"]


class Settings(BaseModel):
    """Base of every model here: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


# --- what a scale fixes ------------------------------------------------------------------------------------------


class Data(Settings):
    """Where prompts come from, and how many of each dataset are used."""

    source: Literal["generator", "raw", "hub"]
    datasets: list[str]
    extra: list[str] = Field([], description="further datasets; a raw folder may lack them")
    raw_rows: int = Field(gt=0, description="raw rows fetched of the training split")
    train: int = Field(gt=0, description="requests of the stream and of offline distillation")
    train_of: dict[str, int] = Field({}, description="other numbers of them, by dataset")
    eval: int = Field(gt=0, description="held-out requests")
    pairs: int = Field(gt=0, description="positions whose target and draft distributions are recorded, per dataset")
    seed: int = 0
    label: dict[Literal["language", "topic"], Literal["langid", "hub"]] = Field(
        {}, description="how classes are found that the rows do not carry"
    )
    router: dict[streams.GroupBy, Literal["langid", "naive_bayes", "hub"]] = Field(
        {"dataset": "naive_bayes", "language": "langid", "topic": "naive_bayes"},
        description="how a request's class is named as it arrives",
    )
    on_bad_row: Literal["keep", "stop"] = "keep"
    profile: Literal["clean", "osd_repo_2024"] = "clean"


class Recipe(Settings):
    """A model: one that exists (``model``: hub id or folder), or one trained on the spot."""

    model: str | None = None
    revision: str | None = None
    hidden: int = 64
    layers: int = 1
    heads: int = 2
    ffn: int = 172
    context: int = 512
    vocabulary: int = 1024
    steps: int = 300
    batch: int = 16
    learning_rate: float = 3e-3
    documents: int = 8000
    seed: int = 0


class Answers(Settings):
    """How the target answers: the recorded pass that every variant shares."""

    max_new_tokens: int = Field(gt=0)
    template: Template = "vicuna_short"
    batch: int = Field(gt=0, default=64)
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"


class Compute(Settings):
    """Where drafts are trained: device, bfloat16 products over float32 weights, processes (``accelerate launch``)."""

    device: Literal["cpu", "cuda"] = "cpu"
    autocast: bool = False
    processes: int = Field(default=1, gt=0)


class Pair(Settings):
    """Another pair of models: the datasets that it is measured on, which are also what small models of it learn."""

    datasets: list[Dataset] = []
    target: Recipe = Recipe()
    draft: Recipe = Recipe()


class ScaleSettings(Settings):
    """One ``workflow/scales/<scale>.yaml``; ``drafts`` are further ones beside ``draft``, ``multidraft`` the pair of the multi-draft
    experiments."""

    data: Data
    target: Recipe
    draft: Recipe
    drafts: dict[str, Recipe] = {}
    answers: Answers
    compute: Compute = Compute()
    multidraft: Pair = Pair()


# --- stages of experiments ---------------------------------------------------------------------------------------


def _as_word(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value)


Nested = Annotated[str, BeforeValidator(_as_word)]
"""A mapping of a YAML file as one word of a command line (JSON)."""


class Job(Settings):
    """A stage that runs several variants in one process.

    ``inner`` holds axes like those of an experiment, looped inside the job; ``labels`` is filled in: the cell's place on the outer
    axes. Both become columns of the table.
    """

    labels: Nested = "{}"
    inner: Nested = "{}"


class Training(Job):
    """Settings that offline and online distillation share.

    ``batch``: requests per update of a draft trained on recorded answers; ``micro_batch`` (0: all) of them in one forward, the
    gradients added up. ``temperature`` is that of target and draft when they decode; the loss is always at temperature 1.
    """

    dataset: Dataset = ""
    draft: str = Field("draft", description="folder below models/")
    seed: int = 0
    temperature: float = Field(0.0, ge=0)
    learning_rate: float = Field(gt=0)
    batch: int = Field(gt=0)
    micro_batch: int = Field(0, ge=0)
    draft_len: int = Field(5, gt=0)
    loss: Loss = "forward_kl"
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float = Field(1.0, ge=0)
    device: Literal["cpu", "cuda"] = Field("cpu", description="the scale sets it (``compute``)")
    autocast: bool = Field(False, description="bfloat16 products over float32 weights; the scale sets it")

    @property
    def datasets(self) -> list[Dataset]:
        """The datasets whose recorded answers a job reads."""
        return [self.dataset]


class Offline(Training):
    """Distil a draft on answers, then measure it on the held-out requests.

    ``requests`` (0: all) bounds what it learns from. ``sample_batch`` requests are answered at once when the draft takes part: the
    draft that answered is then up to ``sample_batch / batch`` updates old. ``probes`` measures inside each epoch; ``live`` decodes
    the held-out requests as well, target and draft together, and counts. ``save`` names the ``method`` whose draft is kept (none: the
    first one).
    """

    sample_source: SampleSource = "teacher"
    epochs: int = Field(ge=0)
    requests: int = Field(0, ge=0)
    sample_batch: int = Field(64, gt=0)
    probes: int = Field(0, ge=0, description="measurements per epoch while training")
    draft_lens: list[int] = Field([], description="further draft lengths to measure")
    live: bool = False
    save: str = ""


class Online(Training):
    """Serve the stream in order; alpha of a request is measured before the update that uses it (OSD, Algorithm 1).

    Without ``stream`` the requests of ``dataset`` come in their order, else as that stream says (``streams.Stream``), each group's next
    ``aside`` requests kept apart. Before serving the draft is distilled on the first ``warm_share`` of each group of the stream or of
    what was kept apart (``warm_on``), ``warm_epochs`` times, or with as many updates as serving makes (``warm_fair``). While it serves
    it ``learns`` from every ``update_interval`` requests and ``replay`` older ones out of the last ``buffer`` (0: all); an update reaches the
    server ``lag`` requests later. ``drafts``: one for all, or one per true class, or per class that the router names.
    """

    stream: Nested = ""
    of: list[Dataset] = Field([], description="the datasets of the stream")
    aside: int = Field(0, ge=0)
    learns: bool = True
    update_interval: int = Field(gt=0)
    loss_positions: LossPositions = "rejected"
    lag: int = Field(0, ge=0)
    replay: int = Field(0, ge=0)
    buffer: int = Field(0, ge=0)
    warm_on: Literal["nothing", "stream", "aside"] = "nothing"
    warm_share: float = Field(1.0, gt=0, le=1)
    warm_epochs: int = Field(1, gt=0)
    warm_fair: bool = False
    drafts: Literal["shared", "by_group", "by_route"] = "shared"
    route_errors: float = Field(0.0, ge=0, le=1, description="share of requests sent to a wrong draft on purpose")
    measured_on: Literal["stream", "held_out"] = "stream"
    probes: int = Field(0, ge=0, description="measurements on the held-out requests along the stream")
    bin: int = Field(1, gt=0, description="requests summed in one row of the table")
    live: bool = Field(False, description="decode with the target instead of replaying its recorded answers")

    @property
    def datasets(self) -> list[Dataset]:
        return self.of or [self.dataset]

    @model_validator(mode="after")
    def _check(self) -> Online:
        if bool(self.stream) == bool(self.dataset) or bool(self.stream) != bool(self.of):
            raise ValueError("give a dataset, or a stream and the datasets that it is made of")
        if self.warm_on == "aside" and not (self.stream and self.aside):
            raise ValueError("warm_on aside needs a stream and requests kept aside: set aside")
        if self.probes and self.drafts != "shared":
            raise ValueError("probes measure one draft: drafts must be shared")
        if self.stream:
            _ = self.arrangement
        return self

    @property
    def arrangement(self) -> streams.Stream:
        """The stream, checked."""
        known = {field.name for field in dataclasses.fields(streams.Stream)}
        if unknown := sorted(set(json.loads(self.stream)) - known):
            raise ValueError(f"unknown key {unknown[0]!r} of the stream; allowed: {', '.join(sorted(known))}")
        try:
            return TypeAdapter(streams.Stream).validate_json(self.stream)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"stream.{first['loc'][0] if first['loc'] else ''}: {first['msg']}") from None


class Tokens(Training):
    """Which tokens a draft proposes, has accepted and lacks, before and after offline distillation (OSD, Fig. 7 and Table 6)."""

    epochs: int = Field(gt=0)
    temperature: float = Field(0.0, ge=0, le=0)


class Shares(Settings):
    """Share of each class of requests in equal slices of time (OSD, Figs. 2 and 10)."""

    dataset: Dataset
    group_by: streams.GroupBy
    slices: int = Field(gt=0)


class SpeedupTheory(Settings):
    """Eq. 1 of OSD over a grid (Fig. 8)."""

    curves: list[tuple[int, float]]
    alphas: list[float]


class Engine(Settings):
    """How a pair runs: in llama.cpp with ``weights``, ``threads`` and ``gpu_layers`` on a GPU (-1: all), or in torch on ``device``.

    ``inflated_layers`` > 0 makes a small target cost as much as a large one (``latency.inflate``).
    """

    backend: Literal["llama_cpp", "torch"] = "llama_cpp"
    device: Literal["cpu", "cuda"] = "cpu"
    inflated_layers: int = 0
    inflated_ffn: int = 0
    weights: Literal["f32", "f16", "q8_0", "q4_0"] = "f32"
    threads: int = Field(gt=0, default=1)
    gpu_layers: int = 0
    seed: int = 0


class LatencyAlpha(Engine):
    """Measured ms/token of llama.cpp at controlled acceptance (OSD, Tables 2 and 7)."""

    alpha: list[float]
    draft_len: list[int]
    blocks: int = Field(gt=0)
    rounds: int = Field(gt=0)


class LatencyLength(Engine):
    """Speed-up at controlled acceptance against the length of the answer, after a prefix (OSD, Table 8)."""

    alpha: list[float]
    length: list[int]
    prefix: int = Field(gt=0, default=512)
    draft_len: int = Field(gt=0)
    blocks: int = Field(gt=0)
    rounds: int = Field(gt=0)


class LatencyRequests(Engine):
    """One request after another by each contender: no speculation, and each draft (OSD, Table 3)."""

    dataset: Dataset
    draft_len: int = Field(gt=0)
    requests: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    adaptive: bool = Field(False, description="also with a draft length that follows the acceptance")


class LatencyCost(Engine):
    """Time of a draft step, a target step and of verifying several tokens, at context lengths and batch sizes."""

    context: list[int]
    batch: list[int]
    verified: list[int]
    blocks: int = Field(gt=0)


class LatencyBranches(Engine):
    """Cost of verifying K branches in one call (multi-draft) against one branch."""

    num_drafts: list[int]
    draft_len: int = Field(gt=0)
    context: int = Field(gt=0, default=128)
    blocks: int = Field(gt=0)


class LatencyUpdate(Engine):
    """One update of the draft against answering the requests between two updates (OSD, Table 9)."""

    prompt: int = Field(gt=0, default=64)
    generated: int = Field(gt=0, default=128)
    update_interval: int = Field(gt=0, default=8)
    blocks: int = Field(gt=0)


class LatencyNull(Engine):
    """The same contender against itself, many times: how often the comparison sees a winner where there is none."""

    repeats: int = Field(gt=0)
    pairs: int = Field(gt=1)
    steps: int = Field(gt=0)


class LatencyInterference(LatencyAlpha):
    """Serving at controlled acceptance while a draft trains on another core, and while none does."""

    update_batch: int = Field(gt=0, default=8, description="requests per update of the training process")
    update_tokens: int = Field(gt=0, default=64, description="tokens of each of them")


class Region(Settings):
    """Acceptance over the toy simplex of MDSS Fig. 2, exactly."""

    num_drafts: list[int]
    points: int = Field(gt=1)


class Cone(Settings):
    """The polyhedral check of the best acceptance (MDSS App. D), and the linear program against the formula."""

    num_tokens: list[int]
    num_drafts: list[int]
    cases: int = Field(gt=0, description="random laws per size, on which both are computed")
    seed: int = 0


class VerifierCost(Settings):
    """What a decision of each scheme costs (MDSS App. G)."""

    vocabs: list[int]
    num_drafts: list[int]
    batch: int = Field(gt=0)
    rounds: int = Field(gt=0)
    seed: int = 0


class OnPairs(Settings):
    """What experiments on recorded probability pairs share; ``datasets`` empty: all of the pair's.

    ``positions`` bounds how many of each dataset are used. ``top_k`` 0 keeps every token; ``synthetic`` adds the family of model-like laws.
    """

    datasets: list[Dataset] = []
    synthetic: bool = False
    positions: int = Field(gt=0, default=1_000_000)
    top_k: int = Field(ge=0, default=0)
    top_p: float = 1.0


class Acceptance(OnPairs):
    """Exact acceptance of multi-draft schemes (MDSS Table 2)."""

    schemes: list[str]
    num_drafts: list[int]
    draft_temperature: list[float]
    target_temperature: float = 1.0
    path_len: int = Field(gt=0, default=4, description="tokens of a path, for schemes that verify one")


class Regime(OnPairs):
    """Acceptance over a grid of target and draft temperatures, by the target's entropy."""

    num_drafts: int = Field(gt=1)
    target_temperature: list[float]
    draft_temperature: list[float]


class Sinkhorn(OnPairs):
    """Entropic optimal transport instead of the linear program: acceptance and cost against iterations."""

    num_drafts: list[int]
    draft_temperature: list[float]
    iterations: list[int]
    sharpness: list[float]
    rounds: int = Field(gt=0)


class Live(Settings):
    """Live decoding with several drafted sequences; ``datasets`` empty: all of the pair's.

    Every combination of the lists is a contender. A scheme ``NAME+block`` verifies by blocks once a single sequence is left.
    ``first_temperature``: of the first draft, where the drafts differ. ``top_k`` 0 keeps every token.
    """

    datasets: list[Dataset] = []
    schemes: list[str]
    num_drafts: list[int]
    draft_len: int = Field(gt=0)
    draft_temperature: list[float]
    first_temperature: float | None = None
    target_temperature: list[float] = [1.0]
    top_k: list[int] = [0]
    top_p: float = 1.0
    lp_threshold: list[int] = [5]
    requests: int = Field(gt=0)
    batch: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    quality: bool = Field(False, description="also ROUGE-L and BLEU of each answer")
    seed: int = 0


class OnlineMultidraft(Settings):
    """Specialists of several topics, learnt online, as non-identical drafts; against routing and copies of one shared draft."""

    mixture: str = Field(description="what the table calls this set of topics")
    topics: list[Dataset] = Field(min_length=2)
    schemes: list[str] = ["importance_truncated", "specinfer"]
    stream: int = Field(gt=0, description="requests of each topic that drafts learn from")
    requests: int = Field(gt=0, description="held-out requests of each topic that are decoded")
    update_interval: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    loss: Loss = "forward_kl"
    loss_positions: LossPositions = "all"
    draft_len: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    temperature: float = Field(1.0, gt=0)
    device: Literal["cpu", "cuda"] = "cpu"
    seeds: list[int]


STAGES: dict[str, type[Settings]] = {
    "offline": Offline,
    "online": Online,
    "tokens": Tokens,
    "shares": Shares,
    "speedup_theory": SpeedupTheory,
    "latency_alpha": LatencyAlpha,
    "latency_length": LatencyLength,
    "latency_requests": LatencyRequests,
    "latency_cost": LatencyCost,
    "latency_branches": LatencyBranches,
    "latency_update": LatencyUpdate,
    "latency_null": LatencyNull,
    "latency_interference": LatencyInterference,
    "region": Region,
    "cone": Cone,
    "verifier_cost": VerifierCost,
    "acceptance": Acceptance,
    "regime": Regime,
    "sinkhorn": Sinkhorn,
    "live": Live,
    "online_multidraft": OnlineMultidraft,
}


Axis = list[Any] | dict[str, dict[str, Any]]
"""Values of a setting; or names, each of which stands for several settings."""


def combinations(axes: Mapping[str, Axis]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every choice of one value on each axis: the values (or names) by axis, and the settings that they stand for."""
    options = [
        [({axis: name}, fields) for name, fields in values.items()]
        if isinstance(values, Mapping)
        else [({axis: value}, {axis: value}) for value in values]
        for axis, values in axes.items()
    ]
    for choice in itertools.product(*options):
        labels: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        for label, fields in choice:
            labels |= label
            settings |= fields
        yield labels, settings


class Size(Settings):
    """What one scale changes of an experiment: values of axes, and fixed settings."""

    axes: dict[str, Any] = {}
    fixed: dict[str, Any] = {}


class Experiment(Settings):
    """One YAML file: one table and one figure of a paper, or one question beyond it."""

    title: str
    question: str
    paper: Literal["osd", "mdss", "beyond"]
    artefact: str
    stage: str
    axes: dict[str, Axis] = {}
    fixed: dict[str, Any] = {}
    scales: dict[Scale, Size]

    def cells(self, scale: Scale, name: str, datasets: Sequence[str] | None = None) -> dict[str, Settings]:
        """Cell name -> its stage's settings, one for each combination of the axes.

        An axis is a list of values, or a mapping from a name to the several settings that the name stands for.
        ``datasets`` replaces the values of an axis ``dataset``.
        """
        size = self.scales[scale]
        if unknown := set(size.axes) - set(self.axes):
            raise UserError(f"{name}: no axis named {sorted(unknown)}", remedy=f"the axes are {sorted(self.axes)}")
        axes = {key: size.axes.get(key, values) for key, values in self.axes.items()}
        if datasets is not None and "dataset" in axes:
            axes["dataset"] = list(datasets)
        stage = STAGES[self.stage]
        found: dict[str, Settings] = {}
        for labels, fields in combinations(axes):
            settings = self.fixed | size.fixed | fields
            if issubclass(stage, Job):
                settings["labels"] = labels
            cell = ".".join(map(str, labels.values())) or "all"
            found[cell] = _validated(stage, settings, f"{name} at scale {scale}")
        return found


S = TypeVar("S", bound=BaseModel)
J = TypeVar("J", bound=Job)


def variants(job: J) -> list[tuple[dict[str, Any], J]]:
    """The runs inside one job: the columns that tell them apart, and the settings of each."""
    base = job.model_dump(exclude={"inner"})
    return [
        (json.loads(job.labels) | labels, _validated(type(job), base | fields, "inner"))
        for labels, fields in combinations(json.loads(job.inner))
    ]


def _validated(kind: type[S], values: Any, where: str) -> S:
    """Build ``kind`` from plain values; an error names the key, what is wrong with it and what is allowed."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or kind.__name__
        allowed = sorted(kind.model_fields) if first["type"] == "extra_forbidden" else first["msg"]
        remedy = f"allowed: {', '.join(allowed)}" if isinstance(allowed, list) else "change it in the file named"
        message = f"unknown key {key!r}" if first["type"] == "extra_forbidden" else f"{key}: {first['msg']}"
        if "input" in first and first["type"] != "missing" and not isinstance(first["input"], dict):
            message += f", not {first['input']!r}"
        raise UserError(message, file=where, remedy=remedy) from None


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="restore it from the repository") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise UserError(
            f"not YAML: {getattr(error, 'problem', error)}",
            file=path,
            line=mark.line + 1 if mark else None,
            remedy="repair the file",
        ) from None


def load_experiment(path: Path) -> Experiment:
    """Read and check one experiment; every cell of every scale is built, so a bad value is found at once."""
    experiment = _validated(Experiment, _read_yaml(path), str(path))
    if experiment.stage not in STAGES:
        raise UserError(
            f"unknown stage {experiment.stage!r}", file=path, remedy=f"allowed: {', '.join(sorted(STAGES))}"
        )
    for scale in experiment.scales:
        for cell in experiment.cells(scale, str(path)).values():
            if isinstance(cell, Job):
                variants(cell)
    return experiment


# --- a run -------------------------------------------------------------------------------------------------------


class RunConfig(Settings):
    """What ``snakemake --config key=value`` may say."""

    scale: Scale = "laptop"
    raw: str | None = Field(None, description="folder of raw files of the real datasets")
    dataset: str | None = Field(None, description="a file of prompts of your own")
    target: str | None = Field(None, description="hub id or folder of the target")
    draft: str | None = Field(None, description="hub id or folder of the draft")
    template: Template | None = Field(None, description="chat template of the prompts; own is the tokenizer's")
    experiments: str = Field("reproduction", description="reproduction, all, or names separated by commas")
    name: str | None = Field(None, description="folder under results/")


class Run(Settings):
    """Everything that the Snakefile needs to know about one run."""

    name: str
    config: RunConfig
    settings: ScaleSettings
    experiments: dict[str, Experiment]
    known: dict[str, Experiment]

    @property
    def scale(self) -> Scale:
        return self.config.scale

    @property
    def raw_folder(self) -> str | None:
        """Where raw files are read from: a folder of real datasets, or a file of your own prompts."""
        return self.config.dataset or self.config.raw

    @property
    def datasets(self) -> list[str]:
        """Every dataset that this run may use."""
        return self.settings.data.datasets + self.settings.data.extra

    @property
    def drafts(self) -> dict[str, Recipe]:
        """Every draft by the name of its folder."""
        return {"draft": self.settings.draft} | self.settings.drafts

    def of_stage(self, *stages: str) -> list[str]:
        """Names of the experiments of these stages that exist at this scale, asked for or not: one may need another's drafts."""
        return [name for name, experiment in self.known.items() if experiment.stage in stages]

    def cells(self, experiment: str) -> dict[str, Settings]:
        """The cells of one experiment at this run's scale; your own prompts or target replace those of the scale.

        A target that you name is measured as it is: only the small one trained on the spot is inflated. Empty ``datasets`` are
        those of the multi-draft pair.
        """
        own = self.settings.data.datasets if self.config.dataset else None
        compute = self.settings.compute.model_dump(exclude={"processes"})
        as_it_is = {"inflated_layers": 0, "inflated_ffn": 0} if self.config.target else {}

        def replaced(cell: Settings) -> dict[str, Any]:
            values = as_it_is if isinstance(cell, Engine) else compute  # a measurement names its own device
            return {key: value for key, value in values.items() if key in type(cell).model_fields}

        return {
            name: cell.model_copy(
                update=replaced(cell)
                | ({"datasets": self.settings.multidraft.datasets} if getattr(cell, "datasets", None) == [] else {})
            )
            for name, cell in self.known[experiment].cells(self.scale, experiment, own).items()
        }


def load_run(config: Mapping[str, Any], workflow: Path) -> Run:
    """Read the plan of a run from ``--config`` values and the ``workflow`` folder."""
    run = _validated(RunConfig, dict(config), "--config")
    settings = _validated(
        ScaleSettings, _read_yaml(workflow / "scales" / f"{run.scale}.yaml"), f"workflow/scales/{run.scale}.yaml"
    )
    if run.raw:
        held = _held(settings.multidraft.datasets, Path(run.raw))
        extra = [name for name in settings.data.extra if _is_held(name, Path(run.raw))]
        settings = _with(settings, data={"source": "raw", "extra": extra}, multidraft={"datasets": held})
    if run.dataset:
        own = {"source": "raw", "datasets": ["prompts"], "extra": []}
        settings = _with(settings, data=own, multidraft={"datasets": ["prompts"]})
    for role in ("target", "draft"):
        if model := getattr(run, role):
            mine, its = (
                {role: getattr(pair, role).model_copy(update={"model": model})}
                for pair in (settings, settings.multidraft)
            )
            settings = _with(settings.model_copy(update=mine), multidraft=its)
    if run.template:
        answers = settings.answers.model_copy(update={"template": run.template})
        settings = settings.model_copy(update={"answers": answers})
    every = {path.stem: load_experiment(path) for path in sorted((workflow / "experiments").glob("*.yaml"))}
    wanted = _wanted(run, every, settings.data.datasets + settings.data.extra)
    suffixes = [run.scale, *(key for key in ("raw", "dataset", "target", "draft") if getattr(run, key))]
    return Run(
        name=run.name or "-".join(suffixes),
        config=run,
        settings=settings,
        experiments={name: every[name] for name in wanted if run.scale in every[name].scales},
        known={name: experiment for name, experiment in every.items() if run.scale in experiment.scales},
    )


def _with(settings: ScaleSettings, **changes: dict[str, Any]) -> ScaleSettings:
    """The settings with these values in their parts."""
    parts = {part: getattr(settings, part).model_copy(update=values) for part, values in changes.items()}
    return settings.model_copy(update=parts)


def _held(datasets: Sequence[str], folder: Path) -> list[str]:
    """The datasets that have raw files in the folder; all of them if none has, and their absence is an error where they are read."""
    return [name for name in datasets if _is_held(name, folder)] or list(datasets)


def _is_held(dataset: str, folder: Path) -> bool:
    return any(any(folder.glob(pattern)) for pattern in registry.find(dataset).raw_train.split())


def _wanted(run: RunConfig, every: Mapping[str, Experiment], datasets: Sequence[str]) -> list[str]:
    """The experiments of the run: of a group, those whose datasets are there; a name that cannot run is an error."""
    lacking = {
        name: sorted(_needed(experiment, run) - set(datasets))
        for name, experiment in every.items()
        if run.scale in experiment.scales
    }
    if run.experiments in ("all", "reproduction"):
        chosen = [name for name in every if run.experiments == "all" or every[name].paper != "beyond"]
        return [name for name in chosen if not lacking.get(name)]
    names = [name.strip() for name in run.experiments.split(",")]
    for name in names:
        if name not in every:
            raise UserError(
                f"no experiment named {name!r}", file="--config experiments", remedy=f"allowed: {', '.join(every)}"
            )
        if lacking.get(name):
            what = f"{name} needs dataset {', '.join(lacking[name])}; this run has {', '.join(datasets)}"
            raise UserError(what, file="--config experiments", remedy="add its raw files, or leave the experiment out")
    return names


def _needed(experiment: Experiment, run: RunConfig) -> set[str]:
    """The datasets that an experiment's cells name; those of an axis ``dataset`` give way to a file of one's own."""
    if run.dataset and "dataset" in experiment.axes:
        return set()
    cells = experiment.cells(run.scale, "").values()
    named = (cell.datasets if isinstance(cell, Training) else [getattr(cell, "dataset", "")] for cell in cells)
    return {dataset for datasets in named for dataset in datasets if dataset}


def plain(job: Job) -> dict[str, Any]:
    """The settings of a job for its record, nested ones opened."""
    found = job.model_dump()
    return found | {key: json.loads(found[key]) for key in ("labels", "inner", "stream") if found.get(key)}


# --- names of files ----------------------------------------------------------------------------------------------


def pass_name(dataset: Dataset, split: str, temperature: float = 0.0) -> str:
    """The folder of a recorded pass below ``answers/``: one per dataset, split and temperature."""
    return f"{dataset}.{split}" + (f".t{temperature:g}" if temperature else "")


# --- command lines -----------------------------------------------------------------------------------------------


def flags(settings: Settings, **paths: Any) -> list[str]:
    """``--name value`` words of every setting of a stage."""
    return words({**settings.model_dump(), **paths})


def words(values: Mapping[str, Any]) -> list[str]:
    """``--name value`` words of plain values; a list becomes several words, ``None`` and empty text are left out."""
    found: list[str] = []
    for key, value in values.items():
        name = f"--{key.replace('_', '-')}"
        if value is None or value == "":
            continue
        if isinstance(value, bool):
            found.append(name if value else f"--no-{key.replace('_', '-')}")
        elif isinstance(value, (list, tuple)):
            found += [
                name,
                *(str(item) for entry in value for item in (entry if isinstance(entry, (list, tuple)) else [entry])),
            ]
        else:
            found += [name, str(value)]
    return found


def stream_parts(job: Online) -> list[str]:
    """The files that a job with a stream of its own reads: the order of requests, what is aside, what is held out."""
    found = [variant for _, variant in variants(job)]
    parts = {
        "stream": any(variant.drafts != "by_route" for variant in found),
        "routed": any(variant.drafts == "by_route" for variant in found),
        "aside": any(variant.warm_on == "aside" for variant in found),
        "held_out": True,
    }
    return [part for part, is_read in parts.items() if is_read and job.stream]


def stream_flags(job: Online, part: str) -> list[str]:
    """The words of ``draftlab data stream`` for one part: the stream itself, the rows after it, or the held-out requests by group."""
    stream = job.arrangement
    if part != "stream":
        kind: streams.Kind = "shuffled" if part == "aside" else "concatenated"
        skip, count = (stream.skip + stream.per_group, job.aside) if part == "aside" else (0, 0)
        stream = dataclasses.replace(stream, kind=kind, skip=skip, per_group=count, knots=(), weights=(), gates=())
    return words(dataclasses.asdict(stream))


# --- what a stage's code is --------------------------------------------------------------------------------------


def _source(module: str) -> Path | None:
    spec = importlib.util.find_spec(module)
    return Path(spec.origin) if spec and spec.origin and spec.origin.endswith(".py") else None


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@lru_cache
def _module(module: str) -> tuple[str, frozenset[str]]:
    """Normal form of one module's code (no comments, no docstrings) and the draftlab modules that it imports."""
    path = _source(module)
    if path is None:
        return "", frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = frozenset(
        name for name in _imports(tree) if name.startswith("draftlab.") and name != module and _exists(name)
    )
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return ast.dump(tree), imports


@lru_cache
def _exists(module: str) -> bool:
    try:
        return _source(module) is not None
    except ModuleNotFoundError:
        return False


@lru_cache
def code_digest(*modules: str) -> str:
    """Digest of these modules and of every draftlab module that they import, comments and docstrings left out.

    In a rule's ``params`` it makes an edit of the mathematics rerun what uses it, and an edit of a comment nothing.
    """
    seen: dict[str, str] = {}
    queue = list(modules)
    while queue:
        name = queue.pop()
        if name not in seen and name != __name__:  # what a plan says of a cell reaches it as flags
            seen[name], imports = _module(name)
            queue += imports
    return hashlib.sha256(json.dumps(sorted(seen.items())).encode()).hexdigest()[:16]
