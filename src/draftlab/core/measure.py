"""A quantity measured on the rows of a table: the ratio of two columns, or the mean of one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Measure:
    """``sum(numerator) / sum(denominator)`` over rows, or the mean of ``numerator`` if there is no ``denominator``.

    ``label`` and ``unit`` name it on axes and in captions: ``Measure("emitted", "blocks", "block efficiency", "tokens per target call")``.
    """

    numerator: str
    denominator: str | None = None
    label: str = ""
    unit: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that a table must have."""
        return (self.numerator,) if self.denominator is None else (self.numerator, self.denominator)

    def __str__(self) -> str:
        """The quantity with its unit, or the columns if it has no name."""
        return f"{self.label or ' / '.join(self.columns)}{f' [{self.unit}]' if self.unit else ''}"
