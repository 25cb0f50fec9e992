"""What a stage is: its settings, inputs, columns and measures, and the function that runs it. Imports neither torch nor pandas."""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from draftlab import docstrings
from draftlab.core.measure import Measure
from draftlab.core.settings import Settings
from draftlab.errors import UserError, fault_in
from draftlab.files.atomic import atomic_path
from draftlab.files.registries import own_code

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.stages._places import Places

Files = dict[str, list[Path]]
"""Files by kind (models, answers, data, ...); a model is its folder."""


@dataclass(frozen=True)
class Column:
    """One column of a table: its meaning in a line, its unit, its ``kind`` (int, float, str or bool).

    A ``timed`` column holds a measured time, or follows from one: two runs differ in it. It may name the setting under which it does, or
    several: ``one or another``.
    An ``optional`` column is missing in some cells. A ``whole`` column holds expected counts: where all of them are integers in a cell,
    as at temperature 0, they are written as integers. ``values`` are the only values of a column whose annotation is a ``Literal``.
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


@cache
def columns_of(row: type) -> dict[str, Column]:
    """The columns of a ``Row`` in their order, with kind and values from the annotations."""
    columns = {}
    for name, kind in typing.get_type_hints(row).items():
        values = typing.get_args(kind)
        columns[name] = replace(getattr(row, name), kind=str if values else kind, values=values)
    return columns


SPLIT = Column("train: requests of the stream; eval: held-out requests", kind=str)


class NoColumns:
    """A table without further columns."""


class NoInputs(Settings):
    """The input files of a stage. The base class has none.

    The docstring of a class with further fields may list them; what it says is then their description.
    """

    same: ClassVar[tuple[str, ...]] = ("pair",)
    """The settings by which ``locate`` finds files: all variants of a cell must have the same, because they read the same files."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        for name, meaning in docstrings.split(cls.__doc__ or "")[1].items():
            cls.model_fields[name].description = meaning

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        """Find the inputs of a cell in a run's folder; ``variants`` are the settings of its variants."""
        return cls()

    def reads(self, variants: Sequence[Any]) -> Files:
        """The files that must exist before the cell runs; their digests go into its record."""
        return {}


@dataclass(frozen=True)
class Variant:
    """One run inside a cell: its settings, and ``labels``, the columns that identify it."""

    labels: Mapping[str, Any]
    settings: Any


@dataclass(frozen=True)
class Bench:
    """Where the variants of one cell run, one after the other: the folder ``out`` of the cell, and what they keep for each other.

    ``parts`` is the folder for what a killed job need not do again; None keeps nothing.
    """

    out: Path
    labels: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    kept: dict[object, object] = field(default_factory=dict)
    parts: Path | None = None

    def part(self, name: str) -> Path | None:
        """The file of a finished part of this variant."""
        return self.parts / f"{self.number}.{name}" if self.parts else None

    def checkpoint(self, name: str = "checkpoint") -> Path:
        """The file of a training under way. It lies with the finished parts: a change of anything that the job reads removes it too."""
        file = f"{name}.safetensors"
        return self.part(file) or self.out / f".{self.number}.{file}"

    def rows(self, name: str, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """The rows of one part, which ``make`` computes unless a killed job had finished it."""
        import pandas as pd

        table = self.part(f"{name}.parquet")
        if table is None:
            return make()
        if not table.is_file():
            rows = make()
            with atomic_path(table) as temporary:
                rows.to_parquet(temporary)
        return pd.read_parquet(table)


Facts = dict[str, Any]
Run = Callable[[Any, Any, Bench], "tuple[pd.DataFrame, Facts]"]
"""``run(settings, inputs, bench)`` returns the rows of one variant, and facts for ``run.json``."""


@dataclass(frozen=True)
class Stage:
    """One kind of measurement.

    **Fields:**
    - `settings`: what an experiment can set; the fields are also the flags of the verb.
    - `row`: the columns that the stage writes. A table also has the labels of its experiment's axes.
    - `measures`: ratios of columns, by name; the first one is the default.
    - `run`: `run(settings, inputs, bench) -> (rows, facts)` for one variant.
    - `inputs`: the files that the stage reads, and how to find them in a run's folder.
    - `derive(rows)` computes the columns of `derived` from the written ones; `views` reshape the table, by name.
    - `exclusive`: the stage measures time, and needs the machine to itself.
    - `needs_gpu_build`: on a GPU it needs a llama.cpp that was built for CUDA.
    - `launch`: it can run as several processes.
    - `split`: the split of the datasets that all its requests come from, if it is always the same.
    """

    settings: type[Settings]
    row: type
    measures: Mapping[str, Measure]
    run: Run
    inputs: type[NoInputs] = NoInputs
    derived: type = NoColumns
    derive: Callable[[pd.DataFrame], pd.DataFrame] = lambda rows: rows
    views: Mapping[str, Callable[[pd.DataFrame], pd.DataFrame]] = field(default_factory=dict)
    exclusive: bool = False
    needs_gpu_build: bool = False
    launch: bool = False
    split: str = ""
    name: str = ""
    summary: str = ""

    @property
    def columns(self) -> dict[str, Column]:
        """The columns that the stage writes, with the split where it is always the same: ``_cell.run`` adds it."""
        return columns_of(self.row) | ({"split": SPLIT} if self.split else {})

    @property
    def all_columns(self) -> dict[str, Column]:
        """The written and the derived columns."""
        return self.columns | columns_of(self.derived)

    def error(self, what: str) -> UserError:
        """A fault in the stage's code, with the place of its ``run``."""
        return fault_in(self.run, f"stage {self.name}: {what}", "repair its code")

    def is_timed(self, name: str, settings: Mapping[str, Any]) -> bool:
        """Whether two runs with these settings differ in a column."""
        timed = self.all_columns[name].timed if name in self.all_columns else False
        return timed if isinstance(timed, bool) else any(settings.get(setting) for setting in timed.split(" or "))


PARTS = ("Settings", "Row", "MEASURES", "run", "Inputs", "Derived", "derive")


def stage_of(module: str, **traits: Any) -> Stage:
    """The stage of a file: ``PARTS`` are what the file defines under these names, ``traits`` are the other fields."""
    defined = vars(sys.modules[module])
    parts = {name.lower(): defined[name] for name in PARTS if name in defined}
    if missing := [name for name in PARTS[:4] if name not in defined]:
        remedy = "define it, as stages/region.py does"
        raise UserError(f"a stage without {' and '.join(missing)}", file=defined["__file__"], remedy=remedy)
    summary = defined["__doc__"].partition("\n")[0].rstrip(".")
    stage = Stage(**parts | traits, name=module.rpartition(".")[2], summary=summary)
    for name, measure in stage.measures.items():
        if unknown := set(measure.columns) - set(stage.all_columns):
            what, remedy = f"measure {name!r}: no column {min(unknown)!r}", f"there are {', '.join(stage.all_columns)}"
            raise UserError(what, file=defined["__file__"], remedy=remedy)
    return stage


def stage_in(module: ModuleType) -> Stage:
    """The ``STAGE`` of a file of ``stages/``."""
    stage = getattr(module, "STAGE", None)
    if not isinstance(stage, Stage):
        remedy = "end it with STAGE = stage_of(__name__), or begin its name with _ if it is no stage"
        raise UserError("a stage without STAGE", file=module.__file__, remedy=remedy)
    return stage


def own_code_of(variants: Sequence[Variant]) -> dict[str, str]:
    """The user's own code that variants name, with its digests."""
    return own_code([variant.settings.model_dump() for variant in variants])


def cell_file(
    stage: Stage, experiment: str, cell: str, variants: Sequence[Variant], inputs: NoInputs
) -> dict[str, Any]:
    """The content of a cell's file, by which the plan tells the job what to run; an edit of the user's own code changes it too."""
    own = own_code_of(variants)
    return {
        "experiment": experiment,
        "cell": cell,
        "stage": stage.name,
        **({"own_code": own} if own else {}),
        "variants": [
            {"labels": dict(variant.labels), "settings": variant.settings.model_dump(mode="json")}
            for variant in variants
        ],
        "inputs": inputs.model_dump(mode="json"),
    }
