"""The models and raw files that a run's cells need, checked before any job starts."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path

from draftlab.core.settings import Dataset
from draftlab.data import cleaners, generators, registry, sources
from draftlab.data.cleaners import cleaner_of
from draftlab.data.prompts import Prompt
from draftlab.data.splits import Options
from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW
from draftlab.files.packages import PACKAGES
from draftlab.files.yaml_files import Place
from draftlab.plan.config import check_models
from draftlab.plan.run import Run
from draftlab.plan.scale import MAIN


def check_data(run: Run) -> None:
    """Check the models and read the user's raw files that the cells need; a wrong one is a ``UserError``."""
    pairs, datasets = needed(run)
    _check_models(run, pairs)
    _check_source(run, pairs, datasets)
    check_raw(run, datasets)


def check_raw(run: Run, datasets: Iterable[Dataset]) -> None:
    """Read the user's raw files of these datasets; a wrong one is a ``UserError``."""
    if run.raw_folder:
        _check_raw_files(run, run.raw_folder, datasets)
        if "prompts" in datasets:
            _check_prompts(run, run.raw_folder)


def needed(run: Run) -> tuple[set[str], set[Dataset]]:
    """The pairs and the datasets that the cells need."""
    pairs: set[str] = set()
    datasets: set[Dataset] = set()
    files = {file for name in run.experiments for cell in run.cells(name) for file in run.made_files(name, cell)}
    for kind, *rest in files:
        if kind in run.settings.pairs:  # its tokenizer reads the prompts of every dataset of the pair
            pairs.add(kind)
            datasets.update(run.settings.datasets_of(kind))
        elif kind == "data":
            datasets.add(rest[0])
    return pairs, datasets


def _check_models(run: Run, pairs: Iterable[str]) -> None:
    """Check the models that the scale's file names for these pairs."""
    models = {key: model for key, model in run.settings.named_models.items() if key.split(".")[1] in pairs}
    scale = WORKFLOW / "scales" / f"{run.scale}.yaml"
    files = {key.removeprefix("pairs."): model for key, model in models.items() if model.endswith(".gguf")}
    missing = {key: file for key, file in files.items() if not os.path.exists(file)}
    if missing:
        named = ", ".join(f"{key}: FILE" for key in missing)
        remedy = f"its first lines say where to get them; put them here, or give models='{{{named}}}'; draftlab plan works without"
        what = f"missing model files, which a dry run reads too: {', '.join(missing.values())}"
        raise UserError(what, file=scale, remedy=remedy)
    check_models(models, scale)


def _check_source(run: Run, pairs: Iterable[str], datasets: Iterable[Dataset]) -> None:
    """Check that these pairs have a dataset to learn, and that the source of rows has these datasets."""
    where = Place(run.config.sizes_file(WORKFLOW))
    source = run.settings.data.source
    for pair in sorted(pairs):
        learns = not run.settings.by_architecture and not run.settings.pairs[pair].target.model
        if learns and not run.settings.datasets_of(pair):
            what = f"no dataset that the models of pair {pair} could learn"
            raise where.error(what, ["data", "datasets"], remedy="name some in data.datasets")
    absent = [name for name in sorted(datasets) if not _has(source, name)]
    if source == "raw" and not run.raw_folder and absent:
        remedy = "name the folder of raw files: --config raw=FOLDER"
        raise where.error("data.source is raw, but no folder is named", ["data", "source"], remedy=remedy)
    if absent and source != "raw":
        what = f"source {source} has no {absent[0]}"
        others = [name for name in registry.load() if _has(source, name)]
        remedy = f"give its files as --config raw=FOLDER, or use other datasets: {', '.join(others)}"
        raise where.error(what, ["data", "datasets", absent[0]], remedy=remedy)


def _has(source: sources.SourceName, dataset: Dataset) -> bool:
    """Whether a source has rows of a dataset without a folder of raw files."""
    if source == "generator":
        return dataset in generators.GENERATORS or dataset in PACKAGES
    return source == "hub" and bool(registry.find(dataset).hub_id)


def _check_raw_files(run: Run, raw: str, datasets: Iterable[Dataset]) -> None:
    """Check that the files of these datasets can be read."""
    for dataset in sorted(datasets):
        try:
            for split in sources.SPLITS:
                run.content_of(dataset, split)
        except OSError as error:
            raise UserError(str(error.strerror), file=error.filename or raw, remedy="make it readable") from None


def _check_prompts(run: Run, raw: str) -> None:
    """Check that the user's file has two different prompts, and that the template does not stand in them already."""
    own = sources.RawFiles(registry.find("prompts"), Path(raw))
    if next(own.rows("train"), None) is None:
        raise UserError("it has no rows", file=raw, remedy="name a file of prompts")
    rows = itertools.chain.from_iterable(map(own.rows, sources.SPLITS))
    cleaner = cleaner_of(run.settings.data.cleaners.get("prompts", "prompts"))
    cleaned = cleaners.clean("prompts", "train", rows, cleaner=cleaner, max_chars=Options.max_chars)
    texts = (record.whole for record in cleaned if isinstance(record, Prompt))
    first = next(texts, None)
    if all(text == first for text in texts):
        remedy = "see why: draftlab data check FILE"
        raise UserError("it has fewer than two different prompts", file=raw, remedy=remedy)
    template = run.settings.pairs[MAIN].answers.template
    if (
        "prompts" not in run.settings.data.cleaners
        and template != "rendered"
        and cleaners.are_rendered(own.rows("train"), template)
    ):
        remedy = "encode them as they are: template=rendered (draftlab verdict: --template rendered)"
        raise UserError("most prompts are in a chat template already", file=raw, remedy=remedy)
