"""One run: the experiments that ``--config`` asks for on a scale, their cells, and the files that each cell reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import PrivateAttr

from draftlab.core.settings import Dataset, Settings
from draftlab.data import sources
from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW
from draftlab.files.registries import short
from draftlab.files.validated import validated
from draftlab.files.yaml_files import Place
from draftlab.latency.settings import Engine
from draftlab.plan.chosen import ON_ADAPTATION, experiments_of, shows_adaptation
from draftlab.plan.command_line import read_value
from draftlab.plan.config import CHANGES, DIGESTS, RunConfig, check_models, check_names
from draftlab.plan.experiment import Experiment, check_datasets
from draftlab.plan.own import check_own, with_own
from draftlab.plan.scale import MAIN, Scale, ScaleSettings
from draftlab.plan.scale_file import check_needs, check_sizes, read_scale, says_only_how_jobs_run
from draftlab.stages._decoding import Decoding
from draftlab.stages._places import Places
from draftlab.stages._schemes import own_verifiers
from draftlab.stages._stage import NoInputs, Variant, cell_file
from draftlab.stages.latency_requests import Settings as Requests
from draftlab.train.settings import Training

MEASURED = 40
"""The user's requests that are timed, where as many are held out: fewer than 30 show nothing."""


class Run(Settings):
    """One run: its ``experiments``, and ``at_scale``, all experiments of its scale, whose drafts they may need."""

    name: str
    config: RunConfig
    settings: ScaleSettings
    experiments: dict[str, Experiment]
    at_scale: dict[str, Experiment]
    _cells: dict[str, dict[str, list[Variant]]] = PrivateAttr(default_factory=dict)

    @property
    def scale(self) -> Scale:
        return self.config.scale

    @property
    def folder(self) -> Path:
        """The folder of all its files."""
        return Path("results") / self.name

    @property
    def given(self) -> list[str]:
        """``key=value`` of the scale and of every other key of ``--config`` that the tables depend on and that has no default value."""
        chosen = self.config.model_dump(exclude_defaults=True, exclude={"tracker"})
        return [f"{key}={value}" for key, value in ({"scale": self.scale} | chosen).items()]

    @property
    def has_own_models(self) -> bool:
        """Whether the models, their sizes or their prompts may differ from the scale's, and so from those of a paper."""
        if any(getattr(self.config, key) for key in CHANGES if key not in ("raw", "sizes")):
            return True
        decode = [name for name, one in self.at_scale.items() if issubclass(one.stage_kind.settings, Decoding)]
        return bool(self.config.sizes) and not says_only_how_jobs_run(Path(str(self.config.sizes)), decode)

    @property
    def raw_folder(self) -> str | None:
        """The folder of the real datasets' raw files, or the file of the user's prompts."""
        return self.config.dataset or self.config.raw

    def content_of(self, dataset: Dataset, split: Literal["train", "eval"]) -> str:
        """Digest of the raw files of a split: other content reruns what reads them."""
        raw = Path(self.raw_folder) if self.raw_folder else None
        return sources.content_of(dataset, split, self.settings.data.source, raw, DIGESTS)

    def called(self, experiment: str) -> str:
        """What commands call an experiment: its name, or the user's own file."""
        return self.config.own_experiments.get(experiment, experiment)

    def of_stage(self, *stages: str) -> list[str]:
        """Names of the experiments of these stages at the scale."""
        return [name for name, experiment in self.at_scale.items() if experiment.stage in stages]

    def cells(self, experiment: str) -> dict[str, list[Variant]]:
        """The cells of one experiment, with the user's prompts or target in place of the scale's. Cached, because every job asks."""
        if experiment not in self._cells:
            datasets = self.settings.data.datasets if self.config.dataset else None
            cells = self.at_scale[experiment].cells(self.scale, datasets)
            if self.config.asks_only_about_adaptation and experiment in ON_ADAPTATION:
                cells = {cell: list(filter(shows_adaptation, variants)) or variants for cell, variants in cells.items()}
            self._cells[experiment] = {
                cell: [Variant(variant.labels, self._adapted(variant.settings)) for variant in variants]
                for cell, variants in cells.items()
            }
        return self._cells[experiment]

    def _adapted(self, settings: Any) -> Any:
        """The settings of a variant with what the run sets for every cell.

        Training gets the scale's device; a measurement names its own. Only a target that is trained here is inflated, never one that exists.
        ``datasets`` of a multi-draft stage are limited to those of its pair, and none of them means all. A distilled draft is the one that learnt
        the user's prompts, if there are any.
        """
        values: dict[str, Any] = {}
        if not isinstance(settings, Engine):
            values |= self.settings.compute.model_dump(exclude={"processes"})
        pair = self.settings.pairs.get(getattr(settings, "pair", MAIN))
        inflated = pair.inflated if pair is not None and not pair.target.model else None
        if inflated and "inflated_layers" not in settings.model_fields_set:
            values |= inflated.settings
        fields = type(settings).model_fields
        if not isinstance(settings, Training) and "datasets" in fields:
            known = self.settings.datasets_of(settings.pair)
            values["datasets"] = [name for name in settings.datasets if name in known] or known
        if self.config.dataset and isinstance(settings, Decoding) and settings.distilled:
            values["distilled"] = "prompts"
        if self.config.dataset and isinstance(settings, Requests):
            values["requests"] = max(settings.requests, min(MEASURED, self.settings.data.eval))
        return settings.model_copy(update={key: value for key, value in values.items() if key in fields})

    @property
    def places(self) -> Places:
        """Where the stages find the files of this run."""
        settings = self.settings
        architectures = {
            name: {role: recipe.model or "" for role, recipe in pair.models.items()}
            for name, pair in settings.pairs.items()
            if settings.by_architecture
        }
        return Places(
            run=self.folder,
            answers={name: pair.answers for name, pair in settings.pairs.items()},
            labelled=tuple(settings.data.label),
            routers=settings.data.router,
            classifier=settings.data.classifier,
            architectures=architectures,
        )

    def inputs(self, experiment: str, cell: str) -> NoInputs:
        """The input files of a cell, typed as its stage defines them."""
        variants = self.cells(experiment)[cell]
        return self.at_scale[experiment].stage_kind.inputs.locate(
            [variant.settings for variant in variants], self.places
        )

    def pair_of(self, experiment: str, cell: str) -> str:
        """The pair of models of a cell."""
        return getattr(self.cells(experiment)[cell][0].settings, "pair", MAIN)

    def reads(self, experiment: str, cell: str) -> list[str]:
        """Every file that must exist before a cell runs. A model stands for its configuration, an architecture for no file."""
        settings = [variant.settings for variant in self.cells(experiment)[cell]]
        files = self.inputs(experiment, cell).reads(settings)
        models = files.pop("models", [])
        paths = [path for kind in files.values() for path in kind]
        if not self.settings.by_architecture:
            paths += map(made_with, models)
        paths += [self.folder / "verifiers" / f"{short(name)}.txt" for one in settings for name in own_verifiers(one)]
        return list(dict.fromkeys(map(str, paths)))

    @property
    def own_verifiers(self) -> dict[str, str]:
        """The user's own verifiers by their short names, which are those of files; ``UserError`` if two share one."""
        found: dict[str, str] = {}
        for experiment in self.at_scale:
            for variants in self.cells(experiment).values():
                for name in (name for variant in variants for name in own_verifiers(variant.settings)):
                    if found.setdefault(short(name), name) != name:
                        what = f"{found[short(name)]} and {name} have one name, {short(name)}"
                        raise UserError(what, remedy="rename one of the files")
        return found

    def made_files(self, experiment: str, cell: str) -> set[tuple[str, ...]]:
        """The files of the run that a cell reads, without the user's own, as parts of their paths below the run's folder."""
        paths = map(Path, self.reads(experiment, cell))
        return {path.relative_to(self.folder).parts for path in paths if path.is_relative_to(self.folder)}

    def cell_file(self, experiment: str, cell: str) -> dict[str, Any]:
        """The content of a cell's file: everything that its job needs."""
        stage = self.at_scale[experiment].stage_kind
        return cell_file(stage, experiment, cell, self.cells(experiment)[cell], self.inputs(experiment, cell))


def made_with(model: Path) -> Path:
    """The file that exists once a model does; for a draft that a cell distilled, the table of that cell."""
    is_of_cell = model.parts[2:3] == ("cells",)  # below results/NAME
    return model.parent / "rows.csv" if is_of_cell else model / "config.json"


def load_run(given: Mapping[str, Any], workflow: Path) -> Run:
    """Plan a run from ``--config`` values and the ``workflow`` folder."""
    config = validated(RunConfig, dict(given), Place("--config"))
    settings = read_scale(workflow / "scales" / f"{config.scale}.yaml", config.sizes)
    path = config.sizes_file(workflow)
    check_own(settings, config, path)
    check_needs(settings, workflow, Place(path))
    check_datasets([*settings.every_dataset, *settings.data.train_of, *settings.data.raw_rows_of], Place(path))
    settings = with_own(settings, config)
    check_sizes(settings, path)
    if config.sizes:
        check_models(settings.named_models, path)
    if settings.data.asks_classifier:
        check_models({"data.classifier": settings.data.classifier}, path)
    experiments, at_scale = experiments_of(config, settings, workflow)
    name = config.name or config.default_name
    return Run(name=name, config=config, settings=settings, experiments=experiments, at_scale=at_scale)


def run_of(config: Iterable[str]) -> Run:
    """The run of ``KEY=VALUE`` arguments, as for ``snakemake --config``."""
    arguments = list(config)
    if without := [argument for argument in arguments if "=" not in argument]:
        raise UserError(f"{without[0]} has no value", file="--config", remedy="write KEY=VALUE")
    check_names(arguments)
    given = {key: read_value(text) for key, _, text in (argument.partition("=") for argument in arguments)}
    return load_run(given, WORKFLOW)
