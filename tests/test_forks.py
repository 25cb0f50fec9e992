"""Verbs in forks of one process behave as separate processes, and end with the client that requested them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from draftlab import forks
from draftlab.files import fork_client
from tests.checkout import stand_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="forks are used on Linux alone")

STAND_IN = """
import os, sys, time
from draftlab import forks
from draftlab.files.scratch import end_in_order, run_and_end
forks.import_all = lambda: None
def main():
    end_in_order()
    verb, *words = sys.argv[1:]
    if verb == "say":
        print(os.getcwd(), os.environ.get("MINE"), *words)
        print("wrong", file=sys.stderr)
    elif verb == "fail":
        sys.exit("draftlab: error: as asked")
    elif verb == "code":
        sys.exit(7)
    elif verb == "die":
        os.kill(os.getpid(), 9)
    elif verb == "wait":
        try:
            print("waits", os.getpid(), flush=True)
            time.sleep(60)
        finally:
            open("unwound", "w").close()
forks.serve(sys.argv[1], os.getppid())
run_and_end(main)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a process that imports nothing beforehand, with stand-ins for the verbs."""
    folder = tmp_path_factory.mktemp("forks")
    (folder / "stand_in.py").write_text(STAND_IN)
    with (folder / "starts.tsv").open("w") as file:
        process = subprocess.Popen([sys.executable, folder / "stand_in.py", folder / "draftlab"], stdout=file)
    wait_for((folder / "draftlab").exists)
    yield folder / "draftlab"
    process.kill()
    process.wait()


def wait_for(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def start(place: Path, *words: str, **more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-IS", fork_client.__file__, place, *words]
    env = os.environ | fork_client.ALONE | {"MINE": "a \u00fc\n"}
    return subprocess.Popen(command, env=env, stdout=-1, stderr=-1, text=True, **more)  # type: ignore[call-overload]


def ask(place: Path, *words: str, **more: object) -> tuple[int, str, str]:
    process = start(place, *words, **more)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_a_fork_has_the_arguments_folder_environment_and_streams_of_its_client(place: Path, tmp_path: Path) -> None:
    words = "it's", "two words", "\u202e", ""
    assert ask(place, "say", *words, cwd=tmp_path) == (0, f"{tmp_path} a \u00fc\n {' '.join(words)}\n", "wrong\n")
    assert ask(place, "say", cwd=tmp_path)[0] == 0  # the next one starts anew
    assert "\t" in (place.parent / "starts.tsv").read_text()


def test_exit_codes_and_errors_arrive(place: Path) -> None:
    assert ask(place, "fail") == (1, "", "draftlab: error: as asked\n")
    assert ask(place, "code")[0] == 7
    assert ask(place, "die")[0] == 128 + signal.SIGKILL


def has_ended(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_stopped_client_ends_its_verb_in_order(place: Path, tmp_path: Path, number: int) -> None:
    process = start(place, "wait", cwd=tmp_path)
    assert process.stdout
    worker = psutil.Process(int(process.stdout.readline().split()[1]))
    process.send_signal(number)
    assert process.wait(60) == (-number if number == signal.SIGKILL else 128 + signal.SIGTERM)
    wait_for(lambda: has_ended(worker))
    assert (tmp_path / "unwound").exists()


@pytest.mark.parametrize("threads", ["1", "2"])
def test_without_a_listener_or_with_threads_the_command_itself_runs(place: Path, tmp_path: Path, threads: str) -> None:
    stand_in(tmp_path / "draftlab", 'echo itself "$@"')
    where = tmp_path / "nobody" if threads == "1" else place
    env = os.environ | fork_client.ALONE | {"MKL_NUM_THREADS": threads, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [sys.executable, "-IS", fork_client.__file__, where, "say", "a b"]
    assert subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == "itself say a b\n"


def test_the_streams_of_a_client_that_was_killed_while_it_asked_are_closed(tmp_path: Path) -> None:
    listener, client = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    reading, writing = os.pipe()
    with listener, client, open(reading, "rb") as reader:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client.connect(str(tmp_path / "s"))
        socket.send_fds(client, [(100).to_bytes(8, "big")], [writing] * 3)
        client.close()
        os.close(writing)
        assert forks.receive(listener) is None
        os.set_blocking(reading, False)
        assert reader.read() == b"", "the end of the stream, not None: nothing yet"


def test_the_listener_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib; from draftlab import forks\n"
        f"print(forks.begin(pathlib.Path({str(tmp_path / 'log')!r})), flush=True); time.sleep(60)"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], stdout=-1, text=True)
    assert starter.stdout
    assert starter.stdout.readline().startswith("draftlab() ( exec ")
    wait_for(lambda: psutil.Process(starter.pid).children())
    (server,) = psutil.Process(starter.pid).children()
    assert forks.KEEPS_MEMORY.startswith(server.environ()["GLIBC_TUNABLES"])  # older glibc cuts the text as it reads it
    starter.kill()
    starter.wait()
    wait_for(lambda: has_ended(server))


def test_imports_start_no_thread_use_no_gpu_and_read_the_code_once() -> None:
    """Otherwise a fork could wait for a lock that none of its threads holds. Reading all code for its digest takes most of a second."""
    script = (
        "import os, pathlib, sys; from draftlab import forks; forks.import_all(); import torch\n"
        "from draftlab.files import cells, digests; read = digests._module.cache_info().misses; cells._code()\n"
        "threads = [task.read_text().strip() for task in pathlib.Path('/proc/self/task').glob('*/comm')]\n"
        "print(len(threads) - threads.count('jemalloc_bg_thd'), torch.cuda.is_initialized(), torch.get_num_threads(),"
        " 'draftlab.train.online' in sys.modules, 'torch._dynamo' in sys.modules,"
        " digests._module.cache_info().misses - read)"
    )  # pyarrow's jemalloc stops its thread before a fork and starts it after
    env = os.environ | fork_client.ALONE
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "1 False 1 True True 0\n"
    assert forks.WORTH > 3


@pytest.mark.parametrize("keeps", [True, False])
def test_freed_memory_is_used_again_without_the_system(keeps: bool) -> None:
    script = (
        "import resource\n"
        "def step(): return [b'1' * (10 << 20) for _ in range(8)] and None\n"
        "step(); before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt; step()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)"
    )
    env = os.environ | {"GLIBC_TUNABLES": forks.KEEPS_MEMORY if keeps else ""}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    pages = 80 * 256  # of 4 kB
    assert (int(done.stdout) < pages / 10) == keeps
