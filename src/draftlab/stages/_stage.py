"""What a stage is: what it takes, what it writes, what is measured on that, and how it runs. Free of torch and pandas."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from draftlab.core.measure import Measure
from draftlab.core.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.stages._places import Places

T = TypeVar("T")
Files = dict[str, list[Path]]
"""Kind (models, answers, data, ...) -> files; of a model its folder."""


@dataclass(frozen=True)
class Column:
    """One column of a table: its meaning in a line, its unit, its ``kind`` (int, float, str or bool).

    A ``timed`` column holds a measured time, or follows from one: two runs differ in it. It may name the setting under which it does.
    An ``optional`` column is there in some cells alone. A ``whole`` one is an expected count: where all of a cell's are whole numbers,
    as at temperature 0, they are written as such. A column of ``values`` holds no others: its annotation is a ``Literal``.
    """

    meaning: str
    unit: str = ""
    timed: bool | str = False
    optional: bool = False
    whole: bool = False
    kind: type = float
    values: tuple[str, ...] = ()


def column(
    meaning: str, unit: str = "", *, timed: bool | str = False, optional: bool = False, whole: bool = False
) -> Any:
    """A column of a ``Row``: ``visited: int = column("drafted tokens that were judged", "tokens")``."""
    return Column(meaning, unit, timed, optional, whole)


def timing(meaning: str, *, optional: bool = False) -> Any:
    """A column of measured seconds."""
    return Column(meaning, "s", True, optional)


def columns_of(row: type) -> dict[str, Column]:
    """The columns of a ``Row`` in their order, each with the kind that its annotation says."""
    kinds = typing.get_type_hints(row)
    words = {name: typing.get_args(kind) for name, kind in kinds.items()}
    return {
        name: replace(getattr(row, name), kind=str if words[name] else kind, values=words[name])
        for name, kind in kinds.items()
    }


class NoColumns:
    """A table without further columns."""


class NoInputs(Settings):
    """The files that a stage takes; this one, the base of all, reads none."""

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        """Those of a run's folder, for the settings of all of a cell's variants."""
        return cls()

    def reads(self, variants: Sequence[Any]) -> Files:
        """What they stand for, for the workflow and for provenance."""
        return {}


@dataclass(frozen=True)
class Variant:
    """One run inside a cell: ``labels``, the columns that tell it apart, and its settings."""

    labels: Mapping[str, Any]
    settings: Any


@dataclass(frozen=True)
class Bench:
    """Where the variants of one cell run, one after the other: the folder ``out`` of the cell, and what they share."""

    out: Path
    labels: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    kept: dict[object, object] = field(default_factory=dict)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """What ``make`` makes, made once for all variants."""
        if key not in self.kept:
            self.kept[key] = make()
        return typing.cast(T, self.kept[key])


Facts = dict[str, Any]
Run = Callable[[Any, Any, Bench], "tuple[pd.DataFrame, Facts]"]
"""``run(settings, inputs, bench)``: the rows of one variant, and what ``run.json`` says of it."""


def _as_written(rows: pd.DataFrame) -> pd.DataFrame:
    return rows


@dataclass(frozen=True)
class Stage:
    """One kind of measurement.

    **What it is made of:**
    - `settings`: what an experiment may say of it; its fields are the flags of its verb.
    - `row`: the columns that it writes; a table has these and the labels of its experiment's axes.
    - `measures`: what is read off its rows, by name; the first one is meant where none is named.
    - `run`: `run(settings, inputs, bench) -> (rows, facts)` for one variant.
    - `inputs`: the files that it takes, typed, which know where they lie in a run's folder.
    - `derive(rows)` adds the columns of `derived`, which follow from the written ones; `views` are other shapes of the table, by name.
    - `exclusive`: it measures time, and needs the machine to itself.
    - `needs_gpu_build`: on a GPU it runs in a llama.cpp that was built for CUDA.
    - `launch`: it may run as several processes.
    - `split`: which side of the datasets all its requests are from, where it is always the same one.
    """

    settings: type[Settings]
    row: type
    measures: Mapping[str, Measure]
    run: Run
    inputs: type[NoInputs] = NoInputs
    derived: type = NoColumns
    derive: Callable[[pd.DataFrame], pd.DataFrame] = _as_written
    views: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = field(default_factory=dict)
    exclusive: bool = False
    needs_gpu_build: bool = False
    launch: bool = False
    split: str = ""
    name: str = ""
    does: str = ""

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that it writes."""
        return columns_of(self.row)

    @property
    def all_columns(self) -> dict[str, Column]:
        """The columns that it writes, and those that follow from them."""
        return self.columns | columns_of(self.derived)

    @property
    def unit(self) -> str | None:
        """The column whose values the bootstrap draws: requests, places of a stream, or blocks; None for an exact table."""
        return next((name for name in UNITS if name in self.all_columns), None)

    def is_timed(self, name: str, settings: Mapping[str, Any]) -> bool:
        """Whether two runs with these settings differ in a column."""
        timed = self.all_columns[name].timed if name in self.all_columns else False
        return timed if isinstance(timed, bool) else bool(settings.get(timed))


UNITS = ("request_id", "stream_index", "block")
PARTS = ("Settings", "Row", "MEASURES", "run", "Inputs", "Derived", "derive")


def stage_of(module: str, **traits: Any) -> Stage:
    """The stage that a file is: what it defines under the names of ``PARTS``, and what cannot be seen there."""
    defined = vars(sys.modules[module])
    parts = {name.lower(): defined[name] for name in PARTS if name in defined}
    does = defined["__doc__"].partition("\n")[0].rstrip(".")
    return Stage(**parts | traits, name=module.rpartition(".")[2], does=does)


def cell_file(
    stage: Stage, experiment: str, cell: str, variants: Sequence[Variant], inputs: NoInputs
) -> dict[str, Any]:
    """What the file of a cell says, which travels from the plan to the job."""
    return {
        "experiment": experiment,
        "cell": cell,
        "stage": stage.name,
        "variants": [
            {"labels": dict(own.labels), "settings": own.settings.model_dump(mode="json")} for own in variants
        ],
        "inputs": inputs.model_dump(mode="json"),
    }
