"""One run: the experiments that ``--config`` asks for on a scale, their cells, and the files that each cell reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import PrivateAttr

from draftlab.core.settings import Dataset, Settings
from draftlab.data import cleaners, generators, registry, sources
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW
from draftlab.files.json_files import read_json
from draftlab.files.packages import PACKAGES, package_of
from draftlab.files.weights import is_gguf
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.latency.settings import Engine
from draftlab.plan.command_line import read_value
from draftlab.plan.config import DIGESTS, RunConfig, check_files, check_names
from draftlab.plan.experiment import Experiment, check_datasets, load_experiment, place
from draftlab.plan.grids import validated
from draftlab.plan.scale import MAIN, Pair, Scale, ScaleSettings
from draftlab.stages import STAGES
from draftlab.stages._decoding import Decoding
from draftlab.stages._places import Places
from draftlab.stages._stage import NoInputs, Variant, cell_file
from draftlab.stages.latency_requests import BEFORE, DISTILLED
from draftlab.stages.latency_requests import Settings as Requests
from draftlab.train.settings import Training

ANSWERING = ("osd_offline", "osd_latency_dataset")
"""The experiments of a run on the user's prompts: would an adapted draft help on them?"""
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
    def raw_folder(self) -> str | None:
        """The folder of the real datasets' raw files, or the file of the user's prompts."""
        return self.config.dataset or self.config.raw

    def content_of(self, dataset: Dataset, split: Literal["train", "eval"]) -> str:
        """Digest of the raw files of a split: other content reruns what reads them."""
        raw = Path(self.raw_folder) if self.raw_folder else None
        return sources.content_of(dataset, split, self.settings.data.source, raw, DIGESTS)

    def check_data(self) -> None:
        """Check the models and read the user's raw files that the cells need, so that a wrong one is refused before any job starts."""
        pairs: set[str] = set()
        needed: set[Dataset] = set()
        for file in {file for name in self.experiments for cell in self.cells(name) for file in self.reads(name, cell)}:
            kind, *rest = Path(file).relative_to(self.folder).parts
            if kind in self.settings.pairs:  # its tokenizer reads the prompts of every dataset of the pair
                pairs.add(kind)
                needed.update(self.settings.datasets_of(kind))
            elif kind == "data":
                needed.add(rest[0])
        models = {key: model for key, model in self.settings.named_models.items() if key.split(".")[1] in pairs}
        scale = WORKFLOW / "scales" / f"{self.scale}.yaml"
        files = {key.removeprefix("pairs."): model for key, model in models.items() if model.endswith(".gguf")}
        missing = {key: file for key, file in files.items() if not os.path.exists(file)}
        if missing:
            named = ", ".join(f"{key}: FILE" for key in missing)
            remedy = f"its first lines say where to get them; put them here, or give models='{{{named}}}'; draftlab plan works without"
            what = f"missing model files, which a dry run reads too: {', '.join(missing.values())}"
            raise UserError(what, file=scale, remedy=remedy)
        check_files({}, models, scale)
        self._check_source(pairs, needed)
        for dataset in sorted(needed) if self.raw_folder else ():
            try:
                for split in sources.SPLITS:
                    self.content_of(dataset, split)
            except OSError as error:
                where = error.filename or self.raw_folder
                raise UserError(str(error.strerror), file=where, remedy="make it readable") from None
        template = self.settings.pairs[MAIN].answers.template
        if self.raw_folder and "prompts" in needed:
            own = sources.RawFiles(registry.find("prompts"), Path(self.raw_folder))
            if next(own.rows("train"), None) is None:
                raise UserError("it has no rows", file=self.raw_folder, remedy="name a file of prompts")
            if template != "rendered" and cleaners.are_rendered(own.rows("train"), template):
                remedy = "encode them as they are: template=rendered (draftlab verdict: --template rendered)"
                raise UserError("most prompts are in a chat template already", file=self.raw_folder, remedy=remedy)

    def _check_source(self, pairs: Iterable[str], datasets: Iterable[Dataset]) -> None:
        """Check that these pairs have a dataset to learn, and that the source of rows has these datasets."""
        where = Place(Path(self.config.sizes or WORKFLOW / "scales" / f"{self.scale}.yaml"))
        source = self.settings.data.source
        for pair in sorted(pairs):
            learns = not self.settings.by_architecture and not self.settings.pairs[pair].target.model
            if learns and not self.settings.datasets_of(pair):
                what = f"no dataset that the models of pair {pair} could learn"
                raise where.error(what, ["data", "datasets"], remedy="name some in data.datasets")
        absent = [name for name in sorted(datasets) if not _has(source, name)]
        if source == "raw" and not self.raw_folder and absent:
            remedy = "name the folder of raw files: --config raw=FOLDER"
            raise where.error("data.source is raw, but no folder is named", ["data", "source"], remedy=remedy)
        if absent and source != "raw":
            what = f"source {source} has no {absent[0]}"
            others = [name for name in registry.load() if _has(source, name)]
            remedy = f"give its files as --config raw=FOLDER, or use other datasets: {', '.join(others)}"
            raise where.error(what, ["data", "datasets", absent[0]], remedy=remedy)

    def of_stage(self, *stages: str) -> list[str]:
        """Names of the experiments of these stages at the scale."""
        return [name for name, experiment in self.at_scale.items() if experiment.stage in stages]

    def cells(self, experiment: str) -> dict[str, list[Variant]]:
        """The cells of one experiment, with the user's prompts or target in place of the scale's. Cached, because every job asks."""
        if experiment not in self._cells:
            datasets = self.settings.data.datasets if self.config.dataset else None
            cells = self.at_scale[experiment].cells(self.scale, experiment, datasets)
            if self.config.answers_alone and experiment in ANSWERING:
                cells = {cell: list(filter(_answers, variants)) or variants for cell, variants in cells.items()}
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
            name: {role: str(recipe.model) for role, recipe in pair.models.items()}
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
        return list(map(str, paths))

    def cell_file(self, experiment: str, cell: str) -> dict[str, Any]:
        """The content of a cell's file: everything that its job needs."""
        stage = self.at_scale[experiment].stage_kind
        return cell_file(stage, experiment, cell, self.cells(experiment)[cell], self.inputs(experiment, cell))


def _has(source: sources.SourceName, dataset: Dataset) -> bool:
    """Whether a source has rows of a dataset without a folder of raw files."""
    if source == "generator":
        return dataset in generators.GENERATORS or dataset in PACKAGES
    return source == "hub" and bool(registry.find(dataset).hub_id)


def made_with(model: Path) -> Path:
    """The file that exists once a model does; for a draft that a cell distilled, the table of that cell."""
    is_of_cell = model.parts[2:3] == ("cells",)  # below results/NAME
    return model.parent / "rows.csv" if is_of_cell else model / "config.json"


def load_run(config: Mapping[str, Any], workflow: Path) -> Run:
    """Plan a run from ``--config`` values and the ``workflow`` folder."""
    run = validated(RunConfig, dict(config), Place("--config"))
    path = workflow / "scales" / f"{run.scale}.yaml"
    values = _read_scale(path)
    if run.sizes:
        path = Path(run.sizes)
        values = _merged(values, read_yaml(path))
    settings = validated(ScaleSettings, values, Place(path))
    by_user = {} if settings.by_architecture else run.everywhere | run.models
    unread = {"raw": run.raw, "dataset": run.dataset, "template": run.template} if settings.by_architecture else {}
    if key := next(filter(unread.get, unread), None):
        what = f"{key}: scale {run.scale} reads no requests, because its models have random weights"
        raise UserError(what, file="--config", remedy="leave it out, or choose another scale")
    check_files({"raw": run.raw, "dataset": run.dataset}, by_user, "--config")
    _check_needs(settings, workflow, Place(path))
    check_datasets([*settings.every_dataset, *settings.data.train_of, *settings.data.raw_rows_of], Place(path))
    settings = _with_data(settings, run)
    settings = settings.model_copy(update={"pairs": _with_models(settings.pairs, run)})
    _check_sizes(settings, path)
    if run.sizes:
        check_files({}, settings.named_models, path)
    every = {path.stem: load_experiment(path) for path in sorted((workflow / "experiments").glob("*.yaml"))}
    for name, size in settings.experiments.items():
        if name not in every:
            what, remedy = f"no experiment named {name!r}", f"allowed: {', '.join(every)}"
            raise Place(path).error(what, ["experiments", name], remedy=remedy)
        every[name] = every[name].at(run.scale, size, path)
    at_scale = {name: experiment for name, experiment in every.items() if run.scale in experiment.scales}
    chosen = _choose(run, every, at_scale, settings)
    if not chosen:
        remedy = f"add some to `experiments:` of workflow/scales/{run.scale}.yaml"
        remedy = f"name one of {', '.join(at_scale)} as experiments=NAME" if at_scale else remedy
        raise UserError(f"scale {run.scale} has no experiment to run", file="--config", remedy=remedy)
    for name in chosen:
        _check_models(at_scale[name], run, settings, place(workflow / "experiments" / f"{name}.yaml", run.scale))
    return Run(
        name=run.name or run.default_name,
        config=run,
        settings=settings,
        experiments={name: at_scale[name] for name in chosen},
        at_scale=at_scale,
    )


def run_of(config: Iterable[str]) -> Run:
    """The run of ``KEY=VALUE`` arguments, as for ``snakemake --config``."""
    arguments = list(config)
    if without := [argument for argument in arguments if "=" not in argument]:
        raise UserError(f"{without[0]} has no value", file="--config", remedy="write KEY=VALUE")
    check_names(arguments)
    given = {key: read_value(text) for key, _, text in (argument.partition("=") for argument in arguments)}
    return load_run(given, WORKFLOW)


def _read_scale(path: Path, above: tuple[Path, ...] = ()) -> Any:
    """A scale's values merged over those of the scale that it ``extends``."""
    values = read_yaml(path)
    if not isinstance(values, dict) or "extends" not in values:
        return values
    base = path.with_name(f"{values.pop('extends')}.yaml")
    if not base.is_file():
        scales = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise Place(path).error(f"extends: no scale named {base.stem!r}", ["extends"], remedy=f"allowed: {scales}")
    if base in (path, *above):
        raise UserError(f"extends: {base.stem} extends itself", file=path, remedy="name another scale")
    return _merged(_read_scale(base, (path, *above)), values)


def _merged(base: Any, values: Any) -> Any:
    """Merge mappings by key, at every depth; null removes a key."""
    if not isinstance(base, dict) or not isinstance(values, dict):
        return values
    merged = base | {key: _merged(base.get(key), value) for key, value in values.items()}
    return {key: value for key, value in merged.items() if value is not None}


def _with_data(settings: ScaleSettings, run: RunConfig) -> ScaleSettings:
    """The scale with the user's raw files or prompts in place of its datasets."""
    data, pairs = settings.data, settings.pairs
    if run.raw:
        folder = Path(run.raw)

        def held(datasets: list[Dataset]) -> list[Dataset]:
            return [name for name in datasets if name in PACKAGES or registry.find(name).files_in(folder, "train")]

        data = data.model_copy(update={"source": "raw", "extra": held(data.extra)})
        # Where the folder has no dataset of a pair, reading them raises the error.
        pairs = {
            name: pair.model_copy(update={"datasets": held(pair.datasets) or pair.datasets})
            for name, pair in pairs.items()
        }
    if run.dataset:
        data = data.model_copy(update={"source": "raw", "datasets": ["prompts"], "extra": []})
        pairs = {
            name: pair if name == MAIN else pair.model_copy(update={"datasets": ["prompts"]})
            for name, pair in pairs.items()
        }
    return settings.model_copy(update={"data": data, "pairs": pairs})


def _with_models(scale_pairs: Mapping[str, Pair], run: RunConfig) -> dict[str, Pair]:
    """The pairs with the user's models, template and engine; encoder-decoders keep their template, and their models where none is named for them."""
    pairs = dict(scale_pairs)
    given = {name: dict(run.everywhere) if pair.target.family == "llama" else {} for name, pair in pairs.items()}
    for key, model in run.models.items():
        name, _, role = key.rpartition(".")
        name = name or MAIN
        if name not in pairs or role not in pairs[name].models:
            allowed = ", ".join(f"{name}.{role}" for name, pair in pairs.items() for role in pair.models)
            raise UserError(f"models: no model named {key!r}", file="--config", remedy=f"allowed: {allowed}")
        given[name][role] = model
    for name, pair in pairs.items():
        answers = pair.answers
        if pair.target.family == "llama":
            target = given[name].get("target", "")
            brings_its_own = bool(target) and not os.path.isdir(target) and _has_template(target)
            template = run.template or ("own" if brings_its_own else answers.template)
            answers = answers.model_copy(update={"template": template})
        pairs[name] = pair.with_models(given[name]).model_copy(update={"answers": answers})
    if run.answers:
        answers = validated(Answers, pairs[MAIN].answers.model_dump() | run.answers, Place("--config: answers"))
        pairs[MAIN] = pairs[MAIN].model_copy(update={"answers": answers})
    target = given[MAIN].get("target", "")
    if target and os.path.exists(target) and pairs[MAIN].answers.template == "own" and not _has_template(target):
        remedy = "name one: template=plain, vicuna_short or vicuna_v1.1 (draftlab verdict: --template)"
        raise UserError("the target has no chat template", file=target, remedy=remedy)
    return pairs


def _has_template(target: str) -> bool:
    """Whether a target, a package, a file or a folder, has a chat template; False for one on the hub, which is not known yet."""
    if package_of(target) is not None:
        return True
    if is_gguf(target):
        from draftlab.files.gguf_header import read_header

        return "tokenizer.chat_template" in read_header(target).metadata
    config = Path(target, "tokenizer_config.json")
    return Path(target, "chat_template.jinja").exists() or (
        config.is_file() and bool(read_json(config).get("chat_template"))
    )


def _check_needs(settings: ScaleSettings, workflow: Path, where: Place) -> None:
    """Check that resources are given only to rules that request some."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(workflow.rglob("*.smk"))]
    rules = {name for text in texts for name in re.findall(r'resources_of\("(\w+)"', text)} | set(STAGES) | {"latency"}
    for name in settings.needs:
        rule, _, pair = name.partition(".")
        if rule not in rules or (pair and pair not in settings.pairs):
            what, remedy = f"needs: no rule asks for {name!r}", f"allowed: {', '.join(sorted(rules))}"
            raise where.error(what, ["needs", name], remedy=remedy)


def _check_sizes(settings: ScaleSettings, path: Path) -> None:
    """Check that the models that are made here can be made: a draft would fail only after its target was trained."""
    for name, pair in settings.pairs.items() if not settings.by_architecture else ():
        new, context = pair.answers.max_new_tokens, pair.target.context
        if new >= context and pair.target.family == "llama" and not pair.target.model:
            what = f"target of pair {name}: an answer of {new} tokens leaves no room for a prompt in a context of {context}"
            remedy = "lower answers.max_new_tokens, or raise target.context"
            raise Place(path).error(what, ["pairs", name, "answers", "max_new_tokens"], remedy=remedy)
        for role, recipe in pair.models.items():
            keys = ["pairs", name, *(["drafts"] if role in pair.drafts else []), role]
            head, most = recipe.hidden // recipe.heads, {"pruned": "layers", "pca": "hidden"}.get(recipe.design, "")
            if recipe.model:
                continue
            if recipe.family == "llama" and recipe.design != "pruned" and (head == 0 or head % 2):
                what = f"{role} of pair {name}: {recipe.heads} heads of a model that is {recipe.hidden} wide"
                raise Place(path).error(what, [*keys, "heads"], remedy="give each head an even width")
            if most and not pair.target.model and getattr(recipe, most) > getattr(pair.target, most):
                sizes = f"{most} is {getattr(recipe, most)}, but the target has {getattr(pair.target, most)}"
                remedy = f"a {recipe.design} draft has no more than its target"
                raise Place(path).error(f"{role} of pair {name}: {sizes}", [*keys, most], remedy=remedy)


def _choose(
    run: RunConfig, every: Mapping[str, Experiment], at_scale: Mapping[str, Experiment], settings: ScaleSettings
) -> list[str]:
    """The names of the experiments of a run; only an experiment that the user names must be able to run."""
    datasets = set(settings.every_dataset)
    if run.answers_alone and all(name in at_scale for name in ANSWERING):
        return list(ANSWERING)
    if run.experiments in ("all", "reproduction", None):
        return [
            name
            for name, experiment in at_scale.items()
            if (run.experiments == "all" or experiment.paper != "beyond" or name in settings.experiments)
            and _needed(experiment, run) <= datasets
            and not (run.everywhere and _has_other_models(experiment, run, settings))
        ]
    names = [name.strip() for name in (run.experiments or "").split(",")]
    for name in names:
        if name not in every:
            what, remedy = f"no experiment named {name!r}", f"allowed: {', '.join(every)}"
        elif name not in at_scale:
            scales = ", ".join(every[name].scales)
            what = f"{name} does not exist at scale {run.scale}"
            remedy = f"it exists at {scales}" if scales else "run it at a scale that names it in workflow/scales/*.yaml"
        elif missing := sorted(_needed(at_scale[name], run) - datasets):
            what = f"{name} needs dataset {', '.join(missing)}; this run has {', '.join(sorted(datasets))}"
            remedy = "leave the experiment out"
            if not run.dataset:
                remedy += ", or name it in `data.datasets` of --config sizes=FILE; with raw=, add its files"
        else:
            continue
        raise UserError(what, file="--config experiments", remedy=remedy)
    return names


def _check_models(experiment: Experiment, run: RunConfig, settings: ScaleSettings, where: Place) -> None:
    """Check that the scale has the pair and the drafts of each cell, and that a draft that learns has a dataset."""
    cells = experiment.cells(run.scale, datasets=["prompts"] if run.dataset else None)
    for asked in (variant.settings for variants in cells.values() for variant in variants):
        pair = getattr(asked, "pair", MAIN)
        if pair not in settings.pairs:
            remedy = f"pairs of scale {run.scale}: {', '.join(settings.pairs)}"
            raise where.error(f"unknown pair {pair!r}", ["pair", pair], remedy=remedy)
        known = settings.pairs[pair].drafts
        timed = [name for name in getattr(asked, "contenders", []) if name not in (BEFORE, DISTILLED)]
        for name in [*getattr(asked, "drafts_opened", [getattr(asked, "role", "")]), *timed]:
            if name and name not in known:
                remedy = f"drafts of pair {pair} at scale {run.scale}: {', '.join(known)}"
                raise where.error(f"unknown draft {name!r}", [name], remedy=remedy)
        if isinstance(asked, Training) and "" in asked.datasets:
            raise where.error(
                "dataset is missing", ["dataset"], remedy=f"add it: {', '.join(settings.datasets_of(pair))}"
            )


def _answers(variant: Variant) -> bool:
    """Whether a variant shows what adaptation does: it has the original draft, or distils the draft that is kept and timed."""
    method = variant.labels.get("method")
    return method in (None, "original", getattr(variant.settings, "save", None)) and variant.settings.seed == 0


def _has_other_models(experiment: Experiment, run: RunConfig, settings: ScaleSettings) -> bool:
    """Whether an experiment trains models besides the user's, such as another pair's or drafts of other sizes."""
    variants = (variant for cell in experiment.cells(run.scale).values() for variant in cell)
    trainings = [variant.settings for variant in variants if isinstance(variant.settings, Training)]
    return any(
        (training.pair in settings.pairs and settings.pairs[training.pair].target.family != "llama")
        or training.drafts_opened != ["draft"]
        for training in trainings
    )


def _needed(experiment: Experiment, run: RunConfig) -> set[Dataset]:
    """The datasets that an experiment's cells need; the user's prompts replace the values of an axis ``dataset``."""
    needed: set[Dataset] = set()
    for variants in experiment.cells(run.scale, datasets=["prompts"] if run.dataset else None).values():
        for settings in (variant.settings for variant in variants):
            has_references = getattr(settings, "quality", False)  # quality is measured against references
            needs_all = isinstance(settings, Training) or has_references
            needed.update(settings.datasets if needs_all else [getattr(settings, "dataset", "")])
            needed.update(getattr(settings, "topics", []))
    return needed - {""}
