"""Renders docs/tables.md from the code: every stage with its settings, the columns of its tables, and its measures."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from draftlab.plan import load_experiment
from draftlab.stages import STAGES
from draftlab.stages._stage import Column, Stage, columns_of

PAGE = Path("docs/tables.md")
HEAD = """\
# Tables

The settings of each stage, the columns of its tables and its measures, generated from the code by `draftlab readme`.
A table has the columns of its stage, and one for each axis of its experiment. Columns marked *timed* differ between two runs of the same code.
"""


def render(root: Path) -> str:
    """Render the page for the experiments below ``root``."""
    stage_of = {
        path.stem: load_experiment(path).stage for path in sorted((root / "workflow/experiments").glob("*.yaml"))
    }
    users = {stage: [name for name in stage_of if stage_of[name] == stage] for stage in STAGES}
    return HEAD + "".join(_section(stage, users[name]) for name, stage in STAGES.items())


def _section(stage: Stage, experiments: Iterable[str]) -> str:
    """The section of one stage, with the names of the experiments that use it."""
    parts = [f"\n## {stage.name}\n\n{stage.summary}.\n\nUsed by {', '.join(f'`{name}`' for name in experiments)}.\n"]
    if stage.settings.__doc__:  # those of the classes that it extends say for whom they are, which only the code needs
        parts.append("\n" + inspect.cleandoc(stage.settings.__doc__).replace("``", "`") + "\n")
    settings = [
        [f"`{name}`", _default(field), (field.description or "").replace("``", "`")]
        for name, field in stage.settings.model_fields.items()
    ]
    parts.append(_table(("setting", "default", "meaning"), settings))
    parts.append(_table(("column", "kind", "unit", "meaning"), _columns(stage.columns)))
    parts.append(_table(("derived column", "kind", "unit", "meaning"), _columns(columns_of(stage.derived))))
    measures = [
        [f"`{name}`", " / ".join(f"`{column}`" for column in measure.columns), measure.unit, measure.label]
        for name, measure in stage.measures.items()
    ]
    parts.append(_table(("measure", "of the rows", "unit", "meaning"), measures))
    views = [[f"`{name}`", " ".join((view.__doc__ or "").split())] for name, view in stage.views.items()]
    parts.append(_table(("view", "what it shows"), views))
    return "".join(parts)


def _columns(columns: Mapping[str, Column]) -> list[list[str]]:
    return [[f"`{name}`", column.kind.__name__, column.unit, _meaning(column)] for name, column in columns.items()]


def _meaning(column: Column) -> str:
    where = f" where `{column.timed.replace(' or ', '` or `')}`" if isinstance(column.timed, str) else ""
    timed = f"*timed{where}*" if column.timed else ""
    values = f"one of {', '.join(f'`{value}`' for value in column.values)}" if column.values else ""
    return "; ".join(filter(None, [column.meaning, values, timed, "*in some tables*" if column.optional else ""]))


def _default(field: FieldInfo) -> str:
    value: Any = field.get_default(call_default_factory=True)
    return "" if field.is_required() else f"`{value!r}`"


def _table(head: tuple[str, ...], rows: list[list[str]]) -> str:
    """A Markdown table; empty if there are no rows."""
    if not rows:
        return ""
    lines = [head, ("---",) * len(head), *rows]
    return "\n" + "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)
