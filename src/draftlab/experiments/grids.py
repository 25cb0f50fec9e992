"""Grids: every choice of one value on each axis, outside a job (cells) and inside it (variants)."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from draftlab.errors import UserError
from draftlab.experiments.stages import Axis, Job


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


def variants(job: J, where: str = "inner") -> list[tuple[dict[str, Any], J]]:
    """The runs inside one job: the columns that tell them apart, and the settings of each; an error names ``where``."""
    base = job.model_dump(exclude={"inner"})
    return [
        (json.loads(job.labels) | labels, validated(type(job), base | fields, where))
        for labels, fields in combinations(json.loads(job.inner))
    ]


def validated(kind: type[S], values: Any, where: str) -> S:
    """Build ``kind`` from plain values; an error names the key, what is wrong with it and what is allowed."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise refused(error, where, sorted(kind.model_fields)) from None


def refused(error: ValidationError, where: str | None = None, known: Sequence[str] = ()) -> UserError:
    """The first fault of some settings in one line, with the keys that are ``known`` where one is not."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or error.title
    if first["type"] == "extra_forbidden":
        return UserError(f"unknown key {key!r}", file=where, remedy=f"allowed: {', '.join(known)}")
    message = f"{key}: {first['msg'].removeprefix('Value error, ')}"
    if first["type"] not in ("missing", "too_short") and not isinstance(first["input"], dict):
        message += f", not {first['input']!r}"
    return UserError(message, file=where, remedy="change it there" if where else "give another value")


def plain(job: Job) -> dict[str, Any]:
    """The settings of a job for its record, nested ones opened."""
    found = job.model_dump()
    return found | {key: json.loads(found[key]) for key in ("labels", "inner", "stream") if found.get(key)}
