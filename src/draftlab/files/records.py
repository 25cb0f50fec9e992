"""Every record on disk as a typed dataclass, and the only code that knows the file formats.

Files are written beside their final name and renamed when whole, so a killed run leaves nothing half-written.
"""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from draftlab import __version__
from draftlab.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")


@dataclass(frozen=True)
class Prompt:
    """One request: ``text`` is what a user asks; ``reference`` is the dataset's own answer, when it has one."""

    id: str
    dataset: str
    split: str
    text: str
    reference: str | None = None
    meta: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rejection:
    """A raw row that a cleaner turned down, with the place and the reason."""

    file: str
    line: int
    reason: str
    row: str


@dataclass(frozen=True)
class Answer:
    """The target's answer to one prompt, in token ids; ``finished`` when it ends in the end-of-text token."""

    id: str
    prompt_ids: list[int]
    answer_ids: list[int]
    finished: bool


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """A full disk is noticed while bytes are written, by which time the system has forgotten the file's name."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


@contextlib.contextmanager
def atomic_path(path: Path | str) -> Iterator[Path]:
    """Yield a temporary file path beside ``path``; on success it replaces ``path``, on failure it is removed."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{final.name}.", dir=final.parent)
    os.close(handle)
    temporary = Path(name)
    temporary.chmod(0o644)
    try:
        with _named(final):
            yield temporary
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_dir(path: Path | str) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success it replaces ``path``, on failure it is removed."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    temporary.chmod(0o755)
    try:
        with _named(final):
            yield temporary
        if final.exists():
            shutil.rmtree(final)
        temporary.replace(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    """Write one JSON value, indented, keys in the given order."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_json(path: Path | str) -> Any:
    """Read one JSON value; a missing or broken file is a ``UserError``."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="check the path, or run the step that makes it") from None
    except json.JSONDecodeError as error:
        raise UserError(f"not JSON: {error.msg}", file=path, line=error.lineno, remedy="repair the file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8: {error.reason}", file=path, remedy="convert the file to UTF-8") from None


def read_object(path: Path | str) -> dict[str, Any]:
    """Read one JSON object; anything else is a ``UserError``."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError("not a JSON object", file=path, remedy="fetch the file again, or run the step that makes it")
    return found


def read_table(path: Path | str, **options: Any) -> pd.DataFrame:
    """Read a CSV file as ``pandas.read_csv`` does with ``options``; a missing, empty, broken or cut file is a ``UserError``."""
    import pandas as pd

    remedy = "run the step that makes it, or restore it from the repository"
    try:
        text = Path(path).read_text(encoding="utf-8")
        rows = csv.reader(io.StringIO(text))
        header = next(rows, [])
        for row in rows:
            if row and len(row) != len(header):
                found = f"{len(row)} fields, the header has {len(header)}"
                raise UserError(found, file=path, line=rows.line_num, remedy=remedy)
        if text and not text.endswith("\n"):  # its last field may have lost digits
            raise UserError("cut short: no end of line", file=path, line=rows.line_num, remedy=remedy)
        return pd.DataFrame(pd.read_csv(io.StringIO(text), **options))
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy=remedy) from None
    except (ValueError, csv.Error) as error:
        raise UserError(f"not a table: {error}", file=path, remedy=remedy) from None


def write_jsonl(path: Path | str, records: Iterable[Any]) -> int:
    """Write dataclasses (or dicts) one per line; return how many."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for record in records:
            value = dataclasses.asdict(record) if dataclasses.is_dataclass(record) else record  # type: ignore[arg-type]
            file.write(json.dumps(value, ensure_ascii=False) + "\n")
            count += 1
    return count


def read_jsonl(path: Path | str, kind: type[T]) -> Iterator[T]:
    """Read dataclasses of ``kind``; a broken line is a ``UserError`` that names it. For the project's own files:
    raw datasets are read by ``datasets.sources``, which keeps the good rows."""
    try:
        with Path(path).open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                try:
                    yield kind(**json.loads(line))
                except (TypeError, ValueError) as error:
                    raise UserError(
                        f"not a {kind.__name__}: {error}",
                        file=path,
                        line=number,
                        remedy="delete the file and run again",
                    ) from None
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="check the path, or run the step that makes it") from None
    except UnicodeDecodeError as error:
        raise UserError(f"not UTF-8: {error.reason}", file=path, remedy="delete the file and run again") from None


def write_cell(folder: Path | str, rows: pd.DataFrame, run: Mapping[str, Any], **inputs: Iterable[Path]) -> None:
    """Write one cell of an experiment: ``rows.csv`` (observations) and ``run.json`` (``run``, the machine's facts, and digests of the
    ``inputs`` by kind: models, answers, data, ...)."""
    folder = Path(folder)
    if rows.empty:
        raise UserError("no rows were measured", file=folder, remedy="give the cell at least one request")
    with atomic_path(folder / "rows.csv") as temporary:
        rows.to_csv(temporary, index=False, lineterminator="\n")
    facts = {"draftlab": __version__, "code": _code(), **run, "inputs": digests(folder / "../../..", **inputs)}
    write_json(folder / "run.json", facts | {"machine": machine()})


def digests(run: Path, **inputs: Iterable[Path]) -> dict[str, dict[str, str | None]]:
    """Kind -> name below the folder of a ``run`` -> SHA-256; the name of an architecture, which is no file, has none."""
    return {
        kind: {os.path.relpath(path, run) if path.exists() else str(path): _digest(path) for path in sorted(paths)}
        for kind, paths in inputs.items()
    }


def _digest(path: Path) -> str | None:
    """Of a file, or of the weights in a model's folder."""
    from draftlab.models.files import weight_files

    if not path.exists():
        return None
    found = hashlib.sha256()
    for part in weight_files(path) if path.is_dir() else [path]:
        with part.open("rb") as file:
            hashlib.file_digest(file, lambda: found)
    return found.hexdigest()


def _code() -> str:
    """Digest of the draftlab modules that this process loaded: the code behind a cell."""
    from draftlab.plan import code_digest

    loaded = (name for name in sys.modules if name.startswith("draftlab."))
    return code_digest(*sorted(name for name in loaded if name not in ("draftlab.cli", "draftlab.__main__")))


def machine() -> dict[str, Any]:
    """What a figure's reader needs to know of the machine and of the packages behind a number."""
    packages = ("torch", "transformers", "llama-cpp-python", "numpy", "scipy", "snakemake")
    versions = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": versions,
        "commit": _commit(),
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _commit() -> str | None:
    try:
        found = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
