"""Reads the workflow's YAML files, and finds the line of a wrong value for error messages."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from draftlab.errors import UserError

SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML's loader in C if it is available: ten times as fast."""


class Loader(SafeLoader):  # type: ignore[misc]
    """The loader, but a key that stands twice in one mapping is an error: PyYAML keeps only the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            # A key that was merged in (<<) stands elsewhere.
            if node.start_mark.index <= key.start_mark.index < node.end_mark.index and isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    what = f"the key {key.value!r} stands here twice"
                    raise yaml.constructor.ConstructorError(None, None, what, key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


def read_yaml(path: Path) -> Any:
    """Read the values of a file; one that is not YAML raises ``UserError`` with the line."""
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise UserError(
            f"{error.strerror}", file=path, remedy="check the path, or restore the file from the repository"
        ) from None
    except ValueError as error:  # bytes that are not text, or an impossible date
        raise UserError(f"not YAML in UTF-8: {error}", file=path, remedy="repair the file") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        what = f"not YAML: {getattr(error, 'problem', error)}"
        raise UserError(what, file=path, line=line, remedy="repair the file") from None


@functools.cache
def read_yaml_of_module(module: str) -> Any:
    """Read the YAML file next to a module with the same name: data that would otherwise be part of the code."""
    return read_yaml(Path(module).with_suffix(".yaml"))


@dataclass(frozen=True)
class Place:
    """Where some values came from: a file, or text that names another source, and the ``parts`` of it that define them.

    A part is a path of keys from the top of the file. The part that takes precedence comes first.
    """

    file: Path | str
    parts: tuple[tuple[str, ...], ...] = ((),)

    def error(self, what: str, names: Sequence[str | int], *, remedy: str) -> UserError:
        """Return an error with the line of a wrong value.

        ``names`` are the keys that lead to it from outer to inner, and perhaps the value; the part that contains most of them is used.
        """
        line = None
        if isinstance(self.file, Path):
            top = yaml.compose(self.file.read_text(encoding="utf-8"), SafeLoader)  # the loader that read it
            line, _ = min((_walk(top, [*part, *names]) for part in self.parts), key=lambda end: end[1])
        return UserError(what, file=self.file, line=line, remedy=remedy)


def _walk(node: yaml.Node | None, names: Sequence[str | int]) -> tuple[int | None, int]:
    """The line that ``names`` lead to below ``node``, and how many of them are missing."""
    line, missing = None, 0
    for name in names:
        if (match := _find(node, name)) is None:
            missing += 1
        else:
            line, node = match
    return line, missing


def _find(node: yaml.Node | None, name: str | int) -> tuple[int, yaml.Node] | None:
    """The line of the first key, value or entry called ``name`` below ``node``, and the node that it holds."""
    if isinstance(name, int):
        entries = node.value if isinstance(node, yaml.SequenceNode) else []
        return (entries[name].start_mark.line + 1, entries[name]) if name < len(entries) else None
    if isinstance(node, yaml.ScalarNode) and node.value == name:
        return node.start_mark.line + 1, node
    inside: list[yaml.Node] = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == name:
                return key.start_mark.line + 1, value
        inside = [value for _, value in node.value]
    return next((match for child in inside if (match := _find(child, name))), None)
