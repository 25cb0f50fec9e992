"""Digests of files and of code. An edit of a stage's code changes its digest and reruns what depends on it; a comment does not."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from draftlab.errors import UserError

KEPT = Path(cache_from_source(__file__)).with_suffix(".json")
"""What was read of each module, beside Python's compiled files: parsing all of them takes a second, as long as all else that a plan needs."""


def sha256(path: Path) -> str:
    """The SHA-256 of a file's bytes."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="run the step that makes it") from None


@cache
def source_of(module: str) -> Path | None:
    """The file of a draftlab module, without an import of its package, so that the Snakefile need not wait for torch."""
    place = Path(__file__).parents[1].joinpath(*module.split(".")[1:])
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a tree and all statements in it; expressions are skipped, because walking them would take most of the time."""
    yield tree
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(tree, field, ())
        for node in inside if isinstance(inside, list) else ():  # the body of a lambda is an expression, not a list
            yield from _statements(node)


def _imports(tree: ast.AST, package: str) -> Iterator[str]:
    """Yield every name that a module of ``package`` may import, with ``from a import b`` as both ``a`` and ``a.b``."""
    for node in _statements(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""  # of "from .a import b"
            module = ".".join(filter(None, [above, node.module]))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@cache
def _module(module: str) -> tuple[str, frozenset[str]]:
    """A digest of one module without comments, docstrings and descriptions of settings, with its data files, and the draftlab modules it imports.

    Its data files have its name, or are YAML files in the folder of that name. An editor's backup (``module.py~``) is none.
    """
    path = source_of(module)
    if path is None:
        return "", frozenset()
    patterns = (f"{path.stem}.mplstyle", f"{path.stem}.yaml", f"{path.stem}/*.yaml")
    data = [file for pattern in patterns for file in sorted(path.parent.glob(pattern))]
    text, *beside = (file.read_text(encoding="utf-8") for file in (path, *data))
    of_files = hashlib.sha256(json.dumps([_reader(), path.name, text, *beside]).encode()).hexdigest()
    if module not in _kept() or _kept()[module][0] != of_files:
        package = module if path.stem == "__init__" else module.rpartition(".")[0]
        tree = ast.parse(text)
        names = sorted({name for name in _imports(tree, package) if name.startswith("draftlab.") and name != module})
        code = "".join([_code_of(tree, module), *beside])
        _kept()[module] = [of_files, hashlib.sha256(code.encode()).hexdigest(), names]
    _, digest, names = _kept()[module]
    return digest, frozenset(filter(source_of, names))


@cache
def _reader() -> str:
    """This file: another version of it may read a module in another way."""
    return Path(__file__).read_text(encoding="utf-8")


@cache
def _kept() -> dict[str, list[Any]]:
    """By module, the digest of its files, and what follows from them: the digest of its code, and the names that it imports."""
    try:
        kept = json.loads(KEPT.read_bytes())
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}


def _keep() -> None:
    """Write what was read for the next process, where Python keeps compiled files. As there, it is no error if the folder takes none."""
    if not sys.dont_write_bytecode:
        new = KEPT.with_name(f"{KEPT.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            KEPT.parent.mkdir(exist_ok=True)
            try:
                new.write_text(json.dumps(_kept()), encoding="utf-8")
                new.replace(KEPT)
            finally:
                new.unlink(missing_ok=True)


def _code_of(tree: ast.Module, module: str) -> str:
    """The code of a module, without docstrings and descriptions of settings."""
    if module.startswith("draftlab.stages."):
        tree.body = list(map(_kinds, filter(_is_code, tree.body)))
    for node in _statements(tree):
        if (
            isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
            node.value.keywords = [given for given in node.value.keywords if given.arg != "description"]
    return ast.dump(tree)


def _is_code(node: ast.stmt) -> bool:
    """Whether a top-level statement of a stage's file can change its rows; the definition of its measures cannot."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return not any(isinstance(target, ast.Name) and target.id == "MEASURES" for target in targets)


def _kinds(node: ast.stmt) -> ast.stmt:
    """Reduce a class of a stage's columns to what affects its rows: names, types, and which are whole numbers; keep other nodes."""
    if isinstance(node, ast.ClassDef) and any(map(_is_column, node.body)):
        node.body = [
            ast.AnnAssign(target=column.target, annotation=column.annotation, value=_whole(column.value), simple=1)
            for column in node.body
            if isinstance(column, ast.AnnAssign)
        ]
    return node


def _is_column(node: ast.stmt) -> bool:
    """Whether a statement declares a column of a table."""
    value = node.value if isinstance(node, ast.AnnAssign) else None
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in ("column", "timing")


def _whole(column: ast.expr | None) -> ast.expr | None:
    """The value of the keyword ``whole`` in the definition of a column; None if it is not given."""
    keywords = column.keywords if isinstance(column, ast.Call) else []
    return next((keyword.value for keyword in keywords if keyword.arg == "whole"), None)


PLANNING = (
    "draftlab.plan",
    *(f"draftlab.stages._{name}" for name in ("cell", "inputs", "measures", "places", "schemes", "stage")),
)
"""Modules left out of digests, with what they alone import: they plan a run and find its files, and do not say how rows are computed."""


def modules_behind(*modules: str) -> dict[str, str]:
    """Digests of these modules and of every draftlab module that they import, without comments and docstrings, by module."""
    seen: dict[str, str] = {}
    queue, before = list(modules), dict(_kept())
    while queue:
        name = queue.pop()
        if name not in seen and not name.startswith(PLANNING):
            seen[name], imports = _module(name)
            queue += imports
    if _kept() != before:
        _keep()
    return seen


@cache
def code_digest(*modules: str) -> str:
    """Compute a digest of these modules and of every draftlab module that they import, without comments and docstrings.

    In a rule's ``params``, an edit of the mathematics then reruns what uses it, and an edit of a comment reruns nothing.
    """
    seen = modules_behind(*modules)
    return hashlib.sha256(json.dumps(sorted(seen.items())).encode()).hexdigest()[:16]


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file; ``UserError`` if it is no Python."""
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        what = f"no Python: {getattr(error, 'msg', error)}"
        raise UserError(what, file=path, line=getattr(error, "lineno", None), remedy="repair it") from None


def digest_of_file(file: Path) -> str:
    """Compute a digest of a file outside the package, of the files beside it that it imports, and of all draftlab modules behind these."""
    seen: dict[str, str] = {}
    modules: set[str] = set()
    queue = [file]
    while queue:
        path = queue.pop()
        key = path.relative_to(file.parent).as_posix()
        if key in seen:
            continue
        tree = parsed(path)
        for name in set(_imports(tree, "")):
            place = file.parent.joinpath(*name.split("."))
            queue += filter(Path.is_file, (place.with_suffix(".py"), place / "__init__.py"))
            modules |= {name} if name.startswith("draftlab.") else set()
        seen[key] = _code_of(tree, "")
    behind = modules_behind(*sorted(modules))
    return hashlib.sha256(json.dumps([sorted(seen.items()), sorted(behind.items())]).encode()).hexdigest()[:16]
