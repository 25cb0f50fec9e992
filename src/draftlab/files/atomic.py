"""Files and folders written beside their final name and renamed when whole: a killed run leaves nothing half-written."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


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
