"""Cleans up after runs: temporary folders that are removed even after a kill, child processes that end with their parent, and a quick end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

PDEATHSIG = 1


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder below ``TMPDIR`` that is removed afterwards; first remove the folders that killed processes left there."""
    base = Path(tempfile.gettempdir())
    mine = f"draftlab-{socket.gethostname()}-"
    for old in base.glob(f"{mine}*"):
        pid = old.name.removeprefix(mine).partition("-")[0]
        with contextlib.suppress(FileNotFoundError):  # another job may remove it at the same time
            if pid.isdecimal() and not _lives(int(pid)) and old.stat().st_uid == os.getuid():
                shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{mine}{os.getpid()}-") as name:
        yield Path(name)


def _lives(pid: int) -> bool:
    """Whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def die_with_parent(parent: int) -> None:
    """Kill this process when its parent ends; also if ``parent`` has already ended. On Linux the system does; elsewhere a thread looks each second."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def end_in_order() -> None:
    """Let SIGTERM (a scheduler's time limit) end this process like an exception, so that half-written files are removed."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def run_and_end(command: Callable[[], object]) -> NoReturn:
    """Run a command and end this process with its exit code, without taking the interpreter apart first.

    With torch imported, Python's own end takes 0.4 CPU seconds: it frees one by one what the system frees at once.
    What ``atexit`` registered still runs.
    """
    code: str | int | None = None
    try:
        command()
    except SystemExit as end:
        code = end.code
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe, a full disk, or a closed stream
            print(end="", file=stream, flush=True)
    os._exit(code or 0)
