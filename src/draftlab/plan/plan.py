"""A run's plan: the experiments' YAML files, their cells, and which of them a run makes.

A file that asks for anything unknown is refused before any job starts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PrivateAttr

from draftlab.data import registry
from draftlab.errors import UserError
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.plan.grids import combinations, validated, variants
from draftlab.plan.scales import Answers, Recipe, Scale, ScaleSettings, Settings, Template
from draftlab.plan.stages import STAGES, Axis, Engine, Job, Live, OnPairs, Training

WORKFLOW = Path(__file__).parents[3] / "workflow"
CELL = re.compile(r"[A-Za-z0-9_.+-]+")
"""A cell's name is a folder, and a wildcard of the rules."""
NAME = re.compile(r"[a-z0-9_]+")
HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")


PROFILES: dict[str, dict[str, Any]] = {
    "paper_2023": {"update_interval": 1, "learning_rate": 1e-5, "clip": 1.0},
    "readme_2024": {"update_interval": 8, "learning_rate": 1e-4, "clip": 0.0},
}
"""How OSD's scripts updated a draft online, before and after the paper: ``profile: NAME`` in an experiment's file stands for these keys."""


class Finding(Settings):
    """How an experiment answers its question in one sentence, from its table.

    The rows of ``left`` less those of ``right`` (or a constant), over the same requests, or the best of ``best``'s settings less the next
    one: an interval above 0 says ``more``, one below it ``less``, any other ``level``. The texts may name ``{gap}``, ``{left}``,
    ``{right}``, ``{n}``, ``{best}`` and ``{second}``. ``each`` repeats the difference for every value of these columns; texts that name
    ``{each}`` are chosen by all of these together (``level`` where they disagree), not by all rows pooled. ``measure`` is
    summed numerator and denominator, by default those of the ``layout``, as are the ``digits``.
    """

    left: dict[str, Any] = {}
    right: dict[str, Any] | float = 0.0
    best: list[str] = []
    each: list[str] = []
    measure: tuple[str, str | None] | None = None
    digits: int | None = None
    more: str
    less: str = ""
    level: str


class Layout(Settings):
    """Which columns of an experiment's table become ``rows`` and ``columns`` of the printed one, and what a cell holds.

    A cell is ``sum(above) / sum(below)``, or the mean of ``above`` when there is no ``below``; ``best`` says which end is good;
    ``window`` keeps a part of each stream, ``where`` rows with these values; ``exact`` says why a table without units to
    draw has no interval, ``note`` what else a reader must know, ``emulated`` that the target is an inflated one up to scale laptop.
    """

    rows: list[str] = Field(min_length=1)
    columns: list[str] = []
    above: str
    below: str | None = None
    best: Literal["largest", "smallest"] | None = None
    digits: int = 3
    window: tuple[float, float] | None = None
    where: dict[str, str] = {}
    exact: str = "exact, so no interval"
    note: str = ""
    emulated: bool = False


class Size(Settings):
    """What one scale changes of an experiment: values of axes, and fixed settings."""

    axes: dict[str, Axis] = {}
    fixed: dict[str, Any] = {}


class Experiment(Settings):
    """One YAML file: one table and one figure of a paper, or one question beyond it."""

    title: str
    question: str
    paper: Literal["osd", "mdss", "beyond"]
    artefact: str
    finding: Annotated[list[Finding], BeforeValidator(lambda said: [said] if isinstance(said, dict) else said)] = []
    layout: Layout | None = None
    stage: str
    axes: dict[str, Axis] = {}
    fixed: dict[str, Any] = {}
    scales: dict[Scale, Size]

    @property
    def compared(self) -> list[str]:
        """What tells its rows apart, in its order: its axes, the settings that are lists, the axes inside its jobs."""
        names = list(self.axes)
        if not issubclass(STAGES[self.stage], Job):  # whose rows carry settings and no labels
            named = [fields for values in self.axes.values() if isinstance(values, dict) for fields in values.values()]
            names += [key for fields in named for key in fields]
        for fixed in (self.fixed, *(size.fixed for size in self.scales.values())):
            for key, value in fixed.items():
                names += value if key == "inner" else [key] if isinstance(value, list) and len(value) > 1 else []
        return list(dict.fromkeys(names))

    def cells(
        self, scale: Scale, file: Path | str = "an experiment", datasets: Sequence[str] | None = None
    ) -> dict[str, Settings]:
        """Cell name -> its stage's settings, one for each combination of the axes; an error names ``file``.

        An axis is a list of values, or a mapping from a name to the several settings that the name stands for.
        ``datasets`` replaces the values of an axis ``dataset``.
        """
        size, where = self.scales[scale], place(file, scale)
        if unknown := sorted(set(size.axes) - set(self.axes)):
            raise where.blame(f"no axis named {unknown}", unknown[:1], remedy=f"the axes are {sorted(self.axes)}")
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
            if cell in found or not CELL.fullmatch(cell):
                what = f"two cells named {cell!r}" if cell in found else f"{cell!r} names a cell"
                remedy = "give each choice of axes a name of letters, digits, _ . + -"
                raise where.blame(what, list(labels)[-1:], remedy=remedy)
            found[cell] = validated(stage, settings, where)
        return found


def place(file: Path | str, scale: Scale) -> Place:
    """What an experiment's file says of a cell at ``scale``."""
    return Place(file, (("scales", scale), ("fixed",), ("axes",)))


def load_experiment(path: Path) -> Experiment:
    """Read and check one experiment; every cell of every scale is built, so a bad value is found at once."""
    if not NAME.fullmatch(path.stem):
        raise UserError("no name of an experiment", file=path, remedy="use small letters, digits and _: the rules do")
    experiment = validated(Experiment, _expanded(read_yaml(path), Place(path)), Place(path))
    if experiment.stage not in STAGES:
        remedy = f"allowed: {', '.join(sorted(STAGES))}"
        raise Place(path).blame(f"unknown stage {experiment.stage!r}", ["stage"], remedy=remedy)
    for scale in experiment.scales:
        where = place(path, scale)
        for cell in experiment.cells(scale, path).values():
            runs = [own for _, own in variants(cell, where)] if isinstance(cell, Job) else [cell]
            _check_datasets([name for own in runs for name in _named(own)], where)
            if len({getattr(own, "pair", "") for own in runs}) > 1:
                raise where.blame("pair differs inside a cell", ["pair"], remedy="make it an axis: a job has one pair")
    return experiment


def _expanded(said: Any, where: Place) -> Any:
    """What a file says with each ``profile: NAME`` replaced by its keys; those that stand beside it win."""
    if not isinstance(said, dict):
        return said
    found = {key: _expanded(value, where) for key, value in said.items()}
    if not isinstance(found.get("profile"), str):  # an axis may have this name
        return found
    if (name := found.pop("profile")) not in PROFILES:
        raise where.blame(f"unknown profile {name!r}", [name], remedy=f"allowed: {', '.join(PROFILES)}")
    return PROFILES[name] | found


def _named(cell: Settings) -> list[str]:
    """Every dataset that a cell names."""
    names = [getattr(cell, "dataset", ""), *getattr(cell, "datasets", []), *getattr(cell, "topics", [])]
    return [name for name in names if name]


def _check_datasets(names: Iterable[str], where: Place) -> None:
    if unknown := sorted(set(names) - set(registry.load())):
        remedy = f"allowed: {', '.join(registry.load())}"
        raise where.blame(f"unknown dataset {unknown[0]!r}", unknown[:1], remedy=remedy)


class RunConfig(Settings):
    """What ``snakemake --config key=value`` may say."""

    scale: Scale = "laptop"
    raw: str | None = Field(None, description="folder of raw files of the real datasets")
    dataset: str | None = Field(None, description="a file of prompts of your own")
    target: str | None = Field(None, description="folder of the target, or OWNER/NAME[@REVISION] of the hub")
    draft: str | None = Field(None, description="folder of the draft, or OWNER/NAME[@REVISION] of the hub")
    template: Template | None = Field(None, description="chat template of the prompts; own is the tokenizer's")
    experiments: str = Field("reproduction", description="reproduction, all, or names separated by commas")
    name: str | None = Field(None, pattern=r"^\w[\w.+-]*$", description="folder under results/")
    tracker: Literal["tensorboard"] | None = Field(None, description="where the curves go too")

    @property
    def by_architecture(self) -> bool:
        """Whether a model is the name of an architecture (``draftlab.latency.shapes``), built with random weights where it is measured."""
        return self.scale in ("shapes", "shapes_cpu")


def _check_places(run: RunConfig) -> None:
    """Files and folders must be there; ``owner/name`` that is not there is left to the hub."""
    for key in ("raw", "dataset", "target", "draft"):
        value = getattr(run, key)
        is_model = key in ("target", "draft")
        if is_model and run.by_architecture:
            continue
        if value and not (os.path.exists(value) or (is_model and HUB_ID.fullmatch(value))):
            what = f"{key}: no such file or folder: {value}"
            remedy = "check the path; a hub id is OWNER/NAME or OWNER/NAME@REVISION" if is_model else "check the path"
            raise UserError(what, file="--config", remedy=remedy)


def _check_needs(settings: ScaleSettings, workflow: Path, where: Place) -> None:
    """Only a rule that asks for resources can be given some."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(workflow.rglob("*.smk"))]
    rules = {name for text in texts for name in re.findall(r'resources_of\("(\w+)"\)', text)}
    if unknown := sorted(settings.needs.keys() - rules):
        what, remedy = f"needs: no rule asks for {unknown[0]!r}", f"allowed: {', '.join(sorted(rules))}"
        raise where.blame(what, ["needs", unknown[0]], remedy=remedy)


class Run(Settings):
    """Everything that the Snakefile needs to know about one run."""

    name: str
    config: RunConfig
    settings: ScaleSettings
    experiments: dict[str, Experiment]
    known: dict[str, Experiment]
    _cells: dict[str, dict[str, Settings]] = PrivateAttr(default_factory=dict)

    @property
    def scale(self) -> Scale:
        return self.config.scale

    @property
    def given(self) -> list[str]:
        """Every ``key=value`` of ``--config`` that its tables depend on and that is not the default, the scale's always."""
        chosen = self.config.model_dump(exclude_defaults=True, exclude={"tracker"})
        return [f"{key}={value}" for key, value in ({"scale": self.scale} | chosen).items()]

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

    def home(self, pair: str) -> str:
        """Where the models and answers of a pair lie."""
        return f"results/{self.name}/{pair}".rstrip("/")

    def answers(self, pair: str) -> Answers:
        """How the target of a pair answers."""
        return (getattr(self.settings, pair).answers if pair else None) or self.settings.answers

    def of_stage(self, *stages: str) -> list[str]:
        """Names of the experiments of these stages that exist at this scale, asked for or not: one may need another's drafts."""
        return [name for name, experiment in self.known.items() if experiment.stage in stages]

    def cells(self, experiment: str) -> dict[str, Settings]:
        """The cells of one experiment at this run's scale, made once: every job asks; your own prompts or target replace the scale's.

        A target that you name is measured as it is: only the small one trained on the spot is inflated. Multi-draft ``datasets`` are
        those of the pair that the cell names, or all of them.
        """
        if experiment not in self._cells:
            self._cells[experiment] = self._planned(experiment)
        return self._cells[experiment]

    def _planned(self, experiment: str) -> dict[str, Settings]:
        own = self.settings.data.datasets if self.config.dataset else None
        compute = self.settings.compute.model_dump(exclude={"processes"})
        as_it_is = {"inflated_layers": 0, "inflated_ffn": 0, "inflated_widths": 1} if self.config.target else {}
        pair = self.settings.multidraft.datasets

        def replaced(cell: Settings) -> dict[str, Any]:
            if isinstance(cell, OnPairs | Live):
                return {"datasets": [name for name in cell.datasets if name in pair] or pair}
            values = as_it_is if isinstance(cell, Engine) else compute | as_it_is  # a measurement names its own device
            return {key: value for key, value in values.items() if key in type(cell).model_fields}

        return {
            name: cell.model_copy(update=replaced(cell))
            for name, cell in self.known[experiment].cells(self.scale, experiment, own).items()
        }


def load_run(config: Mapping[str, Any], workflow: Path) -> Run:
    """Read the plan of a run from ``--config`` values and the ``workflow`` folder."""
    run = validated(RunConfig, dict(config), Place("--config"))
    _check_places(run)
    path = workflow / "scales" / f"{run.scale}.yaml"
    file = Place(path)
    settings = validated(ScaleSettings, read_yaml(path), file)
    _check_needs(settings, workflow, file)
    data = settings.data
    _check_datasets([*data.datasets, *data.extra, *settings.multidraft.datasets, *settings.t5.datasets], file)
    if run.raw:
        held, of_t5 = (_held(pair.datasets, Path(run.raw)) for pair in (settings.multidraft, settings.t5))
        extra = [name for name in settings.data.extra if _is_held(name, Path(run.raw))]
        settings = _with(
            settings, data={"source": "raw", "extra": extra}, multidraft={"datasets": held}, t5={"datasets": of_t5}
        )
    if run.dataset:
        own = {"source": "raw", "datasets": ["prompts"], "extra": []}
        only: dict[str, Any] = {"datasets": ["prompts"]}
        settings = _with(settings, data=own, multidraft=only, t5=only)
    for role in ("target", "draft"):
        if model := getattr(run, role):
            mine, its = (
                {role: getattr(pair, role).model_copy(update={"model": model})}
                for pair in (settings, settings.multidraft)
            )
            settings = _with(settings.model_copy(update=mine), multidraft=its)
    if run.template:
        settings = _with(settings, answers={"template": run.template})
        if answers := settings.multidraft.answers:
            settings = _with(settings, multidraft={"answers": answers.model_copy(update={"template": run.template})})
    every = {path.stem: load_experiment(path) for path in sorted((workflow / "experiments").glob("*.yaml"))}
    held = [*settings.data.datasets, *settings.data.extra, *settings.t5.datasets, *settings.multidraft.datasets]
    wanted = _wanted(run, every, held)
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
        own_models = bool(run.target or run.draft)  # then nobody asks about further models of the scale
        return [n for n in chosen if not (lacking.get(n) or (own_models and _has_other_models(every[n], run.scale)))]
    names = [name.strip() for name in run.experiments.split(",")]
    for name in names:
        if name not in every:
            raise UserError(
                f"no experiment named {name!r}", file="--config experiments", remedy=f"allowed: {', '.join(every)}"
            )
        if run.scale not in every[name].scales:
            what = f"{name} does not exist at scale {run.scale}"
            raise UserError(what, file="--config experiments", remedy=f"it does at {', '.join(every[name].scales)}")
        if lacking.get(name):
            what = f"{name} needs dataset {', '.join(lacking[name])}; this run has {', '.join(sorted(set(datasets)))}"
            raise UserError(what, file="--config experiments", remedy="add its raw files, or leave the experiment out")
    return names


def _has_other_models(experiment: Experiment, scale: Scale) -> bool:
    """Whether it trains models of the scale besides its target and its ``draft``: another pair, or drafts of other sizes."""
    if scale not in experiment.scales:
        return False
    jobs = [cell for cell in experiment.cells(scale).values() if isinstance(cell, Training)]
    models = {(own.pair, own.draft, getattr(own, "larger", "draft")) for job in jobs for _, own in variants(job)}
    return not models <= {("", "draft", "draft")}


def _needed(experiment: Experiment, run: RunConfig) -> set[str]:
    """The datasets that an experiment's cells cannot do without; a file of one's own takes the place of those of an axis ``dataset``."""
    cells = experiment.cells(run.scale, datasets=["prompts"] if run.dataset else None).values()
    named = (
        cell.datasets
        if isinstance(cell, Training) or (isinstance(cell, Live) and cell.quality)  # which has references
        else [getattr(cell, "dataset", "")]
        for cell in cells
    )
    return {dataset for datasets in named for dataset in datasets if dataset}
