"""The stages, one file each: the kinds of measurement that an experiment can ask for. Imports neither torch nor pandas: the Snakefile imports it.

``STAGES`` has every file of this folder whose name does not begin with ``_``. The other files are shared by the stages, or are parts of a long one.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from draftlab.stages._stage import Stage, stage_in

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
STAGES: dict[str, Stage] = {name: stage_in(importlib.import_module(f"{__name__}.{name}")) for name in NAMES}
