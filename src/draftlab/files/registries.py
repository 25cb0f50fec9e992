"""What a setting can name: the keys of the package's registries, and objects in the user's own files, ``FILE.py:OBJECT``.

Both are checked by reading the source; importing it would make the Snakefile wait for torch. Only ``load`` runs code, and only that of a file
which a setting or a flag names.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from draftlab.errors import UserError, first_line
from draftlab.files.digests import digest_of_file, parsed, source_of

T = TypeVar("T")
OWN = re.compile(r"([^:+{}\n]+\.py):([^\W\d]\w*)")
FAULT = "own_code"
"""The type of pydantic's error for a name of the user's own code that is no use; its context has the remedy."""


@lru_cache
def names(module: str, registry: str) -> tuple[str, ...]:
    """The keys of the dict literal ``registry`` in ``draftlab.<module>``."""
    path = source_of(f"draftlab.{module}")
    for node in ast.parse(path.read_text(encoding="utf-8")).body if path else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == registry:
            assert isinstance(node.value, ast.Dict)
            return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise LookupError(f"no {registry} in draftlab.{module}")


def choice(
    known: Sequence[str], arguments: Sequence[str] = (), *, kinds: Sequence[str] = (), tails: Sequence[str] = ()
) -> Any:
    """The type of a setting: one of the ``known`` names, or an object of the user's own. Where there are ``tails``, one of them or an object of
    the user's own may follow after ``+``.

    A function of the user's own is called with these ``arguments``; without any, the object is one of these ``kinds``, and a tail a PathVerifier.
    """

    def check(given: object) -> object:
        head, plus, tail = str(given).partition("+")
        takes_tails = is_own(head) or any(f"{head}+{one}" in known for one in tails)
        fits = takes_tails and (tail in tails or is_own(tail)) if plus and tails else is_own(given)
        if given not in known and not fits:
            raise ValueError(f"Input should be {_listed([*map(repr, known), 'FILE.py:OBJECT'])}")
        try:
            for own in own_parts(given):
                check_own(own, arguments, ["PathVerifier"] if plus and own == tail else kinds)
        except UserError as error:
            where = (
                ""
                if error.file is None
                else f"{error.file}: "
                if error.line is None
                else f"{error.file}:{error.line}: "
            )
            raise PydanticCustomError(FAULT, "{what}", {"what": where + error.what, "remedy": error.remedy}) from None
        return given

    return Annotated[Literal[tuple(known)] | str if known else str, BeforeValidator(check)]


def _listed(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def is_own(name: object) -> bool:
    """Whether a name is ``FILE.py:OBJECT``.

    >>> is_own("ideas/ours.py:mine"), is_own("k_seq")
    (True, False)
    """
    return OWN.fullmatch(str(name)) is not None


def own_parts(name: object) -> list[str]:
    """Every ``FILE.py:OBJECT`` in a name, whose parts ``+`` may join.

    >>> own_parts("ideas/ours.py:mine+block"), own_parts("specinfer+block")
    (['ideas/ours.py:mine'], [])
    """
    return list(filter(is_own, str(name).split("+")))


def short(name: str) -> str:
    """A name without the folders and the suffixes of files, for readers and for names of files; any other text stays as it is.

    >>> short("ideas/ours.py:mine+block"), short("specinfer+block")
    ('ours.mine+block', 'specinfer+block')
    """
    return "+".join(_short(part) for part in name.split("+"))


def _short(name: str) -> str:
    found = OWN.fullmatch(name)
    parts = [re.sub("[^A-Za-z0-9_]", "-", part) for part in (Path(found[1]).stem, found[2])] if found else [name]
    return ".".join(parts)


def check_own(name: str, arguments: Sequence[str] = (), kinds: Sequence[str] = ()) -> None:
    """``UserError`` if ``FILE.py:OBJECT`` names no such file or object, a function that cannot be called with these ``arguments``, or what is made
    there as a verifier of other ``kinds``.
    """
    file, attribute = name.rsplit(":", 1)
    path = Path(file)
    if not path.is_file():
        raise UserError(f"no such file: {file}", remedy=f"give its path from {Path.cwd()}")
    if (path.parent / "config.json").is_file() and any(path.parent.glob("*.safetensors")):
        raise UserError(
            "in the folder of a model, whose own code is never run", file=path, remedy="copy what you trust"
        )
    bound = dict(_bound(parsed(path).body))
    if attribute not in bound and "*" not in bound:
        remedy = f"it has {', '.join(sorted(bound))}" if bound else "define it there"
        raise UserError(f"no {attribute} in it", file=path, remedy=remedy)
    node = bound.get(attribute)
    if arguments and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.decorator_list:
        least = len(node.args.posonlyargs + node.args.args) - len(node.args.defaults)
        most = len(arguments) if node.args.vararg else len(node.args.posonlyargs + node.args.args)
        if not least <= len(arguments) <= most or None in node.args.kw_defaults:
            what = f"{attribute} cannot be called with ({', '.join(arguments)})"
            raise UserError(what, file=path, line=node.lineno, remedy="give it these arguments, in this order")

    made = ast.unparse(node.value.func) if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) else ""
    kind = made.rpartition(".")[2]
    if node and kinds and kind.endswith("Verifier") and kind not in kinds:
        what, remedy = f"{attribute} is a {kind}", f"give a {_listed(kinds)}"
        raise UserError(what, file=path, line=node.lineno, remedy=remedy)


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Every name that statements bind, with the statement; ``*`` for all names of another module."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0], node) for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (
                (name.id, node) for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)
            )
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                yield from _bound(getattr(node, field, ()))


def find(name: str, known: Mapping[str, T], arguments: Sequence[str] = (), *kinds: type) -> T:
    """The entry of a registry, or the user's ``own``."""
    return own(name, arguments, *kinds) if is_own(name) else known[name]


def own(name: str, arguments: Sequence[str] = (), *kinds: type) -> Any:
    """The object of the user's own: of one of these ``kinds``, or a function that takes these ``arguments``."""
    found = load(name)
    if not (isinstance(found, kinds) if kinds else callable(found)):
        remedy = f"give a {_listed([kind.__name__ for kind in kinds])}" if kinds else "give a function"
        raise UserError(f"{name} is a {type(found).__name__}", remedy=remedy)
    if not kinds:
        check_call(found, name, f"it is called with ({', '.join(arguments)})", arguments)
    return found


def check_call(function: Callable[..., Any], name: str, remedy: str, arguments: Sequence[str]) -> None:
    """``UserError`` if a function cannot be called with these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise UserError(f"{name}: {error}", remedy=remedy) from None


def load(name: str) -> Any:
    """The object ``FILE.py:OBJECT`` or ``MODULE:OBJECT``; an error in the code names its line."""
    module, _, attribute = name.rpartition(":")
    is_file = is_own(name)
    if is_file:
        check_own(name)
    try:
        return getattr(
            _from_file(module, Path(module).resolve()) if is_file else importlib.import_module(module), attribute
        )
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        # The first line that ran in the module; an error of syntax names its place itself.
        ran = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
        own = next((frame for frame in ran if frame.filename not in (__file__, importlib.__file__)), None)
        what = f"cannot load {name!r}: {type(error).__name__}: {first_line(error)}"
        file, line = (own.filename, own.lineno) if own else (None, None)
        remedy = "repair the file" if is_file else "give module:function that Python can import"
        raise UserError(what, file=file, line=line, remedy=remedy) from None


@cache
def _from_file(file: str, path: Path) -> ModuleType:
    """Run the file at ``path`` as a module called ``file``. It can import files beside it, as a script can, but none in place of an installed package."""
    spec = importlib.util.spec_from_file_location(file, file)
    assert spec is not None
    assert spec.loader is not None
    sys.path.append(str(path.parent))
    module = sys.modules[file] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[file]
        raise
    return module


def own_code(settings: Any) -> dict[str, str]:
    """Every ``FILE.py:OBJECT`` in settings as plain values, with a digest of its code."""
    if isinstance(settings, Mapping):
        settings = list(settings.values())
    if isinstance(settings, list | tuple):
        found = [own_code(value) for value in settings]
        return dict(sorted({name: digest for each in found for name, digest in each.items()}.items()))
    names = own_parts(settings) if isinstance(settings, str) else []
    return {name: digest_of_file(Path(name.rsplit(":", 1)[0])) for name in sorted(names)}
