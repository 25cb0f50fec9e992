"""Synthetic tables of any experiment, for tests of what reads tables: the rows of its plan, the columns of its stage's ``Row``, random numbers."""

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
from draftlab.report import published, tidy
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
"""The number of values of each column that counts from 0."""
ALWAYS = {"contender": ["none", "none_again"], "scheme": ["optimal", "single"]}
"""Values that every table has: the baselines of its comparisons."""
CLASSES = {
    "language": ["English", "Spanish", "Chinese"],
    "topic": ["Games", "Education", "Business_Corporate"],
    "length": ["length 1", "length 2", "length 3"],
}

Effects = Mapping[str, Mapping[Any, float] | float]
"""By column: what a value, or each unit of the column, adds to the score, from which the ratios and times follow."""


_MADE: dict[str, pd.DataFrame] = {}


def table(name: str, effects: Effects | None = None, scale: str = "laptop", **sizes: int) -> pd.DataFrame:
    """A copy of the table of one experiment, which is made once."""
    asked = repr((name, effects, scale, sizes))
    if asked not in _MADE:
        _MADE[asked] = _make(name, effects or {}, scale, sizes)
    return _MADE[asked].copy()


def _make(name: str, effects: Effects, scale: str, sizes: dict[str, int]) -> pd.DataFrame:
    """The table of one experiment. A stage that reads nothing and measures no time is run instead."""
    experiment = _sized(name)
    stage, rng = experiment.stage_kind, np.random.default_rng(0)
    computed = stage.inputs is NoInputs and not any(column.timed for column in stage.columns.values())
    scales = (*(["smoke"] * computed), scale, *experiment.scales)
    scale = next(candidate for candidate in scales if candidate in experiment.scales)
    expected = {} if computed else _expected(name, experiment)
    frames = [
        (
            stage.run(variant.settings, NoInputs(), Bench(Path()))[0]
            if computed
            else _rows(stage, variant, expected, SIZES | sizes, effects, rng)
        ).assign(**variant.labels)
        for cell in experiment.cells(scale).values()
        for variant in cell
    ]
    return pd.read_csv(io.StringIO(pd.concat(frames).to_csv(index=False)))  # as it is read back from its file


def _sized(name: str) -> plan.Experiment:
    """The experiment; if it has no sizes, with those in the first scale that has them."""
    experiment = plan.load_experiment(FOLDER / f"{name}.yaml")
    for path in [] if experiment.scales else sorted((FOLDER.parent / "scales").glob("*.yaml")):
        if (size := read_yaml(path).get("experiments", {}).get(name)) is not None:
            return experiment.at(path.stem, Size.model_validate(size), path)
    return experiment


@functools.cache
def _published() -> published.Published:
    return published.load()


def _expected(name: str, experiment: plan.Experiment) -> dict[str, list[Any]]:
    """The values by column that the experiment, its figure and the papers' claims use; empty for a column that is only named."""
    known, stage = _published(), experiment.stage_kind
    rules = [claim.rule for claim in known.claims.values() if claim.rule and name in str(claim.rule)]
    statements = [statement for statement in known.statements.values() if name in str(statement.model_dump())]
    # The text of a statement is not the values of a column named text.
    sources = [source.model_dump(exclude={"text"}) for source in (experiment, *rules, *statements)]
    module = Path(plan.__file__).parents[1] / "report/figures" / f"{name}.py"
    code = "".join(
        inspect.getsource(view) for view in [stage.derive, stage.views.get(experiment.view, len)] if view is not len
    )
    text = f"{sources} {code} {module.read_text() if module.exists() else ''}"
    expected: dict[str, list[Any]] = {word: [] for word in re.findall(r"\w+", text)}

    def walk(part: Any) -> None:
        for key, value in part.items() if isinstance(part, Mapping) else ():
            known_values = expected.setdefault(str(key), [])
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, str | int | float) and one not in known_values:
                    known_values.append(one)
        for inner in part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else ():
            walk(inner)

    walk(sources)
    return expected


def _values(name: str, column: Column, variant: Variant, expected: Mapping[str, list[Any]]) -> list[Any]:
    """The values of a column that identifies rows; empty for a measured column."""
    if name in variant.labels:
        return [variant.labels[name]]
    settings = variant.settings
    values: list[Any] = []
    for key in (name, f"{name}s", f"{name}es"):
        value = getattr(settings, key, None)
        if isinstance(value, list | tuple | dict):
            values += value
        elif value is not None and type(value) is not bool and key != "blocks":
            probed = [one for one in expected.get(name, []) if isinstance(one, int | float)] if key != name else []
            values += [0.0, *probed, float(value)] if getattr(settings, "probes", 0) and key != name else [value]
    if column.kind is str and not column.values and (not values or name == "contender"):  # settings name only drafts
        values += [one for one in expected.get(name, []) if isinstance(one, str)]
        values += ALWAYS.get(name, []) if values else []
    if name == "batch" and hasattr(settings, "rounds"):
        values = [1, *values]
    if name == "update_interval" and hasattr(settings, "intervals"):
        values = expected[name]
    if name == "draft_len" and hasattr(settings, "depth"):
        values = [*range(1, settings.depth + 1)]
    if name == "answers" and hasattr(settings, "remembers"):
        values = settings.remembers
    values = values or [*column.values]
    if name == "measured" and not settings.live:
        values = values[:1]
    return list(dict.fromkeys(values))


def _rows(
    stage: Stage, variant: Variant, expected: Mapping[str, list[Any]], sizes: Mapping[str, int], effects: Effects,
    rng: np.random.Generator,
) -> pd.DataFrame:  # fmt: skip
    columns = {name: column for name, column in stage.columns.items() if not column.optional or name in expected}
    if not getattr(variant.settings, "probes", 0):
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
        if name not in counted and name != "split" and (values := _values(name, column, variant, expected))
    }
    rows = pd.DataFrame(itertools.product(*keys.values()), columns=list(keys))
    if "iterations" in rows:  # other verifiers have none
        rows.loc[rows["scheme"] != "sinkhorn", ["iterations", "sharpness"]] = 0
    if "lp_threshold" in columns:  # single has one draft and no linear program
        rows["first_temperature"] = rows.get("first_temperature", rows["draft_temperature"])
        rows.loc[rows["scheme"] == "single", "num_drafts"] = 1
        rows.loc[rows["scheme"] != "importance_truncated", "lp_threshold"] = 0
        if "alphabet" in rows:  # the alphabet of the linear program
            rows.loc[rows["scheme"] != "importance_truncated", "alphabet"] = 0
            rows = rows[(rows["alphabet"] == 0) | (rows["alphabet"] >= rows["lp_threshold"])]
    if "begin" in columns:
        rows = rows.merge(
            pd.DataFrame({"end": variant.settings.length, "begin": [0, *variant.settings.length[:-1]]}), "cross"
        )
    rows = rows.drop_duplicates(ignore_index=True)
    if "stream_index" in columns:
        rows = rows.assign(request_id=rows["stream_index"])
    if "split" in columns:
        is_held_out = (
            getattr(variant.settings, "measured_on", "" if "stream_index" in columns else "held_out") == "held_out"
        )
        rows["split"] = stage.split or ("eval" if is_held_out else "train")
    if getattr(variant.settings, "stream", None) and "group" in columns:
        rows = _grouped(rows, variant.settings)
    unit = tidy.resampled_column(rows) or next(iter(keys))
    noise = pd.Series(rng.normal(0, 0.04, 1000))
    score = 0.5 + pd.Series(pd.factorize(rows[unit])[0]).map(noise) + rng.normal(0, 0.01, len(rows))
    labels = variant.settings.model_dump() | dict(variant.labels)
    for name, effect in effects.items():
        column = rows[name] if name in rows else pd.Series(labels.get(name, 0), rows.index)
        score += column.map(effect).fillna(0) if isinstance(effect, Mapping) else effect * column.astype(float)
    return _measured(stage, columns, rows, score.clip(0.02, 0.98), rng)


def _grouped(rows: pd.DataFrame, settings: Any) -> pd.DataFrame:
    """Assign groups to the rows of a stream, in turn or one after the other."""
    groups = list(settings.stream.groups or CLASSES.get(settings.stream.group_by, settings.of))
    count, place = int(rows["stream_index"].max()) + 1, rows["stream_index"]
    in_turn = settings.stream.kind != "concatenated"
    place = place % len(groups) if in_turn else place * len(groups) // count
    rows = rows.assign(group=[groups[index] for index in place], segment=0 if in_turn else place, requests=1)
    if not settings.probes:
        return rows
    held_out = rows[rows["stream_index"] < 10 * len(groups)].assign(split="eval", segment=0)
    after = [count * (part + 1) // settings.probes for part in range(settings.probes)]
    return pd.concat([rows.assign(after=0), *(held_out.assign(after=count) for count in after)], ignore_index=True)


def _measured(
    stage: Stage, columns: Mapping[str, Column], rows: pd.DataFrame, score: pd.Series, rng: np.random.Generator
) -> pd.DataFrame:
    """Add the measured columns: counts whose ratios follow the score, and times that fall with it."""
    ratios = {m.numerator: m.denominator for m in stage.measures.values() if m.denominator}
    below = [name for name in columns if name in ratios.values()]
    made: dict[str, Any] = dict(rows.items())  # a table would be copied for each new column
    for name in sorted(columns, key=lambda name: name not in below):
        column = columns[name]
        if name in made:
            continue
        near = rng.normal(1, 0.02, len(rows))
        if column.kind in (str, bool):
            value: Any = name if column.kind is str else True
        elif column.optional and column.timed:
            value = 3.0
        elif column.unit == "s":
            value = 0.01 * near * (1.0 if name.startswith(("plain", "static", "one_")) else 1.3 - score)
        elif ratios.get(name) in made:
            value = made[ratios[name]] * (score if name != "emitted" else 1 + 2 * score)
        elif column.kind is int and column.unit == "weights":
            value = 50_000
        elif column.kind is int:
            value = 40 * score * near if name in ratios else 20 + 0 * near
        else:
            value = (score if name not in below else 20) * near
        made[name] = np.round(value).astype(int) if column.kind is int else value
    return pd.DataFrame(made, rows.index)


TABLES: dict[str, Callable[..., pd.DataFrame]] = {
    path.stem: functools.partial(table, path.stem) for path in sorted(FOLDER.glob("*.yaml"))
}
