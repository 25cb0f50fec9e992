"""The experiments that a run has, of all of its scale, and whether they can run on its data and models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from draftlab.core.settings import Dataset
from draftlab.errors import UserError
from draftlab.files.yaml_files import Place
from draftlab.models.config import head_in
from draftlab.plan.config import RunConfig, check_name
from draftlab.plan.experiment import Experiment, load_experiment, place
from draftlab.plan.scale import MAIN, ScaleSettings
from draftlab.stages._contenders import BEFORE, DISTILLED
from draftlab.stages._stage import NoInputs, Variant
from draftlab.stages.online import Settings as Online
from draftlab.train.settings import Offline, ReplayLog, Training

ON_ADAPTATION = ("osd_offline", "osd_latency_dataset")
"""The experiments of a run on the user's prompts that names none: would an adapted draft help on them?"""
WITH_HEAD = ("osd_offline", "osd_online")
"""The same where the draft is a released head, which draftlab does not run in llama.cpp."""
ON_HEADS = ("osd_epochs", "osd_online")
"""Experiments with such a draft that may be named: their drafts learn from the target's answers alone."""


def experiments_of(
    config: RunConfig, settings: ScaleSettings, workflow: Path
) -> tuple[dict[str, Experiment], dict[str, Experiment]]:
    """The experiments of a run, and all those of its scale, with the sizes that the scale's file gives some of them."""
    path = config.sizes_file(workflow)
    files = {file.stem: file for file in sorted((workflow / "experiments").glob("*.yaml"))}
    for name, file in config.own_experiments.items():
        check_name("experiments", file, "--config")
        others = {*config.named_experiments, str(files.get(name, file))} - {file}
        if twice := [other for other in others if Path(other).stem == name]:
            what = f"{twice[0]} has the name of the experiment {name} too"
            raise UserError(what, file=file, remedy="rename the file")
        files[name] = Path(file)
    every = {name: load_experiment(file) for name, file in files.items()}
    for name, size in settings.experiments.items():
        if name not in every:
            what, remedy = f"no experiment named {name!r}", f"allowed: {', '.join(every)}"
            raise Place(path).error(what, ["experiments", name], remedy=remedy)
        every[name] = every[name].at(config.scale, size, path)
    at_scale = {name: experiment for name, experiment in every.items() if config.scale in experiment.scales}
    chosen = _choose(config, every, at_scale, settings)
    if not chosen:
        remedy = f"add some to `experiments:` of workflow/scales/{config.scale}.yaml"
        remedy = f"name one of {', '.join(at_scale)} as experiments=NAME" if at_scale else remedy
        raise UserError(f"scale {config.scale} has no experiment to run", file="--config", remedy=remedy)
    for name in chosen:
        _check_models(at_scale[name], config, settings, place(files[name], config.scale))
    return {name: at_scale[name] for name in chosen}, at_scale


def _choose(
    config: RunConfig, every: Mapping[str, Experiment], at_scale: Mapping[str, Experiment], settings: ScaleSettings
) -> list[str]:
    """The names of the experiments of a run; only an experiment that the user names must be able to run."""
    datasets, has_head = set(settings.every_dataset), _has_head(config)
    adaptation = WITH_HEAD if has_head else ON_ADAPTATION
    if config.asks_only_about_adaptation and all(name in at_scale for name in adaptation):
        return list(adaptation)
    if config.experiments in ("all", "reproduction", None):
        return [
            name
            for name, experiment in at_scale.items()
            if (config.experiments == "all" or experiment.paper != "beyond" or name in settings.experiments)
            and _needed(experiment, config) <= datasets
            and not (config.everywhere and _has_other_models(experiment, config, settings))
            and not (has_head and _runs_drafts(experiment, config))
        ]
    names = [Path(name).stem if name.endswith(".yaml") else name for name in config.named_experiments]
    for name in names:
        if name not in every:
            what, remedy = f"no experiment named {name!r}", f"allowed: FILE.yaml of your own, {', '.join(every)}"
        elif name not in at_scale:
            scales = ", ".join(every[name].scales)
            what = f"{name} does not exist at scale {config.scale}"
            remedy = f"it exists at {scales}" if scales else "run it at a scale that names it in workflow/scales/*.yaml"
        elif missing := sorted(_needed(at_scale[name], config) - datasets):
            what = f"{name} needs dataset {', '.join(missing)}; this run has {', '.join(sorted(datasets))}"
            remedy = "leave the experiment out"
            if not config.dataset:
                remedy += ", or name it in `data.datasets` of --config sizes=FILE; with raw=, add its files"
        elif has_head and _runs_drafts(at_scale[name], config):
            what = f"{name} cannot run a draft that is a released head"
            remedy = f"name experiments that only distil it, such as {', '.join(ON_HEADS)}"
        else:
            continue
        raise UserError(what, file="--config experiments", remedy=remedy)
    return names


def _check_models(experiment: Experiment, config: RunConfig, settings: ScaleSettings, where: Place) -> None:
    """Check that the scale has the pair and the drafts of each cell, and that a draft that learns has a dataset."""
    for asked in _settings_in(experiment, config):
        pair = getattr(asked, "pair", MAIN)
        if pair not in settings.pairs:
            remedy = f"pairs of scale {config.scale}: {', '.join(settings.pairs)}"
            raise where.error(f"unknown pair {pair!r}", ["pair", pair], remedy=remedy)
        known = settings.pairs[pair].drafts
        for name in _drafts_of(asked):
            if name not in known:
                remedy = f"drafts of pair {pair} at scale {config.scale}: {', '.join(known)}"
                raise where.error(f"unknown draft {name!r}", [name], remedy=remedy)
        if isinstance(asked, Training) and "" in asked.datasets:
            raise where.error(
                "dataset is missing", ["dataset"], remedy=f"add it: {', '.join(settings.datasets_of(pair))}"
            )


def shows_adaptation(variant: Variant) -> bool:
    """Whether a variant shows what adaptation does: it has the original draft, or distils the draft that is kept and timed."""
    method = variant.labels.get("method")
    return method in (None, "original", getattr(variant.settings, "save", None)) and variant.settings.seed == 0


def _has_head(config: RunConfig) -> bool:
    """Whether the user's draft is a released head, as far as is known."""
    return bool(head_in(config.draft or config.models.get("draft") or config.models.get(f"{MAIN}.draft") or ""))


def _runs_drafts(experiment: Experiment, config: RunConfig) -> bool:
    """Whether an experiment does more with drafts than to distil them on recorded answers, token after token, and to replay these."""
    if experiment.stage_kind.inputs is NoInputs:
        return False
    return any(
        not isinstance(settings, Offline | Online | ReplayLog)
        or getattr(settings, "parallel", False)
        or (isinstance(settings, Offline) and settings.sample_source not in ("teacher", "none"))
        for settings in _settings_in(experiment, config)
    )


def _has_other_models(experiment: Experiment, config: RunConfig, settings: ScaleSettings) -> bool:
    """Whether an experiment trains models besides the user's, such as another pair's or drafts of other sizes, or opens further drafts
    that the scale names for its own target, which may have another vocabulary than the user's."""
    for asked in _settings_in(experiment, config):
        pair, opened = getattr(asked, "pair", MAIN), _drafts_of(asked)
        if pair not in settings.pairs:
            continue
        if isinstance(asked, Training) and (settings.pairs[pair].target.family != "llama" or opened != ["draft"]):
            return True
        named = {"draft", *(key.removeprefix(f"{pair}.") for key in config.models)}
        drafts = settings.pairs[pair].drafts
        if config.target and any(name in drafts and drafts[name].model and name not in named for name in opened):
            return True
    return False


def _drafts_of(settings: Any) -> list[str]:
    """The drafts that a cell with these settings opens, by their names in the pair."""
    timed = [name for name in getattr(settings, "contenders", []) if name not in (BEFORE, DISTILLED)]
    opened = getattr(settings, "drafts_opened", [getattr(settings, "role", "")])
    return [name for name in (*opened, *timed) if name]


def _needed(experiment: Experiment, config: RunConfig) -> set[Dataset]:
    """The datasets that an experiment's cells need."""
    needed: set[Dataset] = set()
    for settings in _settings_in(experiment, config):
        has_references = getattr(settings, "quality", False)  # quality is measured against references
        needs_all = isinstance(settings, Training) or has_references
        needed.update(settings.datasets if needs_all else [getattr(settings, "dataset", "")])
        needed.update(getattr(settings, "topics", []))
    return needed - {""}


def _settings_in(experiment: Experiment, config: RunConfig) -> Iterator[Any]:
    """The settings of every variant of an experiment; the user's prompts replace the values of an axis ``dataset``."""
    for variants in experiment.cells(config.scale, ["prompts"] if config.dataset else None).values():
        yield from (variant.settings for variant in variants)
