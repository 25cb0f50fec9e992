"""Grids: every choice of one value on each axis, outside a job (cells) and inside it (variants)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from draftlab.errors import UserError
from draftlab.experiments.stages import Job

Axis = list[Any] | dict[str, dict[str, Any]]
"""Values of a setting; or names, each of which stands for several settings."""


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


S = TypeVar("S", bound=BaseModel)
J = TypeVar("J", bound=Job)


def variants(job: J) -> list[tuple[dict[str, Any], J]]:
    """The runs inside one job: the columns that tell them apart, and the settings of each."""
    base = job.model_dump(exclude={"inner"})
    return [
        (json.loads(job.labels) | labels, validated(type(job), base | fields, "inner"))
        for labels, fields in combinations(json.loads(job.inner))
    ]


def validated(kind: type[S], values: Any, where: str) -> S:
    """Build ``kind`` from plain values; an error names the key, what is wrong with it and what is allowed."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or kind.__name__
        allowed = sorted(kind.model_fields) if first["type"] == "extra_forbidden" else first["msg"]
        remedy = f"allowed: {', '.join(allowed)}" if isinstance(allowed, list) else "change it in the file named"
        message = f"unknown key {key!r}" if first["type"] == "extra_forbidden" else f"{key}: {first['msg']}"
        if "input" in first and first["type"] != "missing" and not isinstance(first["input"], dict):
            message += f", not {first['input']!r}"
        raise UserError(message, file=where, remedy=remedy) from None


def plain(job: Job) -> dict[str, Any]:
    """The settings of a job for its record, nested ones opened."""
    found = job.model_dump()
    return found | {key: json.loads(found[key]) for key in ("labels", "inner", "stream") if found.get(key)}
