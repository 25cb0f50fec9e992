"""The stages, one file each: the kinds of measurement that an experiment can ask for. Imports neither torch nor pandas: the Snakefile imports it.

``STAGES`` has every file of this folder whose name does not begin with ``_``. The other files are shared by the stages, or are parts of a long one.
"""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path

from draftlab.errors import UserError, first_line
from draftlab.stages._stage import Stage, stage_in


def _imported(path: Path) -> Stage:
    """The stage of a file of this folder; ``UserError`` if Python cannot import it."""
    try:
        return stage_in(importlib.import_module(f"{__name__}.{path.stem}"))
    except UserError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        file, line, said = str(path), lines[-1] if lines else None, first_line(error)
        if isinstance(error, SyntaxError):
            file, line, said = error.filename or file, error.lineno, error.msg
        what = f"this stage cannot be imported: {type(error).__name__}: {said}"
        remedy = "repair the file, or begin its name with _ if it is no stage"
        raise UserError(what, file=file, line=line, remedy=remedy) from error


FILES = sorted(Path(__file__).parent.glob("[a-z]*.py"))
STAGES: dict[str, Stage] = {path.stem: _imported(path) for path in FILES}
