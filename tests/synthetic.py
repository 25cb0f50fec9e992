"""The table of any experiment as its plan and its stage's ``Row`` say, with plausible numbers from a fixed seed: to test what reads tables."""

from __future__ import annotations

import functools
import inspect
import io
import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab import plan
from draftlab.files.yaml_files import read_yaml
from draftlab.plan.experiment import Size
from draftlab.report import published
from draftlab.stages._stage import Bench, Column, NoInputs, Stage, Variant

FOLDER = Path(__file__).resolve().parents[1] / "workflow" / "experiments"
SIZES = {
    "request_id": 12,
    "stream_index": 60,
    "block": 6,
    "repeat": 5,
    "pair": 3,
    "slice": 4,
    "entropy_class": 3,
    "depth": 5,
}
"""How many units a table has, and how many values a column that counts from 0."""
ALWAYS = {"contender": ["none", "none_again"], "scheme": ["optimal", "single"]}
"""Values that are there though nobody asks for them: what others are compared with."""
CLASSES = {
    "language": ["English", "Spanish", "Chinese"],
    "topic": ["Games", "Education", "Business_Corporate"],
    "length": ["length 1", "length 2", "length 3"],
}

Effects = Mapping[str, Mapping[Any, float] | float]
"""By column: how much a value adds to the share of what is counted that is good, or how much each step of the column does."""


def table(name: str, effects: Effects | None = None, scale: str = "laptop", **sizes: int) -> pd.DataFrame:
    """The table of one experiment; an exact one of a stage that reads nothing is computed."""
    experiment = _sized(name)
    stage, rng = experiment.of_stage, np.random.default_rng(0)
    computed = stage.inputs is NoInputs and not any(own.timed for own in stage.columns.values())
    scale = next(own for own in (*(["smoke"] * computed), scale, *experiment.scales) if own in experiment.scales)
    asked = {} if computed else _asked(name, experiment)
    frames = [
        (
            stage.run(own.settings, NoInputs(), Bench(Path()))[0]
            if computed
            else _rows(stage, own, asked, SIZES | sizes, effects or {}, rng)
        ).assign(**own.labels)
        for cell in experiment.cells(scale, name).values()
        for own in cell
    ]
    return pd.read_csv(io.StringIO(pd.concat(frames).to_csv(index=False)))  # as it is read back from its file


def _sized(name: str) -> plan.Experiment:
    """The experiment; one without sizes of its own has those of the scale that names it."""
    experiment = plan.load_experiment(FOLDER / f"{name}.yaml")
    for path in [] if experiment.scales else sorted((FOLDER.parent / "scales").glob("*.yaml")):
        if (size := read_yaml(path).get("experiments", {}).get(name)) is not None:
            return experiment.at(path.stem, Size.model_validate(size), path)
    return experiment


@functools.cache
def _published() -> published.Published:
    return published.load()


def _asked(name: str, experiment: plan.Experiment) -> dict[str, list[Any]]:
    """By column the values that the experiment's file and the papers' claims ask for; none of a word that they only name."""
    known, stage = _published(), experiment.of_stage
    rules = [claim.rule for claim in known.claims.values() if claim.rule and name in str(claim.rule)]
    said = [own.model_dump() for own in (experiment, *rules, *known.statements.values()) if name in f"{own!r} {name}"]
    said = [own for own in said if name in str(own) or own is said[0]]
    module = Path(plan.__file__).parents[1] / "report/figures" / f"{name}.py"
    code = "".join(
        inspect.getsource(view) for view in [stage.derive, stage.views.get(experiment.view, len)] if view is not len
    )
    found: dict[str, list[Any]] = {}
    for word in re.findall(r"\w+", f"{said} {code} {module.read_text() if module.exists() else ''}"):
        found.setdefault(word, [])

    def walk(part: Any) -> None:
        for key, value in part.items() if isinstance(part, Mapping) else ():
            values = value if isinstance(value, list) else [value]
            new = [one for one in values if isinstance(one, str | int | float) and one not in found.get(str(key), [])]
            found.setdefault(str(key), []).extend(new)
        for inner in part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else ():
            walk(inner)

    walk(said)
    return found


def _values(name: str, column: Column, own: Variant, asked: Mapping[str, list[Any]]) -> list[Any]:
    """What a column that tells rows apart holds; nothing of one that is measured."""
    if name in own.labels:
        return [own.labels[name]]
    found: list[Any] = []
    for key in (name, f"{name}s", f"{name}es"):
        value = getattr(own.settings, key, None)
        if isinstance(value, list | tuple | dict):
            found += value
        elif value is not None and type(value) is not bool and key != "blocks":
            probed = [one for one in asked.get(name, []) if isinstance(one, int | float)] if key != name else []
            found += [0.0, *probed, float(value)] if getattr(own.settings, "probes", 0) and key != name else [value]
    if column.kind is str and not column.values and (not found or name == "contender"):  # settings name drafts alone
        found += [one for one in asked.get(name, []) if isinstance(one, str)]
        found += ALWAYS.get(name, []) if found else []
    if name == "batch" and hasattr(own.settings, "rounds"):
        found = [1, *found]
    found = found or [*column.values]
    if name == "measured" and not own.settings.live:
        found = found[:1]
    return list(dict.fromkeys(found))


def _rows(
    stage: Stage, own: Variant, asked: Mapping[str, list[Any]], sizes: Mapping[str, int], effects: Effects,
    rng: np.random.Generator,
) -> pd.DataFrame:  # fmt: skip
    columns = {name: column for name, column in stage.columns.items() if not column.optional or name in asked}
    if not getattr(own.settings, "probes", 0):
        columns.pop("after", None)
    counted = [
        name
        for name, column in columns.items()
        if name in sizes and column.kind is int and not (name == "request_id" and "stream_index" in columns)
    ]
    keys = {name: range(sizes[name]) for name in counted}
    keys |= {
        name: values
        for name, column in columns.items()
        if name not in counted and name != "split" and (values := _values(name, column, own, asked))
    }
    rows = pd.DataFrame(itertools.product(*keys.values()), columns=list(keys))
    if "iterations" in rows:  # those of its peers are 0
        rows.loc[rows["scheme"] != "sinkhorn", ["iterations", "sharpness"]] = 0
    if "lp_threshold" in columns:  # a single draft is one, and has no linear program
        rows["first_temperature"] = rows.get("first_temperature", rows["draft_temperature"])
        rows.loc[rows["scheme"] == "single", "num_drafts"] = 1
        rows.loc[rows["scheme"] != "importance_truncated", "lp_threshold"] = 0
        if "alphabet" in rows:  # which holds the program
            rows.loc[rows["scheme"] != "importance_truncated", "alphabet"] = 0
            rows = rows[(rows["alphabet"] == 0) | (rows["alphabet"] >= rows["lp_threshold"])]
    if "begin" in columns:
        rows = rows.merge(pd.DataFrame({"end": own.settings.length, "begin": [0, *own.settings.length[:-1]]}), "cross")
    rows = rows.drop_duplicates(ignore_index=True)
    if "stream_index" in columns:
        rows = rows.assign(request_id=rows["stream_index"])
    if "split" in columns:
        is_held_out = (
            getattr(own.settings, "measured_on", "" if "stream_index" in columns else "held_out") == "held_out"
        )
        rows["split"] = stage.split or ("eval" if is_held_out else "train")
    if getattr(own.settings, "stream", None) and "group" in columns:
        rows = _grouped(rows, own.settings)
    unit = stage.unit if stage.unit in rows else next(iter(keys))
    noise = pd.Series(rng.normal(0, 0.04, 1000))
    score = 0.5 + pd.Series(pd.factorize(rows[unit])[0]).map(noise) + rng.normal(0, 0.01, len(rows))
    labels = own.settings.model_dump() | dict(own.labels)
    for name, effect in effects.items():
        column = rows[name] if name in rows else pd.Series(labels.get(name, 0), rows.index)
        score += column.map(effect).fillna(0) if isinstance(effect, Mapping) else effect * column.astype(float)
    return _measured(stage, columns, rows, score.clip(0.02, 0.98), rng)


def _grouped(rows: pd.DataFrame, settings: Any) -> pd.DataFrame:
    """The rows of a stream with their classes, in turn or one after the other."""
    groups = list(settings.stream.groups or CLASSES.get(settings.stream.group_by, settings.of))
    count, place = int(rows["stream_index"].max()) + 1, rows["stream_index"]
    in_turn = settings.stream.kind != "concatenated"
    place = place % len(groups) if in_turn else place * len(groups) // count
    rows = rows.assign(group=[groups[own] for own in place], segment=0 if in_turn else place, requests=1)
    if not settings.probes:
        return rows
    held_out = rows[rows["stream_index"] < 10 * len(groups)].assign(split="eval", segment=0)
    after = [count * (part + 1) // settings.probes for part in range(settings.probes)]
    return pd.concat([rows.assign(after=0), *(held_out.assign(after=own) for own in after)], ignore_index=True)


def _measured(
    stage: Stage, columns: Mapping[str, Column], rows: pd.DataFrame, score: pd.Series, rng: np.random.Generator
) -> pd.DataFrame:
    """The other columns: counts whose ratios follow the score, times that are the shorter the better."""
    ratios = {own.numerator: own.denominator for own in stage.measures.values() if own.denominator}
    below = [name for name in columns if name in ratios.values()]
    for name in sorted(columns, key=lambda name: name not in below):
        column = columns[name]
        if name in rows:
            continue
        near = rng.normal(1, 0.02, len(rows))
        if column.kind in (str, bool):
            value: Any = name if column.kind is str else True
        elif column.optional and column.timed:
            value = 3.0
        elif column.unit == "s":
            value = 0.01 * near * (1.0 if name.startswith(("plain", "static", "one_")) else 1.3 - score)
        elif ratios.get(name) in rows:
            value = rows[ratios[name]] * (score if name != "emitted" else 1 + 2 * score)
        elif column.kind is int:
            value = 40 * score * near if name in ratios else 20 + 0 * near
        else:
            value = (score if name not in below else 20) * near
        rows[name] = np.round(value).astype(int) if column.kind is int else value
    return rows[[name for name in rows]]


TABLES: dict[str, Callable[..., pd.DataFrame]] = {
    path.stem: functools.partial(table, path.stem) for path in sorted(FOLDER.glob("*.yaml"))
}
