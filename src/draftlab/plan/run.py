"""One run: what ``--config`` asks for, on a scale, with these experiments; and where its files lie."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, PrivateAttr, field_validator

from draftlab.core.settings import Dataset, Settings, Template
from draftlab.data import registry, sources
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW
from draftlab.files.packages import PACKAGES, package_of
from draftlab.files.seals import content_digest
from draftlab.files.weights import is_gguf
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.latency.settings import Engine
from draftlab.models.config import context_of
from draftlab.plan.grids import validated
from draftlab.plan.plan import Experiment, check_datasets, load_experiment
from draftlab.plan.scale import MAIN, Pair, Scale, ScaleSettings
from draftlab.stages._places import Places
from draftlab.stages._stage import NoInputs, Variant, cell_file
from draftlab.stages.latency_requests import Settings as Requests
from draftlab.train.settings import Training

ANSWERING = ("osd_offline", "osd_latency_dataset")
"""What a run on prompts of one's own does by default: would an adapted draft help on them?"""
MEASURED = 40
"""Requests of one's own that are timed, where as many are held out: fewer than 30 show nothing."""

HUB_ID = re.compile(r"\w[\w.-]*/[\w.-]+(@[\w./-]+)?")


DIGESTS = Path("results/.digests.json")
"""Digests of what lies outside, by place, inode, size and times."""


def content_of_model(name: str | None, weights: bool = True) -> str:
    """Digest of a model that is a folder or a file, with or without its weights; '' for a hub id, whose revision names its content."""
    return content_digest(name, weights, DIGESTS) if name else ""


def context_of_drafts(pair: Pair) -> int:
    """How long a request the drafts of a pair can read that lie in a folder or a file, as far as they say; 0: any."""
    named = (own.model for own in pair.drafts.values())
    return min((size for name in named if name and os.path.exists(name) and (size := context_of(name))), default=0)


class RunConfig(Settings):
    """What ``snakemake --config key=value`` may say."""

    scale: Scale = "laptop"
    sizes: str | None = Field(None, description="a YAML file whose keys override the scale's file")
    raw: str | None = Field(None, description="folder with the real datasets' raw files")
    dataset: str | None = Field(None, description="a file with your own prompts")
    target: str | None = Field(
        None, description="folder or GGUF file of the target, or OWNER/NAME[@REVISION] on the hub"
    )
    draft: str | None = Field(None, description="folder or GGUF file of the draft, or OWNER/NAME[@REVISION] on the hub")
    models: dict[str, str] = Field(
        {}, description="models for single roles: {pair.role: MODEL}, such as {multidraft.target: FILE.gguf}"
    )
    answers: dict[str, Any] = Field(
        {},
        description="how the main pair's target answers, overriding the scale: {engine: openai, url: 'http://HOST:PORT/v1'}",
    )
    template: Template | None = Field(None, description="chat template for the prompts; own: the tokenizer's")
    experiments: str | None = Field(
        None,
        description="reproduction (default), all, or names separated by commas; with your own prompts, those that need nothing else",
    )
    name: str | None = Field(None, pattern=r"^\w[\w.+-]*$", description="folder under results/")
    tracker: Literal["tensorboard"] | None = Field(None, description="where to write the curves as well")

    show_tokens: bool = Field(True, description="whether the report shows one request's text as tokens")

    @field_validator("raw", "dataset", "target", "draft")
    @classmethod
    def _is_no_flag(cls, value: str | None) -> str | None:
        """Prefix a file whose name begins with a dash, so that it is not read as a flag."""
        return f"./{value}" if value and value.startswith("-") else value

    @property
    def answers_alone(self) -> bool:
        """Whether it asks what adaptation does for prompts of one's own, and nothing else."""
        return self.dataset is not None and self.experiments is None

    @property
    def everywhere(self) -> dict[str, str]:
        """The models that it names for every pair, by role."""
        return {role: name for role in ("target", "draft") if (name := getattr(self, role))}


def _check_places(run: RunConfig, by_architecture: bool) -> None:
    """Check that files and folders exist; a name ``owner/name`` that does not exist is left to the hub."""
    named = {key: getattr(run, key) for key in ("raw", "dataset", "target", "draft")} | run.models
    for key, value in named.items():
        is_model = key not in ("raw", "dataset")
        if is_model and by_architecture:
            continue
        if value and set("{}") & set(value):
            remedy = "rename the file or folder"
            raise UserError(f"{key}: braces are wildcards in a workflow: {value}", file="--config", remedy=remedy)
        if is_model and value and "@" not in value and not os.path.exists(value) and os.path.isdir(value.split("/")[0]):
            remedy = "check the path; if you mean a model on the hub, give its revision: OWNER/NAME@main"
            raise UserError(
                f"{key}: no such folder: {value}, though {value.split('/')[0]}/ exists", file="--config", remedy=remedy
            )
        if is_model and package_of(value) in PACKAGES:
            continue
        if value and not (os.path.exists(value) or (is_model and HUB_ID.fullmatch(value))):
            what = f"{key}: no such file or folder: {value}"
            remedy = "check the path; a hub id is OWNER/NAME or OWNER/NAME@REVISION" if is_model else "check the path"
            raise UserError(what, file="--config", remedy=remedy)
        if value and is_model and os.path.exists(value):
            context_of(value)  # refuses what is no model, or cannot be represented


class Run(Settings):
    """Everything that the Snakefile needs to know about one run."""

    name: str
    config: RunConfig
    settings: ScaleSettings
    experiments: dict[str, Experiment]
    known: dict[str, Experiment]
    _cells: dict[str, dict[str, list[Variant]]] = PrivateAttr(default_factory=dict)

    @property
    def scale(self) -> Scale:
        return self.config.scale

    @property
    def folder(self) -> Path:
        """Where all of its files lie."""
        return Path("results") / self.name

    @property
    def given(self) -> list[str]:
        """Every ``key=value`` of ``--config`` that its tables depend on and that is not the default, the scale's always."""
        chosen = self.config.model_dump(exclude_defaults=True, exclude={"tracker"})
        return [f"{key}={value}" for key, value in ({"scale": self.scale} | chosen).items()]

    @property
    def raw_folder(self) -> str | None:
        """Where raw files are read from: a folder of real datasets, or a file of your own prompts."""
        return self.config.dataset or self.config.raw

    def content_of(self, dataset: Dataset, split: Literal["train", "eval"]) -> str:
        """Digest of the raw files of a split: other content reruns what reads them."""
        raw = Path(self.raw_folder) if self.raw_folder else None
        return sources.content_of(dataset, split, self.settings.data.source, raw, DIGESTS)

    def of_stage(self, *stages: str) -> list[str]:
        """Names of the experiments of these stages that exist at this scale, asked for or not: one may need another's drafts."""
        return [name for name, experiment in self.known.items() if experiment.stage in stages]

    def cells(self, experiment: str) -> dict[str, list[Variant]]:
        """The cells of one experiment at this run's scale, made once: every job asks; your own prompts or target replace the scale's.

        A target that you name is measured as it is: only the small one trained on the spot is inflated. ``datasets`` of a multi-draft
        stage are those of the pair that the cell names, or all of them.
        """
        if experiment not in self._cells:
            own = self.settings.data.datasets if self.config.dataset else None
            planned = self.known[experiment].cells(self.scale, experiment, own)
            if self.config.answers_alone:
                planned = {cell: [own for own in every if _answers(own)] or every for cell, every in planned.items()}
            self._cells[experiment] = {
                cell: [Variant(own.labels, self._adapted(own.settings)) for own in variants]
                for cell, variants in planned.items()
            }
        return self._cells[experiment]

    def _adapted(self, settings: Any) -> Any:
        """Add to the settings what the run sets for every cell: the device for training, and the pair's datasets."""
        fields = type(settings).model_fields
        as_it_is = {"inflated_layers": 0, "inflated_ffn": 0, "inflated_widths": 1} if self.config.target else {}
        compute = self.settings.compute.model_dump(exclude={"processes"})
        # A measurement names its own device.
        values: dict[str, Any] = as_it_is if isinstance(settings, Engine) else compute | as_it_is
        if not isinstance(settings, Training) and "datasets" in fields:
            known = self.settings.datasets_of(settings.pair)
            values |= {"datasets": [name for name in settings.datasets if name in known] or known}
        if self.config.dataset and isinstance(settings, Requests):
            values["requests"] = max(settings.requests, min(MEASURED, self.settings.data.eval))
        return settings.model_copy(update={key: value for key, value in values.items() if key in fields})

    @property
    def places(self) -> Places:
        """Where the files of this run lie, as its cells look for them."""
        settings = self.settings
        models = {name: pair.models for name, pair in settings.pairs.items() if settings.by_architecture}
        return Places(
            run=self.folder,
            answers={name: pair.answers for name, pair in settings.pairs.items()},
            datasets={name: settings.datasets_of(name) for name in settings.pairs},
            labelled=tuple(settings.data.label),
            routers=settings.data.router,
            classifier=settings.data.classifier,
            architectures={
                name: {role: str(own.model) for role, own in roles.items()} for name, roles in models.items()
            },
        )

    def inputs(self, experiment: str, cell: str) -> NoInputs:
        """The files that a cell takes, typed as its stage wants them."""
        variants = self.cells(experiment)[cell]
        return self.known[experiment].of_stage.inputs.locate([own.settings for own in variants], self.places)

    def pair_of(self, experiment: str, cell: str) -> str:
        """The pair of models that a cell speaks of."""
        return getattr(self.cells(experiment)[cell][0].settings, "pair", MAIN)

    def reads(self, experiment: str, cell: str) -> list[str]:
        """Every file that must be there before a cell runs; of a model its configuration, of an architecture none."""
        settings = [own.settings for own in self.cells(experiment)[cell]]
        files = self.inputs(experiment, cell).reads(settings)
        models = [] if self.settings.by_architecture else [path / "config.json" for path in files.pop("models", [])]
        files.pop("models", None)
        drafts = [path.parents[1] / "rows.csv" for path in models if "cells" in path.parts]  # a cell distilled it
        models = [path for path in models if "cells" not in path.parts]
        return [str(path) for path in (*models, *drafts, *(path for kind in files.values() for path in kind))]

    def cell_file(self, experiment: str, cell: str) -> dict[str, Any]:
        """What the file of a cell says: everything that its job needs."""
        stage = self.known[experiment].of_stage
        return cell_file(stage, experiment, cell, self.cells(experiment)[cell], self.inputs(experiment, cell))


def load_run(config: Mapping[str, Any], workflow: Path) -> Run:
    """Read the plan of a run from ``--config`` values and the ``workflow`` folder."""
    run = validated(RunConfig, dict(config), Place("--config"))
    path = workflow / "scales" / f"{run.scale}.yaml"
    values = _with_base(path)
    if run.sizes:
        path = Path(run.sizes)
        values = _joined(values, read_yaml(path))
    settings = validated(ScaleSettings, values, Place(path))
    _check_places(run, settings.by_architecture)
    _check_needs(settings, workflow, Place(path))
    check_datasets(settings.every_dataset, Place(path))
    settings = _adapted(settings, run)
    every = {path.stem: load_experiment(path) for path in sorted((workflow / "experiments").glob("*.yaml"))}
    for name, size in settings.experiments.items():
        if name not in every:
            raise Place(path).blame(
                f"no experiment named {name!r}", ["experiments", name], remedy="name those of experiments/"
            )
        every[name] = every[name].at(run.scale, size, path)
    wanted = _wanted(run, every, settings)
    suffixes = [
        run.scale,
        *(key for key in ("sizes", "raw", "dataset", "target", "draft", "models") if getattr(run, key)),
    ]
    return Run(
        name=run.name or "-".join(suffixes),
        config=run,
        settings=settings,
        experiments={name: every[name] for name in wanted if run.scale in every[name].scales},
        known={name: experiment for name, experiment in every.items() if run.scale in experiment.scales},
    )


def run_of(words: Iterable[str]) -> Run:
    """The run of ``KEY=VALUE`` words, as for ``snakemake --config``."""
    given = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in words)}
    return load_run(given, WORKFLOW)


def _with_base(path: Path) -> Any:
    """A scale's values merged over those of the scale that it ``extends``: mappings are merged by key, and null removes a key."""
    own = read_yaml(path)
    if not isinstance(own, dict) or "extends" not in own:
        return own
    base = path.with_name(f"{own.pop('extends')}.yaml")
    return _joined(_with_base(base), own)


def _joined(base: Any, own: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(own, dict):
        return own
    joined = base | {key: _joined(base.get(key), value) for key, value in own.items()}
    return {key: value for key, value in joined.items() if value is not None}


def _adapted(settings: ScaleSettings, run: RunConfig) -> ScaleSettings:
    """Put the user's data, models and template into the scale; encoder-decoders keep their own models and template."""
    data, pairs = settings.data, dict(settings.pairs)
    if run.raw:
        raw = Path(run.raw)
        extra = [name for name in data.extra if _is_held(name, raw)]
        data = data.model_copy(update={"source": "raw", "extra": extra})
        pairs = {
            name: pair.model_copy(update={"datasets": _held(pair.datasets, raw)}) if pair.datasets else pair
            for name, pair in pairs.items()
        }
    if run.dataset:
        data = data.model_copy(update={"source": "raw", "datasets": ["prompts"], "extra": []})
        pairs = {
            name: pair.model_copy(update={"datasets": ["prompts"]}) if name != MAIN else pair
            for name, pair in pairs.items()
        }
    for name, pair in pairs.items():
        if pair.target.family == "llama":
            own = "own" if _has_template(run.target) else None
            template = run.template or own or pair.answers.template
            answers = pair.answers.model_copy(update={"template": template})
            pairs[name] = pair.with_models(run.everywhere).model_copy(update={"answers": answers})
    if run.answers:
        how = validated(Answers, pairs[MAIN].answers.model_dump() | run.answers, Place("--config: answers"))
        pairs[MAIN] = pairs[MAIN].model_copy(update={"answers": how})
    for key, model in run.models.items():
        of, _, role = key.rpartition(".")
        of = of or MAIN
        if of not in pairs or role not in pairs[of].models:
            allowed = ", ".join(f"{name}.{role}" for name, pair in pairs.items() for role in pair.models)
            raise UserError(f"models: no model named {key!r}", file="--config", remedy=f"allowed: {allowed}")
        pairs[of] = pairs[of].with_models({role: model})
    return settings.model_copy(update={"data": data, "pairs": pairs})


def _has_template(target: str | None) -> bool:
    """Whether a target is a package, or a GGUF file with a chat template, which is then applied to its prompts."""
    if not target or not is_gguf(target):
        return package_of(target) is not None
    from draftlab.files.gguf_header import read_header

    return "tokenizer.chat_template" in read_header(target).metadata


def _check_needs(settings: ScaleSettings, workflow: Path, where: Place) -> None:
    """Check that resources are given only to rules that ask for some."""
    from draftlab.stages import STAGES

    texts = [file.read_text(encoding="utf-8") for file in sorted(workflow.rglob("*.smk"))]
    rules = {name for text in texts for name in re.findall(r'resources_of\("(\w+)"', text)} | set(STAGES) | {"latency"}
    for name in settings.needs:
        rule, _, pair = name.partition(".")
        if rule not in rules or (pair and pair not in settings.pairs):
            what, remedy = f"needs: no rule asks for {name!r}", f"allowed: {', '.join(sorted(rules))}"
            raise where.blame(what, ["needs", name], remedy=remedy)


def _held(datasets: Sequence[Dataset], folder: Path) -> list[Dataset]:
    """The datasets with raw files in the folder; all datasets if there are none, and reading them then raises the error."""
    return [name for name in datasets if _is_held(name, folder)] or list(datasets)


def _is_held(dataset: Dataset, folder: Path) -> bool:
    return dataset in PACKAGES or registry.find(dataset).lies_in(folder)


def _wanted(run: RunConfig, every: Mapping[str, Experiment], settings: ScaleSettings) -> list[str]:
    """The experiments of the run: from a group, those whose datasets are available; an experiment named alone must be able to run."""
    datasets = settings.every_dataset
    lacking = {
        name: sorted(_needed(experiment, run) - set(datasets))
        for name, experiment in every.items()
        if run.scale in experiment.scales
    }
    if run.answers_alone and all(run.scale in every[name].scales for name in ANSWERING):
        return list(ANSWERING)
    if run.experiments in ("all", "reproduction", None):
        chosen = [
            name
            for name in every
            if run.experiments == "all" or every[name].paper != "beyond" or name in settings.experiments
        ]
        own_models = bool(run.everywhere)  # then nobody asks about further models of the scale
        return [
            n for n in chosen if not (lacking.get(n) or (own_models and _has_other_models(every[n], run, settings)))
        ]
    names = [name.strip() for name in (run.experiments or "").split(",")]
    for name in names:
        if name not in every:
            raise UserError(
                f"no experiment named {name!r}", file="--config experiments", remedy=f"allowed: {', '.join(every)}"
            )
        if run.scale not in every[name].scales:
            what, known = f"{name} does not exist at scale {run.scale}", ", ".join(every[name].scales)
            remedy = f"it exists at {known}" if known else "run it at a scale that names it in workflow/scales/*.yaml"
            raise UserError(what, file="--config experiments", remedy=remedy)
        if lacking.get(name):
            what = f"{name} needs dataset {', '.join(lacking[name])}; this run has {', '.join(sorted(set(datasets)))}"
            raise UserError(what, file="--config experiments", remedy="add its raw files, or leave the experiment out")
    return names


def _answers(variant: Variant) -> bool:
    """Whether a run needs this variant to say what adaptation does: no distillation, or the way whose draft is kept and timed."""
    method = variant.labels.get("method")
    return method in (None, "original", getattr(variant.settings, "save", None)) and variant.settings.seed == 0


def _has_other_models(experiment: Experiment, run: RunConfig, settings: ScaleSettings) -> bool:
    """Whether an experiment trains models besides those that the run names, such as another pair's or drafts of other sizes."""
    if run.scale not in experiment.scales:
        return False
    every = (own.settings for variants in experiment.cells(run.scale).values() for own in variants)
    jobs = [own for own in every if isinstance(own, Training)]
    return any(settings.pairs[own.pair].target.family != "llama" or own.drafts_opened != ["draft"] for own in jobs)


def _needed(experiment: Experiment, run: RunConfig) -> set[Dataset]:
    """The datasets that an experiment's cells need; the user's own file replaces those of an axis ``dataset``."""
    cells = experiment.cells(run.scale, datasets=["prompts"] if run.dataset else None).values()
    named = (
        own.settings.datasets
        if isinstance(own.settings, Training) or getattr(own.settings, "quality", False)  # which has references
        else [getattr(own.settings, "dataset", "")]
        for variants in cells
        for own in variants
    )
    return {dataset for datasets in named for dataset in datasets if dataset}
