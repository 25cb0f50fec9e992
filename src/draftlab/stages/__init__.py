"""The stages, a file each: what an experiment may ask for. Free of torch and pandas, because the Snakefile imports it.

``STAGES`` holds every file of this folder whose name does not begin with ``_``; such files are what all stages share.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

from draftlab.stages._stage import Stage


def _load(name: str) -> Stage:
    module = importlib.import_module(f"{__name__}.{name}")
    stage: Stage = module.STAGE
    return replace(stage, name=name, does=(module.__doc__ or "").partition("\n")[0].rstrip("."))


STAGES: dict[str, Stage] = {path.stem: _load(path.stem) for path in sorted(Path(__file__).parent.glob("[a-z]*.py"))}
