"""Settings as words of a command line, so that a changed value reruns the jobs that have it and no others."""

from __future__ import annotations

from typing import Any

from draftlab.core.settings import Settings


def flags(settings: Settings, **others: Any) -> list[str]:
    """``--name value`` words of every setting; a list becomes several words, ``None`` and empty text are left out."""
    found: list[str] = []
    for key, value in {**settings.model_dump(), **others}.items():
        name = f"--{key.replace('_', '-')}"
        if value is None or value == "":
            continue
        if isinstance(value, bool):
            found.append(name if value else f"--no-{key.replace('_', '-')}")
        elif isinstance(value, (list, tuple)):
            flat = [item for entry in value for item in (entry if isinstance(entry, (list, tuple)) else [entry])]
            found += [name, *map(str, flat)]
        else:
            found += [name, str(value)]
    return found
