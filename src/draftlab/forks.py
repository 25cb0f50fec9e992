"""Runs verbs without starting Python for each: one server imports the whole package, and forks for every verb.

``begin`` starts the server beside Snakemake; it ends with Snakemake. ``python -m draftlab.forks SOCKET PARENT`` imports, then listens for
requests of ``files/fork_client.py``. For each verb it prints CPU seconds, wall seconds, peak memory in MB, and the arguments. Linux only.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from draftlab.files import digests, fork_client

WORTH = 12
"""The number of jobs from which the server is worthwhile: importing everything takes as long as three starts of Python."""
KEEPS_MEMORY = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=8589934592"
"""Settings of glibc's allocator (the process reads them when it starts): memory that is freed stays with the process. Each step of training frees
and asks for the same sizes, and the system clears every page that it hands out again."""
MAINS = ("draftlab.__main__", "draftlab.forks")
LATE = (
    "torch._dynamo",
    "transformers.models.t5.modeling_t5",
    "sklearn.naive_bayes",
    "pyarrow.parquet",
    "pandas.io.formats.style",
)
"""Modules that verbs import only while they run."""


def begin(log: Path) -> str:
    """Start the server with its output in ``log``, and return a shell function ``draftlab`` that sends verbs to it."""
    folder = tempfile.mkdtemp(prefix=f"draftlab-{socket.gethostname()}-{os.getpid()}-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    place = os.path.join(folder, "draftlab")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        command = [sys.executable, "-m", "draftlab.forks", place, str(os.getpid())]
        env = {"GLIBC_TUNABLES": KEEPS_MEMORY} | os.environ | fork_client.ALONE
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=env)
    return f'draftlab() ( exec {shlex.join([sys.executable, "-IS", fork_client.__file__, place])} "$@" ); '


def serve(place: str, parent: int) -> None:
    """Listen at ``place`` and fork for each request.

    This returns only in the forks, after setting the streams, folder, environment and ``sys.argv`` that the verb would have had.
    """
    from draftlab.files.scratch import die_with_parent

    die_with_parent(parent)
    began = time.monotonic()
    import_all()
    report(resource.getrusage(resource.RUSAGE_SELF), began, ["import"])
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches every process; only the forks react
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{place}.new")
    listener.listen(64)
    os.rename(f"{place}.new", place)
    running: dict[int, tuple[socket.socket, float, list[str]]] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listener:
                    if (received := receive(listener)) is None:
                        continue
                    connection, streams, request = received
                    server = os.getpid()
                    if (pid := os.fork()) == 0:
                        die_with_parent(server)
                        connections = (connection for connection, _, _ in running.values())
                        for inherited in (listener, connection, woken, wake, *connections):
                            inherited.close()
                        become(streams, **request)
                        return
                    for stream in streams:
                        os.close(stream)
                    running[pid] = (connection, time.monotonic(), request["arguments"])
                    selector.register(connection, selectors.EVENT_READ, pid)
                elif key.fileobj is woken:
                    woken.recv(4096)
                    while running and (ended := os.wait4(-1, os.WNOHANG))[0]:
                        pid, status, used = ended
                        connection, began, arguments = running.pop(pid)
                        if connection in selector.get_map():
                            selector.unregister(connection)
                        answer(connection, os.waitstatus_to_exitcode(status))
                        report(used, began, arguments)
                elif key.data in running:  # the client is gone, or is asked to end
                    selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGTERM)


def receive(listener: socket.socket) -> tuple[socket.socket, list[int], dict[str, Any]] | None:
    """Accept a client: its connection, streams and request; None if it was killed while it sent them."""
    connection, _ = listener.accept()
    streams: list[int] = []
    try:
        size, streams, _, _ = socket.recv_fds(connection, 8, 3)
        with connection.makefile("rb") as file:
            return connection, streams, json.loads(file.read(int.from_bytes(size, "big")))
    except (OSError, ValueError):
        connection.close()
        for stream in streams:  # who reads them waits for their end
            os.close(stream)
        return None


def answer(connection: socket.socket, code: int) -> None:
    """Send a client the exit code of its verb, 128 + N for signal N."""
    with connection, contextlib.suppress(OSError):
        connection.send(bytes([code if code >= 0 else 128 - code]))


def report(used: resource.struct_rusage, began: float, arguments: list[str]) -> None:
    """Print a line with the times and the memory of one verb."""
    cpu, wall = used.ru_utime + used.ru_stime, time.monotonic() - began
    print(f"{cpu:.2f}\t{wall:.2f}\t{used.ru_maxrss // 1024}\t{' '.join(arguments)!r}", flush=True)


def become(streams: list[int], arguments: list[str], cwd: str, environment: dict[str, str]) -> None:
    """Give this fork the streams, arguments, folder and environment of the process that it replaces."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    tempfile.tempdir = None
    sys.argv = ["draftlab", *arguments]


def import_all() -> None:
    """Import every module of the package and what they import late, as far as it is installed, and read the code for its digests."""
    import draftlab

    gc.disable()  # importing makes many objects and hardly any garbage
    names = [module.name for module in pkgutil.walk_packages(draftlab.__path__, "draftlab.")]
    for name in (*names, *LATE):
        if name not in MAINS:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    digests.modules_behind(*names)  # every cell records the code of its process
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    from draftlab.cli import command, show_every_character

    show_every_character()  # a fork, whose streams are others by then, cannot change how they are written
    serve(sys.argv[1], int(sys.argv[2]))
    command()
