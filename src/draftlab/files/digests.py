"""Digests: of a file's bytes, and of a stage's code, of which an edit reruns what uses it, and an edit of a comment nothing."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from draftlab.errors import UserError


def sha256(path: Path) -> str:
    """The digest of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="run the step that makes it") from None


@lru_cache
def _source(module: str) -> Path | None:
    """The file of a draftlab module, found without importing its package: the Snakefile must not wait for torch."""
    place = Path(__file__).parents[1].joinpath(*module.split(".")[1:])
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree and all statements in it: a walk through its expressions too would take most of the time."""
    yield tree
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(tree, field, ())
        for node in inside if isinstance(inside, list) else ():  # one expression is the body of a lambda
            yield from _statements(node)


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@lru_cache
def _module(module: str) -> tuple[str, frozenset[str]]:
    """Normal form of one module's code (no comments, no docstrings) with the files of its name beside it, and what it imports of draftlab."""
    path = _source(module)
    if path is None:
        return "", frozenset()
    beside = [own.read_text(encoding="utf-8") for own in sorted(path.parent.glob(f"{path.stem}.*")) if own != path]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = frozenset(
        name for name in _imports(tree) if name.startswith("draftlab.") and name != module and _source(name)
    )
    if module.startswith("draftlab.stages."):
        tree.body = list(map(_kinds, filter(_is_code, tree.body)))
    for node in _statements(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                node.body = node.body[1:]
    return "".join([ast.dump(tree), *beside]), imports


def _is_code(node: ast.stmt) -> bool:
    """Whether what stands at the top of a stage's file may change its rows: its measures do not."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return not any(isinstance(target, ast.Name) and target.id == "MEASURES" for target in targets)


def _kinds(node: ast.stmt) -> ast.stmt:
    """Of the class of a stage's columns their names and kinds, and which are written as whole numbers; anything else as it is."""
    if isinstance(node, ast.ClassDef) and node.name in ("Row", "Counts", "Derived"):
        node.body = [
            ast.AnnAssign(target=own.target, annotation=own.annotation, value=_whole(own.value), simple=1)
            for own in node.body
            if isinstance(own, ast.AnnAssign)
        ]
    return node


def _whole(column: ast.expr | None) -> ast.expr | None:
    words = column.keywords if isinstance(column, ast.Call) else []
    return next((word.value for word in words if word.arg == "whole"), None)


SAID = ("draftlab.plan", "draftlab.stages._")
"""What these say of a cell reaches it as a file."""


@lru_cache
def code_digest(*modules: str) -> str:
    """Digest of these modules and of every draftlab module that they import, comments and docstrings left out.

    In a rule's ``params`` it makes an edit of the mathematics rerun what uses it, and an edit of a comment nothing.
    """
    seen: dict[str, str] = {}
    queue = list(modules)
    while queue:
        name = queue.pop()
        # What a plan says of a cell reaches it as flags.
        if name not in seen and not name.startswith(SAID):
            seen[name], imports = _module(name)
            queue += imports
    return hashlib.sha256(json.dumps(sorted(seen.items())).encode()).hexdigest()[:16]
