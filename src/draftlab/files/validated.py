"""Settings checked, with an error that names the key, its line and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError

from draftlab.errors import UserError
from draftlab.files.registries import FAULT
from draftlab.files.yaml_files import Place

S = TypeVar("S", bound=BaseModel)


def validated(kind: type[S], values: Any, where: Place) -> S:
    """Build ``kind`` from plain values; an error names the key, its line in the file, the fault, and what is allowed."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise settings_error(error, where, kind) from None


def settings_error(
    error: ValidationError, where: Place | None = None, kind: type[BaseModel] | None = None
) -> UserError:
    """The first fault in some settings of ``kind``, in one line: an unknown key with the known ones, or all missing keys."""
    # A misspelt key also makes the right one missing; report the misspelling.
    first = min(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")
    loc = [part for part in first["loc"] if part != "[key]"]  # pydantic's mark for the key itself
    key = _name(first["loc"])
    within = f"{key}: " if key else ""
    what = f"{within}{first['msg'].removeprefix('Value error, ')}"
    by_hand = "see --help" if first["type"] == "value_error" else "give another value"
    remedy = "change it there" if where else by_hand
    if first["type"] == "extra_forbidden":
        known = _keys(kind, first["loc"][:-1])
        what, remedy = f"unknown key {key!r}", f"allowed: {', '.join(known)}" if known else "remove it"
    elif first["type"] == "missing":
        absent = [_name(fault["loc"]) for fault in error.errors() if fault["type"] == "missing"]
        what, remedy = f"{', '.join(absent[:-1])} and {absent[-1]} are missing", "add them"
        if len(absent) == 1:
            what, remedy = f"{key} is missing", "add it"
    elif first["type"] == "string_type" and isinstance(first["input"], int | float):
        what = f"{within}{first['input']} is not a text"
        remedy = "on a command line let a name begin with a letter, and a path with ./; in a file use quotes"
    elif first["type"] == FAULT:
        remedy = first["ctx"]["remedy"]
    elif first["type"] in ("dict_type", "model_type"):
        what = f"{within}give a mapping, not {first['input']!r:.200}"
    elif first["type"] != "too_short" and not isinstance(first["input"], dict) and len(loc) == len(first["loc"]):
        what += f", not {first['input']!r:.200}"
    return where.error(what, loc, remedy=remedy) if where else UserError(what, remedy=remedy)


def _name(loc: Sequence[str | int]) -> str:
    """The dotted name of a key, without pydantic's mark for the key itself."""
    return ".".join(str(part) for part in loc if part != "[key]")


def _keys(kind: Any, outer: Sequence[str | int]) -> list[str]:
    """The keys of ``kind``, or of the nested settings at the path ``outer``; empty if there are no settings there."""
    for name in outer:
        fields = getattr(_settings_in(kind), "model_fields", {})
        if get_origin(kind) in (dict, list, tuple):  # an entry, by its name or its index
            kind = next(inner for inner in reversed(get_args(kind)) if inner is not ...)
        else:
            kind = fields[name].annotation if name in fields else None
    return sorted(getattr(_settings_in(kind), "model_fields", {}))


def _settings_in(annotation: Any) -> Any:
    """The type of settings in an annotation: itself, or the first inside it."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_settings_in, get_args(annotation))), None)
