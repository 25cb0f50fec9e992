"""Settings as the arguments of a command line, so that a changed value reruns the jobs that have it and no others."""

from __future__ import annotations

from typing import Any

from draftlab.core.settings import Settings


def flags(settings: Settings, **others: Any) -> list[str]:
    """``--name value`` for every setting; a list becomes several values, ``None`` and empty text are left out."""
    arguments: list[str] = []
    for key, value in {**settings.model_dump(), **others}.items():
        name = key.replace("_", "-")
        if value is None or value == "":
            continue
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, list | tuple):
            flat = [item for entry in value for item in (entry if isinstance(entry, list | tuple) else [entry])]
            arguments += [f"--{name}", *map(str, flat)]
        else:
            arguments += [f"--{name}", str(value)]
    return arguments
