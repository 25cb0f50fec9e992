"""The stages, a file each: what an experiment may ask for. Free of torch and pandas, because the Snakefile imports it.

``STAGES`` holds every file of this folder whose name does not begin with ``_``; such files are what all stages share.
"""

from __future__ import annotations

import importlib
from pathlib import Path

from draftlab.stages._stage import Stage

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("[a-z]*.py"))
STAGES: dict[str, Stage] = {name: importlib.import_module(f"{__name__}.{name}").STAGE for name in NAMES}
