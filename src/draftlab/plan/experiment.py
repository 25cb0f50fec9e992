"""The experiments' YAML files, and the cells of each. A file with anything unknown is refused before any job starts."""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Dataset, Settings
from draftlab.data import registry
from draftlab.errors import UserError
from draftlab.files.registries import short
from draftlab.files.tables import LEDGERS
from draftlab.files.validated import validated
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.plan.figure import Figure, Shown
from draftlab.plan.grids import Axis, combinations
from draftlab.plan.scale import Scale, Size
from draftlab.stages import STAGES
from draftlab.stages._stage import Stage, Variant

CELL = re.compile(r"(?!\.)[A-Za-z0-9_.+-]{1,255}")
"""A cell's name is a folder, and a wildcard of the rules; one that begins with a dot would be hidden or lead elsewhere."""
NAME = re.compile(r"[a-z0-9_]+")


PROFILES: dict[str, dict[str, Any]] = {
    "paper_2023": {"update_interval": 1, "learning_rate": 1e-5, "clip": 1.0},
    "readme_2024": {"update_interval": 8, "learning_rate": 1e-4, "clip": 0.0},
}
"""How OSD's scripts updated a draft online, before and after the paper: ``profile: NAME`` in an experiment's file stands for these keys."""


class Finding(Settings):
    """How an experiment answers its question in one sentence, from its table.

    The difference is the rows of ``left`` minus those of ``right`` (or a constant), over the same requests; or the best of ``best``'s settings
    minus the next one. If its interval is above 0, the text is ``more``; if it is below 0, ``less``; otherwise ``level``. With ``best``, the
    text is also ``level`` if the best does not differ from each of the others. The texts may use ``{gap}``, ``{left}``, ``{right}``, ``{n}``,
    ``{best}`` and ``{second}``. ``each`` repeats the difference for every value of these columns. A text that uses ``{each}`` (or ``{values}``,
    for the left side alone) is chosen from all of these results together (``level`` if they disagree), not from all rows pooled. ``measure``
    names a measure of the stage, by default that of the ``layout``. ``digits`` follow the interval, or are the layout's if there is none. The
    text before the first colon of the first finding is the figure's title.
    """

    left: dict[str, Any] = {}
    right: dict[str, Any] | float = 0.0
    best: list[str] = []
    each: list[str] = []
    measure: str = ""
    digits: int | None = None
    more: str
    less: str = ""
    level: str

    @property
    def apart(self) -> bool:
        """Whether its text is chosen from the results of all groups together, not from all rows pooled."""
        return "{each}" in self.level or "{values}" in self.level


class Layout(Settings):
    """Which columns of an experiment's table become ``rows`` and ``columns`` of the printed table, and what a cell contains.

    A cell is a ``measure`` of the stage, by default the first one. ``best`` says whether large or small values are good. ``window`` keeps a
    part of each stream, and ``where`` keeps rows with these values. ``exact`` is the reason why a table without units to resample has no
    interval, ``note`` is a remark, and ``emulated`` means that the target is inflated at scales up to laptop.
    """

    rows: list[str] = Field(min_length=1)
    columns: list[str] = []
    measure: str = ""
    best: Literal["largest", "smallest"] | None = None
    digits: int = 3
    window: tuple[float, float] | None = None
    where: dict[str, str | list[str] | list[int]] = {}
    exact: str = "exact, so no interval"
    note: str = ""
    emulated: bool = False


class Experiment(Settings):
    """One YAML file: one table and one figure of a paper, or one question beyond it."""

    title: str
    question: str
    paper: Literal["osd", "mdss", "beyond"]
    artefact: str
    finding: Annotated[list[Finding], BeforeValidator(lambda given: [given] if isinstance(given, dict) else given)] = []
    layout: Layout | None = None
    figure: Figure | None = None
    stage: str
    view: str = Field("", description="name of another shape of the stage's table")
    axes: dict[str, Axis] = {}
    fixed: dict[str, Any] = {}
    scales: dict[Scale, Size]

    @property
    def stage_kind(self) -> Stage:
        """The stage that runs its cells."""
        return STAGES[self.stage]

    @property
    def shown(self) -> tuple[object, ...]:
        """What shapes its table and figure besides the rows and the code; without a layout, the order of what it compares does."""
        measures = dict(self.stage_kind.measures)
        return self.finding, self.layout or self.compared, self.figure, self.view, measures

    def measure(self, name: str = "") -> Measure:
        """A measure of its stage: the one of this name, else the layout's, else the stage's first."""
        measures = self.stage_kind.measures
        return measures[name or (self.layout.measure if self.layout else "") or next(iter(measures))]

    @property
    def compared(self) -> list[str]:
        """The columns in which its rows differ, in order: its axes, the settings that are lists, the axes inside its cells."""
        names = list(self.axes)
        every_fixed = [self.fixed, *(size.fixed for size in self.scales.values())]
        if not any("inner" in fixed for fixed in every_fixed):
            named = [fields for values in self.axes.values() if isinstance(values, dict) for fields in values.values()]
            names += [key for fields in named for key in fields if key in self.stage_kind.columns]
        for fixed in every_fixed:
            for key, value in fixed.items():
                if key == "inner":
                    names += value
                elif isinstance(value, list) and len(value) > 1:
                    names.append(key)
        return list(dict.fromkeys(names))

    def cells(
        self, scale: Scale, datasets: Sequence[Dataset] | None = None, where: Place | None = None
    ) -> dict[str, list[Variant]]:
        """Cell name -> the variants that run in it; a cell for each combination of the axes. An error blames ``where``.

        An axis is a list of values, or a mapping from a name to the several settings that the name stands for; ``inner`` among the
        settings holds axes that are looped inside the cell. ``datasets`` replaces the values of an axis ``dataset``.
        """
        size, where = self.scales[scale], where or Place("an experiment")
        if unknown := sorted(set(size.axes) - set(self.axes)):
            remedy = f"the axes are {', '.join(sorted(self.axes))}"
            raise where.error(f"no axis named {', '.join(unknown)}", unknown[:1], remedy=remedy)
        axes = {key: size.axes.get(key, values) for key, values in self.axes.items()}
        if datasets is not None and "dataset" in axes:
            axes["dataset"] = list(datasets)
        fixed = self.fixed | size.fixed
        if twice := [name for name in [*axes, *_mapping(fixed.get("inner"))] if name in fixed]:
            what = f"{twice[0]}: both an axis and fixed, which it would override"
            raise where.error(what, twice[:1], remedy="remove one of the two")
        cells: dict[str, list[Variant]] = {}
        for labels, fields in combinations(axes):
            settings = fixed | fields
            cell = ".".join(short(str(label)) for label in labels.values()) or "all"
            if cell in cells or not CELL.fullmatch(cell):
                what = f"two cells named {cell!r}" if cell in cells else f"{cell!r} cannot name a cell"
                remedy = "name each choice of axes with letters, digits, _ . + -"
                raise where.error(what, list(labels)[-1:], remedy=remedy)
            inner = validated(Inner, {"inner": settings.pop("inner", {})}, where).inner
            _check_distinct(inner, where)
            cells[cell] = [
                Variant(labels | inner_labels, validated(self.stage_kind.settings, settings | changes, where))
                for inner_labels, changes in combinations(inner)
            ]
        _check_distinct(axes, where)
        return cells

    def check(self, scale: Scale, where: Place) -> list[Variant]:
        """Build every cell of one scale, and return all variants; a bad value is a ``UserError`` that blames ``where``."""
        cells = self.cells(scale, where=where)
        for variants in cells.values():
            check_datasets([name for variant in variants for name in _datasets(variant.settings)], where)
            for name in self.stage_kind.inputs.same:
                if len({repr(getattr(variant.settings, name, None)) for variant in variants}) > 1:
                    remedy = "make it an axis: a cell reads the same files for all its variants"
                    raise where.error(f"{name} differs inside a cell", [name], remedy=remedy)
        every = [variant for variants in cells.values() for variant in variants]
        learn = [str(one.labels.get("method")) for one in every if getattr(one.settings, "learns", True)]
        for name in dict.fromkeys(getattr(one.settings, "save", "") for one in every):
            if name and name not in learn:
                remedy = f"those that learn: {', '.join(dict.fromkeys(learn))}"
                raise where.error(f"save: no method {name!r} whose draft could be kept", ["save", name], remedy=remedy)
        return every

    def at(self, scale: Scale, size: Size, file: Path) -> Experiment:
        """The same experiment with the ``size`` from a scale's ``file``, which overrides the size in the experiment's file."""
        base = self.scales.get(scale, Size())
        size = Size(axes=base.axes | size.axes, fixed=base.fixed | size.fixed)
        sized = self.model_copy(update={"scales": {**self.scales, scale: size}})
        where = Place(file, (("experiments",),))
        variants = sized.check(scale, where)
        for side in (side for key, side in _selected(self) if key == "finding" and not self.view):
            _check_lists(variants, side, where)
        return sized


def _check_distinct(axes: Mapping[str, Axis], where: Place) -> None:
    """Refuse an axis with a value that stands there twice: its rows would be measured, and counted, twice."""
    for name, values in axes.items():
        seen: set[Hashable] = set()
        for value in values:
            key = value if isinstance(value, Hashable) else repr(value)
            if key in seen:
                raise where.error(f"{name}: {value} stands here twice", [name], remedy="remove one")
            seen.add(key)


class Inner(Settings):
    """Axes that are looped inside a cell."""

    inner: dict[str, Axis] = {}


def place(file: Path, scale: Scale) -> Place:
    """The places in an experiment's file that set a cell at ``scale``, to be blamed for an error."""
    return Place(file, (("scales", scale), ("fixed",), ("axes",)))


def load_experiment(path: Path) -> Experiment:
    """Read and check one experiment: every cell of every scale is built once."""
    if not NAME.fullmatch(path.stem) or path.stem in LEDGERS:
        remedy = f"use only lower-case letters, digits and _, and not {' or '.join(LEDGERS)}"
        raise UserError("not an experiment's name", file=path, remedy=remedy)
    experiment = validated(Experiment, _expanded(read_yaml(path), Place(path)), Place(path))
    if experiment.stage not in STAGES:
        remedy = f"allowed: {', '.join(sorted(STAGES))}"
        raise Place(path).error(f"unknown stage {experiment.stage!r}", ["stage"], remedy=remedy)
    if experiment.view and experiment.view not in (views := experiment.stage_kind.views):
        remedy = f"allowed: {', '.join(views)}" if views else "remove it"
        raise Place(path).error(f"unknown view {experiment.view!r} of {experiment.stage}", ["view"], remedy=remedy)
    variants = [variant for scale in experiment.scales for variant in experiment.check(scale, place(path, scale))]
    sized = _sized(path.parent.parent / "scales").get(path.stem, set())
    _check_shown(experiment, variants, sized, Place(path))
    return experiment


def _check_shown(experiment: Experiment, variants: Sequence[Variant], sized: Collection[str], where: Place) -> None:
    """Check that finding, layout and figure name measures of the stage, and columns and values of its tables.

    Values of the columns ``sized`` are not checked, because the files of scales set them too.
    """
    columns = [*dict.fromkeys([*experiment.compared, *experiment.stage_kind.all_columns])]
    _check_measures(experiment, where)
    _check_texts(experiment, columns, where)
    _check_columns(experiment, columns, where)
    selected = _selected(experiment)
    curves = experiment.figure.curves if experiment.figure else None
    if curves and curves.series and curves.order:
        selected.append(("figure", {curves.series: curves.order}))
    for key, filters in selected if not experiment.view else ():  # a view may rename values
        _check_values(variants, {column: value for column, value in filters.items() if column not in sized}, key, where)


def _check_measures(experiment: Experiment, where: Place) -> None:
    """Check that finding, layout and figure name measures of the stage."""
    named = [("finding", finding.measure) for finding in experiment.finding]
    named += [("layout", experiment.layout.measure)] if experiment.layout else []
    if experiment.figure and (curves := experiment.figure.curves):
        also = [shown.measure for shown in curves.also if isinstance(shown, Shown)]
        named += [("figure", name) for name in [curves.measure, *also]]
    allowed = experiment.stage_kind.measures
    for key, name in named:
        if name and name not in allowed:
            what, remedy = f"unknown measure {name!r} of {experiment.stage}", f"allowed: {', '.join(allowed)}"
            raise where.error(what, [key, "measure", name], remedy=remedy)


def _check_texts(experiment: Experiment, columns: Collection[str], where: Place) -> None:
    """Check what the texts of findings and of the figure have in braces."""
    for finding in experiment.finding:
        names = [*PLACEHOLDERS, *(("best", "second") if finding.best else ())]
        for text in (finding.more, finding.less, finding.level):
            _check_text(text, names, ["finding", text], where)
    for text in experiment.figure.texts if experiment.figure else []:
        _check_text(text, columns, ["figure", text], where, formats=True)


def _check_columns(experiment: Experiment, columns: Collection[str], where: Place) -> None:
    """Check that finding, layout and figure name ``columns`` of the table, or settings."""
    layout, figure = experiment.layout, experiment.figure
    named = [(key, name) for key, filters in _selected(experiment) for name in filters]
    named += [("finding", name) for finding in experiment.finding for name in [*finding.each, *finding.best]]
    named += [("layout", name) for name in ([*layout.rows, *layout.columns] if layout else [])]
    named += [("layout", "window")] if layout and layout.window else []
    named += [("figure", name) for name in (figure.columns if figure else [])]
    for key, name in named:
        column = "stream_index" if name == "window" else name
        if column not in columns and column not in experiment.stage_kind.settings.model_fields:
            what, remedy = f"no column {column!r} in the table of {experiment.stage}", f"there are {', '.join(columns)}"
            raise where.error(what, [key, name], remedy=remedy)


PLACEHOLDERS = ("gap", "left", "right", "n", "each", "values")
"""What the texts of every finding may contain in braces."""


def _check_text(text: str, names: Collection[str], keys: Sequence[str], where: Place, *, formats: bool = False) -> None:
    """Check that the braces of a text contain only these names, and with ``formats`` perhaps a format."""
    try:
        for _, field, form, conversion in Formatter().parse(text):
            whole = f"{field}" + (f"!{conversion}" if conversion else "") + (f":{form}" if form else "")
            if field is not None and (field if formats else whole) not in names:
                remedy = f"allowed: {', '.join(f'{{{name}}}' for name in names)}"
                raise where.error(f"unknown placeholder {{{whole}}}", keys, remedy=remedy)
    except ValueError as error:
        raise where.error(f"{error}: {text!r}", keys, remedy="write {{ and }} for braces") from None


def _selected(experiment: Experiment) -> list[tuple[str, dict[str, Any]]]:
    """What findings, layout and figure select: values by column, each with the key of the file under which it stands."""
    sides = (side for finding in experiment.finding for side in (finding.left, finding.right))
    selected = [("finding", side) for side in sides if isinstance(side, dict)]
    selected += [("layout", dict(experiment.layout.where))] if experiment.layout else []
    curves = experiment.figure.curves if experiment.figure else None
    return selected + ([("figure", curves.where)] if curves else [])


def _check_values(variants: Sequence[Variant], filters: Mapping[str, Any], key: str, where: Place) -> None:
    """Check that some variant has each selected value of a column, if the file alone sets the values."""
    for column, wanted in filters.items():
        each = [_values(variant, column) for variant in variants]
        known = {_plain(value): value for values in each for value in values} if all(each) else {}
        for value in wanted if isinstance(wanted, list) else [wanted]:
            if known and _plain(value) not in known:
                remedy = f"the scales of this file have {', '.join(map(str, known.values()))}"
                raise where.error(f"no rows with {column} {value}", [key, column, str(value)], remedy=remedy)


def _check_lists(variants: Sequence[Variant], filters: Mapping[str, Any], where: Place) -> None:
    """Check that variants have all or none of the values in each list of a finding; without any, the finding is left out."""
    for column, wanted in filters.items():
        known = {_plain(value) for variant in variants for value in _values(variant, column)}
        absent = [value for value in wanted if _plain(value) not in known] if isinstance(wanted, list) else []
        if known and 0 < len(absent) < len(wanted):
            what = f"no rows with {column} {absent[0]}, which the finding compares"
            raise where.error(what, [column, f"{column}s"], remedy=f"keep {', '.join(map(str, wanted))}")


@functools.cache
def _sized(folder: Path) -> dict[str, set[str]]:
    """For each experiment, the columns whose values the scales' files in this folder set too."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in sorted(folder.glob("*.yaml")):
        for name, size in _mapping(read_yaml(file).get("experiments")).items():
            fixed, axes = (_mapping(_mapping(size).get(key)) for key in ("fixed", "axes"))
            inner = [_mapping(fixed.get("inner")), *map(_mapping, axes.values())]
            found[name].update(axes, *inner, ["scheme"] if "schemes" in fixed else [])
    return found


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _values(variant: Variant, column: str) -> list[Any]:
    """The values of a column where the file sets them: of an axis, or verifiers and their ceiling; else empty."""
    if column in variant.labels:
        return [variant.labels[column]]
    schemes = getattr(variant.settings, "schemes", []) if column == "scheme" else []
    return [*schemes, *(["ceiling"] if getattr(variant.settings, "ceiling", False) else [])]


def _plain(value: Any) -> Any:
    """A value for comparisons: a number if it can be read as one, else its text."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def _expanded(values: Any, where: Place) -> Any:
    """Replace each ``profile: NAME`` in a file's values by the profile's keys; keys beside it take precedence."""
    if not isinstance(values, dict):
        return values
    expanded = {key: _expanded(value, where) for key, value in values.items()}
    if not isinstance(expanded.get("profile"), str):  # an axis may have this name
        return expanded
    if (name := expanded.pop("profile")) not in PROFILES:
        raise where.error(f"unknown profile {name!r}", [name], remedy=f"allowed: {', '.join(PROFILES)}")
    return PROFILES[name] | expanded


def _datasets(settings: Any) -> list[str]:
    """All datasets that the settings of a variant name."""
    names = [getattr(settings, "dataset", ""), *getattr(settings, "datasets", []), *getattr(settings, "topics", [])]
    return [name for name in names if name]


def check_datasets(names: Iterable[str], where: Place) -> None:
    """Check that the registry has these datasets."""
    if unknown := sorted(set(names) - set(registry.load())):
        remedy = f"allowed: {', '.join(registry.load())}"
        raise where.error(f"unknown dataset {unknown[0]!r}", unknown[:1], remedy=remedy)
