"""Reads the keys of the package's registries from their source; importing them would make the Snakefile wait for torch."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path


@lru_cache
def names(module: str, registry: str) -> tuple[str, ...]:
    """The keys of the dict literal ``registry`` in ``draftlab.<module>``."""
    place = Path(__file__).parents[1].joinpath(*module.split("."))
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == registry:
            assert isinstance(node.value, ast.Dict)
            return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise LookupError(f"no {registry} in {path}")
