"""The one way to write a file or folder: beside its final name, brought to the disk, renamed when whole."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from draftlab.errors import UserError

UMASK = os.umask(0o077)
os.umask(UMASK)
FULL = (errno.ENOSPC, errno.EDQUOT)
SAID_FULL = re.compile(r"No space left on device|Disk quota exceeded|os error (28|122)\b|\d+ requested and \d+ written")
"""What safetensors, numpy and others make of it."""


@contextlib.contextmanager
def atomic_path(path: Path | str, needs: int = 0) -> Iterator[Path]:
    """Yield a temporary file path beside ``path``; on success it replaces ``path``, on failure it is removed.

    ``needs``: the bytes that are to be written, where they are known; a disk with less room is refused before any is written.

    **Raises:** ``UserError`` when the disk is full, whatever error the library that writes makes of it.
    """
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    with _told(final, needs):
        handle, name = tempfile.mkstemp(prefix=f".{final.name}.", dir=final.parent)
        os.close(handle)
    temporary = Path(name)
    try:
        with _told(final, needs):
            if needs > shutil.disk_usage(final.parent).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final))
            yield temporary
            _settle(temporary)
        temporary.chmod(0o666 & ~UMASK)  # at the end: safetensors puts a file of its own in this one's place
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_dir(path: Path | str, needs: int = 0) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``, as ``atomic_path`` does a file."""
    final = Path(path)
    final.parent.mkdir(parents=True, exist_ok=True)
    with _told(final, needs):
        temporary = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    temporary.chmod(0o777 & ~UMASK)
    try:
        with _told(final, needs):
            if needs > shutil.disk_usage(final.parent).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(final))
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:  # a link's file is another's
                    file.chmod(0o666 & ~UMASK)
                    _settle(file)
        if final.exists():
            shutil.rmtree(final)
        temporary.replace(final)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _settle(file: Path) -> None:
    """Bring a file's bytes to the disk: what is renamed must not be empty after a power cut."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


@contextlib.contextmanager
def _told(path: Path, needs: int) -> Iterator[None]:
    """A full disk is one error with the file's name, whether the system says so, a library of C, or one of Rust."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if not _is_full(error):
            if isinstance(error, OSError) and error.errno is not None:
                error.filename = error.filename or str(path)
            raise
        free = shutil.disk_usage(path.parent).free
        size = f"{needs / 1e6:,.1f} MB are needed" if needs else "more is needed"
        raise UserError(
            f"No space left on device: {free / 1e6:,.1f} MB are free, {size}",
            file=path,
            remedy="free space, or write elsewhere, and run again",
        ) from None


def _is_full(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in FULL
    return bool(SAID_FULL.search(str(error)))
