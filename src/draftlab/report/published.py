"""What the papers print: every number with its location and caveat, the claims in words, and the digitised curves.

The files in ``workflow/published`` are data. ``<paper>.csv`` holds numbers. ``<paper>.yaml`` defines what each claim measures and which
of our tables answers it, ``statements.yaml`` the claims in words, ``consistency.yaml`` how numbers follow from other numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from draftlab.errors import UserError
from draftlab.files.checkout import WORKFLOW
from draftlab.files.tables import read_table, read_texts
from draftlab.files.validated import settings_error
from draftlab.files.yaml_files import Place, read_yaml
from draftlab.plan import Scale
from draftlab.report import tidy
from draftlab.report.contrast import Contrast, Selection

FOLDER = WORKFLOW / "published"
CHECKS = FOLDER / "consistency.yaml"
PAPERS = {"osd": "OSD", "mdss": "MDSS", "related": "related"}

Scalar = str | int | float | bool
Wanted = Scalar | list[Scalar]
T = TypeVar("T")


class Entry(BaseModel):
    """Base class of all entries in these YAML files: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Estimand(Entry):
    """What to compute from a table: a ``measure`` of its stage; with ``largest``, the largest value of the measure's numerator.

    With ``percent_of``, filters that select other rows, the result is a percentage of the measure of those rows; with
    ``percent_over`` it is by how many percent it exceeds it. The bootstrap resamples the units of the table (``tidy.resampled_column``).
    """

    table: str
    measure: str
    largest: bool = False
    percent_of: dict[str, Any] = {}
    percent_over: dict[str, Any] = {}

    def select(self, filters: Mapping[str, Any]) -> Selection:
        """The rows that ``filters`` select; their keys ``table`` and ``measure`` override the table and the measure."""
        table, name = str(filters.get("table", self.table)), str(filters.get("measure", self.measure))
        where = {key: value for key, value in filters.items() if key not in ("table", "measure")}
        known = tidy.plan_of(table).stage_kind.measures if tidy.file_of(table).exists() else {}
        if name not in known:
            remedy = f"allowed: {', '.join(known)}" if known else "name an experiment of workflow/experiments"
            raise UserError(f"a rule asks {table} for {name!r}", file=FOLDER, remedy=remedy)
        return Selection(table, known[name], where, largest=self.largest)

    def measured(self, filters: Mapping[str, Any]) -> Contrast:
        """The contrast for the rows that ``filters`` selects: an estimate, or a percentage of other rows."""
        base = self.percent_of or self.percent_over
        right = self.select({**filters, **base}) if base else None
        return Contrast(self.select(filters), right, relation="percent_more" if self.percent_over else "percent")


class Rule(Estimand):
    """How our table answers a printed number.

    - ``where``: for each printed setting, the filter of the table's columns that each of its values stands for. ``same`` means a column
      of that name with that value. A value that is not listed was not run. Filters ``table`` and ``measure`` override the rule's.
    - ``against``: settings of the printed numbers from which ours must differ with the printed sign; printed differences up to
      ``margin`` are ignored. With ``ours`` the rows to compare are those of this number with these filters, not those of the other.
    - ``level``: a constant that ours must lie above or below, as printed.
    - ``alike``: do not ignore a printed difference up to ``margin``; ours must be as small.
    - ``tolerance``: how close ours must be for ``reproduced``, at the scales of ``same_setting``.
    - ``only``: the scales whose tables can answer the claim (empty: all).
    """

    where: dict[str, Literal["same"] | dict[Scalar, dict[str, Any]]]
    against: list[dict[str, Scalar | dict[str, Scalar]]] = []
    level: float | None = None
    margin: float = 0.02
    alike: bool = False
    tolerance: float
    same_setting: list[Scale] = ["paper"]
    only: list[Scale] = []
    explanation: str = ""

    def table_of(self, settings: Mapping[str, str]) -> str:
        """The table that answers a printed number with these settings."""
        known = ((key, values) for key, values in self.where.items() if values != "same")
        filters = (values[settings[key]] for key, values in known if settings.get(key) in values)
        return next((str(chosen["table"]) for chosen in filters if "table" in chosen), self.table)


class Claim(Entry):
    """What the numbers of one claim are; ``digit`` is one unit of the last printed digit (0: exact), ``why`` says why no run judges them."""

    location: str
    quantity: str
    unit: str
    digit: float = 0.0
    why: str = ""
    rule: Rule | None = None


class Comparison(Estimand):
    """A comparison of the rows ``left`` with the rows (or the constant) ``right``, repeated for every value of the columns ``each``.

    ``expect`` is about left - right: ``not_less``, ``not_greater`` and ``similar`` allow ``margin``, ``greater`` and ``less`` require
    more than ``by``. A comparison whose interval includes both outcomes is undecided.
    """

    each: list[str] = []
    left: dict[str, Any]
    right: dict[str, Any] | float
    expect: Literal["greater", "less", "not_less", "not_greater", "similar"]
    margin: float = 0.0
    by: float = Field(0.0, ge=0)

    @property
    def contrast(self) -> Contrast:
        """The difference between both sides."""
        right = self.select(self.right) if isinstance(self.right, dict) else self.right
        return Contrast(self.select(self.left), right, each=self.each)


class Statement(Entry):
    """A claim in words: ``comparisons`` list what our tables must show, ``check`` names what the printed numbers must show.

    ``only``: the scales whose tables can answer it (empty: all), and ``why`` others cannot.
    """

    paper: Literal["OSD", "MDSS"]
    location: str
    text: str
    comparisons: list[Comparison] = []
    check: str | None = None
    same_setting: list[Scale] = ["paper"]
    only: list[Scale] = []
    why: str = ""
    explanation: str = ""


class Source(Entry):
    """An input of a check: a ``value``; a ``setting`` of the row itself; or the rows of ``claim`` that agree on ``same`` and ``where``."""

    value: float | None = None
    setting: str | None = None
    claim: str | None = None
    same: list[str] = []
    where: dict[str, Wanted] = {}


class Check(Entry):
    """Printed numbers (``claim``, restricted by ``where``) that must follow from others by ``formula``.

    ``series``: the settings that identify a row of the printed table; its numbers fail together. ``search``: input values to try if
    the check fails, so that the note can say which values the numbers do agree with. ``derives``: the formula is the whole claim.
    """

    text: str
    claim: str
    where: dict[str, Wanted] = {}
    formula: str
    inputs: dict[str, Source]
    tolerance: float | None = None
    series: list[str] | None = None
    search: dict[str, list[float]] = {}
    derives: bool = False


@dataclass(frozen=True)
class Published:
    """Everything in ``workflow/published``.

    ``numbers``: one row per printed number (``claim_id, claim, paper, setting, settings, printed, value, error, source,
    caveat``); ``value`` is NaN if the printed text is not a number. ``curves``: ``figure_pdf, series, x, y``.
    """

    numbers: pd.DataFrame
    curves: pd.DataFrame
    claims: Mapping[str, Claim]
    statements: Mapping[str, Statement]
    checks: Mapping[str, Check]

    @functools.cached_property
    def position(self) -> dict[str, int]:
        """The position of each printed number in the files, by claim id."""
        return {claim_id: position for position, claim_id in enumerate(self.numbers["claim_id"])}

    @functools.cached_property
    def rows(self) -> dict[str, list[dict[str, Any]]]:
        """The printed numbers of each claim, as dicts."""
        return {str(claim): tidy.records(numbers) for claim, numbers in self.numbers.groupby("claim", sort=False)}

    def of(self, claim: str, **settings: Wanted) -> pd.DataFrame:
        """The printed numbers of one claim with these settings."""
        numbers = self.numbers[self.numbers["claim"] == claim]
        return numbers[np.array([agrees(printed, settings) for printed in numbers["settings"]], dtype=bool)]

    def curve(self, figure: str, series: str) -> pd.DataFrame:
        """The digitised points of one curve, in the order of ``x``."""
        curves = self.curves
        return curves[(curves["figure_pdf"] == figure) & (curves["series"] == series)].sort_values("x", kind="stable")


def agrees(settings: Mapping[str, str], wanted: Mapping[str, Wanted]) -> bool:
    """Whether printed settings have the wanted values (or one of several); numbers are compared as numbers."""
    return all(
        key in settings
        and any(same(settings[key], value) for value in (values if isinstance(values, list) else [values]))
        for key, values in wanted.items()
    )


def same(left: Scalar, right: Scalar) -> bool:
    """Whether two values are equal, as numbers if both are numbers, otherwise as text."""
    try:
        return float(left) == float(right)
    except ValueError:
        return str(left) == str(right)


def load(folder: Path | None = None) -> Published:
    """Read and check the folder; a broken file is a ``UserError`` that names it."""
    folder = folder or FOLDER
    claims: dict[str, Claim] = {}
    numbers = []
    for stem, paper in PAPERS.items():
        known = _yaml(folder / f"{stem}.yaml", dict[str, Claim])
        frame = _numbers(folder / f"{stem}.csv")
        if missing := sorted(set(frame["claim"]) - set(known)):
            raise UserError(f"no entry for {missing[0]}", file=folder / f"{stem}.yaml", remedy="say what it measures")
        claims |= known
        numbers.append(frame.assign(paper=paper))
    return Published(
        numbers=pd.concat(numbers, ignore_index=True),
        curves=read_table(folder / "curves.csv"),
        claims=claims,
        statements=_yaml(folder / "statements.yaml", dict[str, Statement]),
        checks=_yaml(folder / "consistency.yaml", dict[str, Check]),
    )


def _numbers(path: Path) -> pd.DataFrame:
    """Read the printed numbers of one paper, and add the parsed settings, the claim id and the values as numbers."""
    frame = read_texts(path)
    settings = [parse_setting(text) for text in frame["setting"]]
    frame = frame.assign(
        settings=pd.Series(settings, dtype=object),
        claim_id=list(map(_claim_id, frame["claim"], settings)),
        printed=frame["value"],
        value=frame["value"].map(_number),
        error=frame["error"].map(_number),
    )
    if twice := frame["claim_id"][frame["claim_id"].duplicated()].tolist():
        raise UserError(f"{twice[0]} is listed twice", file=path, remedy="give the two rows different settings")
    return frame


def _claim_id(claim: str, settings: Mapping[str, str]) -> str:
    """The claim id, ``claim/value/key=number/...``: numbers come with their key, because alone they would not be understood."""
    parts = (f"{key}={value}" if np.isfinite(_number(value)) else value for key, value in settings.items())
    return "/".join([claim, *parts])


def parse_setting(text: str) -> dict[str, str]:
    """Split a setting such as ``"dataset=spider; alpha=0.5"`` into keys and values."""
    return dict(part.split("=", 1) for part in text.split("; ") if part)


def _number(text: str) -> float:
    """The value of a decimal or a fraction; NaN for anything else (``>4000``, ``OOM``)."""
    try:
        above, _, below = text.partition("/")
        return float(above) / float(below) if below else float(above)
    except ValueError:
        return float("nan")


def _yaml(path: Path, kind: type[T]) -> T:
    values = read_yaml(path)
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        raise settings_error(error, Place(path)) from None
