"""Grids of settings: every combination of the values of several axes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator


def _check_axis(value: Any) -> Any:
    combined = value.values() if isinstance(value, dict) else []
    if not value or not isinstance(value, list | dict) or not all(isinstance(settings, dict) for settings in combined):
        raise ValueError("an axis is a list of values or a mapping from names to settings, with at least one entry")
    return value


Axis = Annotated[list[Any] | dict[str, dict[str, Any]], BeforeValidator(_check_axis)]
"""The values of a setting, or names that each stand for several settings."""


def combinations(axes: Mapping[str, Axis]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every choice of one value on each axis: the values (or names) by axis, and the settings that they stand for."""
    options = [
        [({axis: name}, fields) for name, fields in values.items()]
        if isinstance(values, Mapping)
        else [({axis: value}, {axis: value}) for value in values]
        for axis, values in axes.items()
    ]
    for choice in itertools.product(*options):
        labels: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        for label, fields in choice:
            labels |= label
            settings |= fields
        yield labels, settings
