"""What ``figure:`` in an experiment's file may contain: one form with its options. ``draftlab.report.figures`` draws it.

Where a column is expected, you can give a text with columns in braces, such as ``batch of {batch}``; each row fills in its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from draftlab.core.measure import Measure
from draftlab.core.settings import Settings

DESIGNED = tuple(sorted(path.stem for path in Path(__file__).parents[1].glob("report/figures/[a-z]*_*.py")))
"""The experiments whose figure has a module of its own in ``draftlab.report.figures``."""
if TYPE_CHECKING:
    Designed = str
else:
    Designed = Literal[DESIGNED]


class Printed(Settings):
    """Numbers of ``claim`` that a paper prints for the settings ``where``, and for settings that ``match`` our column in a panel.

    They are drawn as hollow marks over the setting ``x``, named ``label``; without ``x``, each is a horizontal line, and with ``late`` a line
    over the last fifth of the printed stream. They look like our series that the setting ``series`` names, or like the series ``like`` (or like
    the first series, if none has this name). ``ranks`` places printed variants that have no ``x`` of ours: it maps each variant to a place among
    our values of the column ``x`` in the panel, smallest first, and ``marker`` is their mark.
    """

    claim: str
    where: dict[str, Any] = {}
    match: dict[str, str] = {}
    x: str | None = None
    series: str | None = None
    like: str | None = None
    late: bool = False
    ranks: dict[str, int] = {}
    marker: str = "D"
    label: str = "printed, Vicuna-7B / LLaMA-160M"


class PrintedCurves(Settings):
    """Digitised curves: ``series`` maps the curves of a printed ``figure`` to ours; ``{panel}`` in a name is replaced by the panel's name in ``panels``.

    ``records`` is the length of a printed stream, which is laid out like ours; lines mark its ``shifts``.
    """

    figure: str
    series: dict[str, str] = Field(min_length=1)
    panels: dict[str, str] = {}
    records: int = 0
    shifts: list[int] = []


class PrintedGap(Settings):
    """The printed numbers of ``claim`` with settings ``left`` minus those with settings ``right``, shown in the footer as ``{low}`` to ``{high}``."""

    claim: str
    left: dict[str, Any]
    right: dict[str, Any]
    text: str


class Shown(Settings):
    """A ``measure`` of the stage, with the label ``ylabel`` or the measure's."""

    measure: str
    ylabel: str = ""


class Curves(Settings):
    """Estimates with intervals over ``x``: a ``measure`` of the stage, or another ``sum(above) / sum(below)`` (or the mean of ``above``) named
    ``ylabel``; ``also`` adds more of them, each in another row.

    There is a line per value of ``series``, with known values or those of ``order`` first, and a panel per value of ``panel``. ``where`` selects
    rows as in a finding. ``level`` draws a horizontal line, which is dashed if it has a name. The footer names the ``held`` settings if they are
    the same in every row, and ``facts``. These and ``xlabel`` may have columns in braces. With ``rounded``, ``x`` is in whole thousands or millions.
    """

    x: str
    xlabel: str
    measure: str = ""
    above: str = ""
    below: str | None = None
    ylabel: str = ""
    also: list[tuple[str, str, str | None] | Shown] = Field(default=[], description="measures, or label, above, below")
    series: str | None = None
    panel: str | None = None
    order: list[str] = []
    where: dict[str, Any] = {}
    log_x: bool = False
    rounded: bool = False
    level: float | None = None
    level_name: str = ""
    printed: list[Printed] = []
    held: list[str] = []
    facts: list[str] = []

    def quantities(self, measures: Mapping[str, Measure]) -> list[tuple[str, str, str | None]]:
        """Label, numerator and denominator of each row of panels; an unknown measure is a ``KeyError``."""

        def read(shown: Shown) -> tuple[str, str, str | None]:
            measure = measures[shown.measure]
            return shown.ylabel or str(measure), measure.numerator, measure.denominator

        given = (self.ylabel, self.above, self.below)
        first = Shown(measure=self.measure, ylabel=self.ylabel) if self.measure else given
        return [read(shown) if isinstance(shown, Shown) else shown for shown in (first, *self.also)]

    @model_validator(mode="after")
    def _has_one_measure(self) -> Curves:
        if bool(self.measure) == bool(self.above and self.ylabel):
            raise ValueError("give a measure of the stage, or the columns above (and below) with a ylabel")
        return self


class Live(Settings):
    """Live decoding over ``x``: tokens per target call, tokens per second, and where the time of a token goes."""

    x: str
    xlabel: str
    series: str = "scheme"
    panel: str | None = None
    printed: list[Printed] = []
    facts: list[str] = []


class StreamCurves(Settings):
    """Alpha along a stream as a moving average over ``window`` records: a line per value of ``series``, a panel per value of ``panel``.

    ``by_class`` averages the requests of each class separately. Printed curves go into a second row; ``lengths`` gives the number of requests
    of each panel's printed stream. ``note`` is written after the window.
    """

    series: str = "method"
    panel: str | None = None
    window: int = Field(default=50, gt=0)
    by_class: bool = False
    curves: PrintedCurves | None = None
    printed: list[Printed] = []
    lengths: dict[str, int] = {}
    note: str = ""


class Gaps(Settings):
    """A map per value of ``panel``: alpha of one method minus another's over ``x``, with a row for each of ``pairs``; ``span`` gets the darkest colour.

    The footer gives ``facts``.
    """

    pairs: dict[str, tuple[str, str]] = Field(min_length=1)
    panel: str
    x: str
    xlabel: str
    span: float = Field(default=0.1, gt=0)
    printed: PrintedGap | None = None
    facts: list[str] = []


class Like(Settings):
    """The figure of another ``experiment``, whose module gets these ``options``."""

    experiment: Designed
    options: dict[str, Any] = {}


class Figure(Settings):
    """A form of figure, by name."""

    curves: Curves | None = None
    live: Live | None = None
    stream: StreamCurves | None = None
    gaps: Gaps | None = None
    like: Like | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that distinguish its panels, series and points, select rows, or are summed."""
        [form] = (form for _, form in self if form is not None)
        names: list[str] = []
        for text in filter(None, (getattr(form, key, None) for key in ("x", "series", "panel"))):
            names += fields_of(text) or [text]
        summed = [getattr(form, "above", ""), getattr(form, "below", None)]
        summed += [name for shown in getattr(form, "also", []) if isinstance(shown, tuple) for name in shown[1:]]
        return [*names, *filter(None, summed), *(key for key in getattr(form, "where", {}) if key != "window")]

    @property
    def texts(self) -> list[str]:
        """The texts that may name columns in braces."""
        [form] = (form for _, form in self if form is not None)
        names = (getattr(form, key, None) for key in ("x", "series", "panel", "xlabel"))
        return [*filter(None, names), *getattr(form, "facts", [])]

    @model_validator(mode="after")
    def _has_one_form(self) -> Figure:
        if sum(form is not None for _, form in self) != 1:
            raise ValueError(f"give exactly one of {', '.join(type(self).model_fields)}")
        return self


def fields_of(template: str) -> list[str]:
    """The column names in the braces of a template."""
    return [field for _, field, _, _ in Formatter().parse(template) if field]


def module_of(experiment: str, figure: Figure | None) -> str:
    """The name of the module in ``draftlab.report.figures`` that draws an experiment, if there is such a module."""
    return figure.like.experiment if figure and figure.like else experiment
