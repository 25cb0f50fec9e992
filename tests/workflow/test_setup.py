"""What `make` says where .venv cannot be made: one line with a remedy, and no half of a .venv that the next `make` would take for whole."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkout import stand_in
from tests.conftest import ROOT

TOOLS = (
    "sh",
    "dirname",
    "df",
    "awk",
    "grep",
    "cut",
    "cksum",
    "ls",
    "touch",
    "mkdir",
    "rm",
    "env",
    "cat",
    "getconf",
    "tr",
    "uname",
)


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with the script, and ``bin``: the only tools that it will find."""
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (tools / name).symlink_to(found)
    (tools / "python3").symlink_to(sys.executable)
    stand_in(tmp_path / "bin/c++", "exit 0")
    return tmp_path


def failure(checkout: Path, **more: str) -> str:
    """The one line on stderr of a run that must fail."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    done = subprocess.run(
        ["envs/setup.sh"],
        cwd=checkout,
        env=plain | {"PATH": str(checkout / "bin"), "HOME": str(checkout)} | more,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert not (checkout / ".venv/ready").exists()
    (line,) = done.stderr.splitlines()
    assert line.startswith("draftlab: error: ")
    return line


PYTHON = """case "$*" in
-c*) ;;
--version) echo Python 3.11 ;;
'-m venv .venv') mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
'-m venv --clear .venv') rm -rf .venv && mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
*' wheel '*) for word; do [ "$before" = -w ] && touch "$word/llama_cpp_python-{version}-py3.whl"; before=$word; done ;;
esac
echo "$CMAKE_ARGS $*" >>commands"""
"""A Python that only notes what it is told, and does what the script looks at afterwards."""


@pytest.fixture
def setup(checkout):
    """Runs the script with the Python that notes its commands; ``more`` in its environment. Its pip commands, and its last line."""
    version = re.search(r"^llama-cpp-python==(.*)$", (checkout / "envs/constraints.txt").read_text(), re.M)[1]
    stand_in(checkout / "bin/python3", PYTHON.format(version=version))
    stand_in(checkout / "bin/df", "echo header; echo disk 1 1 9000000 1% /")
    (checkout / "bin/cp").symlink_to(shutil.which("cp"))
    env = {"PATH": str(checkout / "bin"), "HOME": str(checkout), "CPUINFO": str(checkout / "cpuinfo")}

    def commands(**more: str) -> list[str]:
        (checkout / "commands").unlink(missing_ok=True)
        done = subprocess.run(["envs/setup.sh"], cwd=checkout, env=env | more, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert ". .venv/bin/activate" in done.stdout.splitlines()[-1]
        (checkout / "said").write_text(done.stdout)
        return [line for line in (checkout / "commands").read_text().splitlines() if " pip " in line]

    return commands


def test_named_flags_and_the_index_of_torch_reach_pip_and_the_flags_are_kept(checkout, setup):
    told = setup(PIP_ARGS="--index-url URL", LLAMA_CMAKE_ARGS="-DGGML_CUDA=ON")
    assert [("torch" in line, "wheel" in line) for line in told if "--index-url URL" in line] == [(True, False)]
    first, second = (line for line in told if "torch" in line or "--require-hashes" in line)
    assert "--require-hashes" in first  # else torch would bring its dependencies, whose digests nobody compares
    assert second.endswith("torch --index-url URL")
    assert [line.count("-DGGML_CUDA=ON") for line in told if " wheel " in line] == [1]
    assert sum("--force-reinstall" in line for line in told) == 1
    (checkout / ".venv/ready").unlink()
    assert not [line for line in setup() if " wheel " in line]  # the kept flags, whose wheel is there
    assert [line.count("CUDA") for line in setup(LLAMA_CMAKE_ARGS="") if " wheel " in line] == [0]


AMX = {"AMX_TILE", "AMX_INT8", "AMX_BF16"}


def flags(told: list[str]) -> list[set[str]]:
    """What each compilation of llama.cpp turns on."""
    return [set(re.findall(r"-DGGML_(\w+)=ON", line)) for line in told if " wheel " in line]


def test_llama_cpp_is_compiled_for_the_processor_as_far_as_the_compiler_knows_it(checkout, setup):
    (checkout / "cpuinfo").write_text("flags: sse avx2 avx512bw avx512_vnni avx512_bf16 amx_tile\n")
    stand_in(checkout / "bin/c++", 'case "$1" in -mavx512bf16) exit 1 ;; esac')
    assert flags(setup()) == [{"AVX512", "AVX512_VNNI"}]
    stand_in(checkout / "bin/clang++-16", "exit 0")  # gcc's AMX crashes, clang's does not
    assert flags(setup()) == [{"AVX512", "AVX512_VNNI"} | AMX]


@pytest.mark.parametrize(
    ("system", "machine", "native", "blas"),
    [("Linux", "x86_64", 0, 0), ("Linux", "aarch64", 1, 0), ("Darwin", "arm64", 1, 1)],
)
def test_on_arm_the_compiler_chooses_the_instructions_and_on_macos_no_library_has_threads_of_its_own(
    checkout, setup, system, machine, native, blas
):
    (checkout / "bin/uname").unlink()
    stand_in(checkout / "bin/uname", f'case "$1" in -s) echo {system} ;; -m) echo {machine} ;; esac')
    (told,) = (line for line in setup() if " wheel " in line)
    assert (told.count("-DGGML_NATIVE=ON"), told.count("-DGGML_BLAS=OFF")) == (native, blas)
    assert not native or told.index("-DGGML_NATIVE=OFF") < told.index("-DGGML_NATIVE=ON"), "the last one counts"


@pytest.mark.parametrize(
    ("flag", "compiler", "said"), [("amx_tile", "c++", 1), ("amx_tile", "clang++-16", 0), ("sse", "c++", 0)]
)
def test_amx_without_clang_is_said(checkout, setup, flag, compiler, said):
    (checkout / "cpuinfo").write_text(f"flags: avx512bw {flag}\n")
    stand_in(checkout / "bin" / compiler, "exit 0")
    setup()
    assert (checkout / "said").read_text().count("apt install clang-16") == said


@pytest.mark.parametrize(("flag", "tried"), [("", [{"AVX512"}, set()]), ("amx_tile", [{"AVX512"} | AMX, {"AVX512"}])])
def test_a_build_that_fails_its_self_check_is_not_kept(checkout, setup, flag, tried):
    (checkout / "cpuinfo").write_text(f"flags: avx512bw {flag}\n")
    stand_in(checkout / "bin/clang++-16", "exit 0")
    python = (checkout / "bin/python3").read_text()
    once = """case "$*" in *self_check*) if [ ! -e failed ]; then touch failed; exit 1; fi ;; esac\n"""
    (checkout / "bin/python3").write_text(python.replace("#!/bin/sh\n", f"#!/bin/sh\n{once}"))
    assert flags(setup()) == tried
    assert flags(setup()) == []  # it is not tried again


def test_what_a_failed_setup_leaves_is_not_ready(checkout, setup):
    setup()
    assert (checkout / ".venv/ready").exists()
    python = (checkout / "bin/python3").read_text()
    (checkout / "bin/python3").write_text(
        python.replace("#!/bin/sh\n", "#!/bin/sh\ncase $* in *hashes*) exit 1 ;; esac\n")
    )
    assert "pip install failed" in failure(checkout, LLAMA_CMAKE_ARGS="-DGGML_CUDA=ON")


def test_a_compilation_that_fails_once_is_tried_again_by_the_next_setup(checkout, setup):
    (checkout / "cpuinfo").write_text("flags: avx512bw\n")
    python = (checkout / "bin/python3").read_text()
    once = """case "$*" in *' wheel '*)
    if [ ! -e failed ]; then touch failed; echo "$CMAKE_ARGS $*" >>commands; exit 1; fi ;; esac\n"""
    (checkout / "bin/python3").write_text(python.replace("#!/bin/sh\n", f"#!/bin/sh\n{once}"))
    assert flags(setup()) == [{"AVX512"}, set()]
    assert flags(setup()) == [{"AVX512"}]


def test_a_cache_that_cannot_be_written(checkout, setup):
    (checkout / "file").touch()
    assert "or name another cache: XDG_CACHE_HOME=FOLDER make" in failure(checkout, XDG_CACHE_HOME=f"{checkout}/file")


def test_a_venv_of_another_python_or_of_one_that_is_gone_is_made_anew_with_its_flags(checkout, setup):
    setup(LLAMA_CMAKE_ARGS="-DGGML_CUDA=ON")
    (checkout / ".venv/stays").touch()
    setup()
    assert (checkout / ".venv/stays").exists()
    python = checkout / ".venv/bin/python"
    for is_gone in (False, True):
        (checkout / ".venv/stays").touch()
        stand_in(python, "echo Python 3.12")
        if is_gone:
            python.unlink()
            python.symlink_to("/absent/python")
        setup()
        assert not (checkout / ".venv/stays").exists()
        assert (checkout / ".venv/llama-flags").read_text() == "-DGGML_CUDA=ON\n"


def test_make_asks_for_another_venv_when_other_flags_are_named_or_its_python_is_gone(checkout):
    shutil.copy(ROOT / "Makefile", checkout)
    python = checkout / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (checkout / ".venv/llama-flags").write_text("-DGGML_CUDA=ON\n")
    (checkout / ".venv/ready").touch()

    def makes(*words):
        done = subprocess.run(["make", "-n", ".venv/ready", *words], cwd=checkout, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return "envs/setup.sh" in done.stdout

    assert not makes()
    assert not makes("LLAMA_CMAKE_ARGS=-DGGML_CUDA=ON")
    assert makes("LLAMA_CMAKE_ARGS=-DGGML_VULKAN=ON")
    assert makes("LLAMA_CMAKE_ARGS=")
    (checkout / ".venv/llama-flags").write_text("-DA=ON  -DB=ON\n")
    assert not makes("LLAMA_CMAKE_ARGS=-DA=ON  -DB=ON")
    (checkout / ".venv/llama-flags").write_text("\n")
    assert not makes("LLAMA_CMAKE_ARGS=")
    python.unlink()
    python.symlink_to("/absent/python")
    assert makes()


def test_the_venv_behind_a_link_is_left_as_it_is(checkout, tmp_path_factory):
    shared = tmp_path_factory.mktemp("shared")
    (checkout / ".venv").symlink_to(shared)
    (shared / "mine").touch()
    assert failure(checkout) == (
        "draftlab: error: .venv is a link, which cannot be made anew (remove it, or if what it leads to is up to date: touch .venv/ready)"
    )
    (shared / "ready").touch()
    plain = {"PATH": f"{checkout / 'bin'}:{os.environ['PATH']}", "HOME": str(checkout)}
    done = subprocess.run(["envs/setup.sh"], cwd=checkout, env=plain, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert sorted(file.name for file in shared.iterdir()) == ["mine", "ready"]


def test_no_compiler(checkout):
    (checkout / "bin/c++").unlink()
    assert "no C++ compiler found" in failure(checkout)


def test_an_old_python_found_or_named(checkout):
    old = stand_in(checkout / "bin/python3", "exit 1")
    assert "no Python 3.11 or newer found" in failure(checkout)
    assert f"{old} is not Python 3.11 or newer" in failure(checkout, PYTHON=str(old))


def test_a_python_without_venv(checkout):
    bare = stand_in(checkout / "bin/bare", 'case "$2" in *ensurepip*) exit 1 ;; esac')
    assert "apt install python3-venv" in failure(checkout, PYTHON=str(bare))


def test_a_python_without_its_headers(checkout):
    """Debian has them in a package of their own, and the index has no wheel of pycddlib."""
    bare = stand_in(checkout / "bin/bare", 'case "$2" in *Python.h*) exit 1 ;; esac')
    assert "apt install python3-dev" in failure(checkout, PYTHON=str(bare))


def test_a_full_disk(checkout):
    stand_in(checkout / "bin/df", "echo header; echo disk 1 1 256500 1% /")
    assert "only 250 MB free here" in failure(checkout)


def test_no_network(checkout):
    nowhere = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    assert "the package index cannot be reached" in failure(checkout, **nowhere)


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        ("", 0, "advisories: skipped, pip-audit is not installed"),
        (
            "echo 'ERROR: no route to host' >&2; exit 1",
            0,
            "skipped, no advisory database answers: ERROR: no route to host",
        ),
        ("echo 'Found 1 known vulnerability in 1 package' >&2; exit 1", 1, "Found 1 known vulnerability"),
        ("case $* in *--strict*) exit 0 ;; esac; exit 3", 0, "advisories: no known vulnerability"),
    ],
)
def test_advisories_are_asked_where_they_can_be_had(checkout, body, code, words):
    """What the database does not know is no clean bill: a package that is not found ends a strict audit."""
    (checkout / "bin/tail").symlink_to(shutil.which("tail"))
    if body:
        stand_in(checkout / "bin/pip-audit", body)
    done = subprocess.run(
        ["envs/audit.sh"], cwd=checkout, env={"PATH": str(checkout / "bin")}, capture_output=True, text=True
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert words in done.stdout + done.stderr
