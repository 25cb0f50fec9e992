"""Writes files and folders atomically: under a temporary name beside the final one, flushed to disk, and renamed when complete."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from draftlab.errors import UserError

UMASK = os.umask(0o077)
os.umask(UMASK)
FULL = re.compile(r"No space left on device|Disk quota exceeded|os error (28|122)\b|\d+ requested and \d+ written")
"""How safetensors, numpy and other libraries report a full disk."""
TOO_LARGE = re.compile(r"os error 27\b")
"""The same for a file that is larger than its file system or a limit of the user allows."""
SEAL = "sealed.json"
"""In a folder that draftlab wrote: its seal (``files.seals``)."""
OF_A_MODEL = re.compile(
    r".*\.safetensors(\.index\.json)?|model\.gguf|additional_chat_templates|chat_template\.jinja"
    r"|((generation_)?config|tokenizer(_config)?|special_tokens_map|added_tokens|vocab)\.json"
    r"|[\w.-]+\.model|(merges|vocab)\.txt"
)
"""The names of files in a model folder."""
LEFT = re.compile(r"\..+\.[a-z0-9_]{8}(\.old)?|\.DS_Store")
"""The names of what a killed writer leaves, and of what macOS does."""


def is_first_process() -> bool:
    """Whether this process writes files, out of several that were launched together (``train.parallel``)."""
    return os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def atomic_path(path: Path | str, needs: int = 0) -> Iterator[Path]:
    """Yield a temporary file path beside ``path``; on success it replaces ``path``, on failure it is removed.

    ``needs``: how many bytes will be written, if known; a disk with less free space is refused before anything is written.

    **Raises:** ``UserError`` if ``path`` is a folder, and when the disk is full, whichever error the writing library raises.
    """
    final = Path(path)
    if final.is_dir():
        raise UserError("a folder, not a file", file=path, remedy="name a file in it")
    with contextlib.ExitStack() as cleanup, _room_beside(final, needs):
        handle, name = tempfile.mkstemp(prefix=_beside(final), dir=final.parent)
        os.close(handle)
        temporary = Path(name)
        cleanup.callback(temporary.unlink, missing_ok=True)
        yield temporary
        _flush(temporary)
        temporary.chmod(0o666 & ~UMASK)  # at the end, because safetensors replaces the temporary file by a new one
        temporary.replace(final)


@contextlib.contextmanager
def atomic_dir(path: Path | str, needs: int = 0, ours: Callable[[set[str]], bool] | None = None) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``, which replaces it on success, as ``atomic_path`` does for a file.

    Where ``path`` is a link, the folder that it leads to is replaced.

    **Raises:** ``UserError`` if ``path`` is a file, or a folder with files that would be lost (``check_replaceable``).
    """
    final = Path(path)
    if final.is_symlink() or final.name in ("", ".."):  # "." has no name
        final = final.resolve()
    check_replaceable(final, ours)
    with contextlib.ExitStack() as cleanup, _room_beside(final, needs):
        temporary = Path(tempfile.mkdtemp(prefix=_beside(final), dir=final.parent))
        cleanup.callback(shutil.rmtree, temporary, ignore_errors=True)
        temporary.chmod(0o777 & ~UMASK)
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file() and not file.is_symlink() and file.stat().st_nlink == 1:  # a linked file is not ours
                file.chmod(0o666 & ~UMASK)
                _flush(file)
        _swap(temporary, final)


def _beside(final: Path) -> str:
    """How temporary names beside ``final`` begin. With 8 more characters and ``.old`` they have at most the 255 bytes of a file name."""
    return f".{final.name.encode(errors='ignore')[:241].decode(errors='ignore')}."


def _swap(temporary: Path, final: Path) -> None:
    """Rename a folder to ``final``. What was there moves aside first: a kill while it is deleted would leave a part of it."""
    aside = temporary.with_name(f"{temporary.name}.old")
    while True:
        try:
            final.rename(aside)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            shutil.rmtree(final)  # a folder of a container's image cannot be renamed
        try:
            temporary.replace(final)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            shutil.rmtree(aside, ignore_errors=True)  # another process wrote the folder meanwhile
        else:
            break
        finally:
            if aside.exists() and not final.exists():
                aside.rename(final)
    shutil.rmtree(aside, ignore_errors=True)


def check_replaceable(folder: Path, ours: Callable[[set[str]], bool] | None = None) -> None:
    """Refuse to replace a file, or a folder with files that are not ``ours`` by their names; an empty one or none may be replaced.

    ``ours``: None for a folder with a seal, or with files of a model alone.

    **Raises:** ``UserError`` that names one of the files.
    """
    if folder.is_file():
        raise UserError("a file, not a folder", file=folder, remedy="name a new folder")
    inside = folder.iterdir() if folder.is_dir() else ()
    names = {path.name for path in inside if not LEFT.fullmatch(path.name)}
    if ours is not None:
        lost = set() if ours(names) else names
    else:
        lost = {name for name in names if SEAL not in names and not OF_A_MODEL.fullmatch(name)}
    if lost:
        raise UserError(f"it holds {min(lost)}, which would be lost", file=folder, remedy="name a new folder")


def write_text(path: Path | str, text: str) -> None:
    """Write ``text`` to a file, completely or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _flush(file: Path) -> None:
    """Flush a file to the disk, so that it is not empty if the power fails after it was renamed."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


@contextlib.contextmanager
def _room_beside(path: Path, needs: int) -> Iterator[None]:
    """Make the folder of ``path`` and check that ``needs`` bytes fit; a full disk, also one that a library reports, is a ``UserError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if needs > shutil.disk_usage(path.parent).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        yield
    except UserError:
        raise
    except Exception as error:
        if (isinstance(error, OSError) and error.errno == errno.EFBIG) or TOO_LARGE.search(str(error)):
            remedy = "write to another file system, or raise the limit (ulimit -f), and run again"
            raise UserError("File too large for its file system or a limit", file=path, remedy=remedy) from None
        if not is_disk_full(error):
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


def is_disk_full(error: BaseException) -> bool:
    """Whether an error means that the disk is full."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return bool(FULL.search(str(error)))
