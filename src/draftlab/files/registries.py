"""Reads the keys of the package's registries from their source; importing them would make the Snakefile wait for torch."""

from __future__ import annotations

import ast
from functools import lru_cache

from draftlab.files.digests import source_of


@lru_cache
def names(module: str, registry: str) -> tuple[str, ...]:
    """The keys of the dict literal ``registry`` in ``draftlab.<module>``."""
    path = source_of(f"draftlab.{module}")
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == registry:
            assert isinstance(node.value, ast.Dict)
            return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise LookupError(f"no {registry} in draftlab.{module}")
