"""Values of --config and of make's CONFIG are data: no wildcard, no flag, no shell; and an error nobody foresaw is one line."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from draftlab import cli, plan
from draftlab.errors import UserError
from tests.checkout import environment, snakemake, stand_in
from tests.conftest import ROOT


def test_braces_are_no_wildcards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for key, name in (("dataset", "a{run}.jsonl"), ("raw", "a{run}"), ("target", "a{run}/b")):
        Path(name).mkdir(parents=True)
        with pytest.raises(UserError, match="braces"):
            plan.load_run({"scale": "smoke", key: name}, plan.WORKFLOW)


def test_a_name_like_a_flag_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-x.jsonl").write_text('{"prompt": "a"}\n')
    assert plan.load_run({"scale": "smoke", "dataset": "-x.jsonl"}, plan.WORKFLOW).raw_folder == "./-x.jsonl"


def test_a_typo_in_a_folder_is_no_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    with pytest.raises(UserError, match=r"no such folder: models/typo, though models/ exists"):
        plan.load_run({"scale": "smoke", "target": "models/typo"}, plan.WORKFLOW)
    assert plan.load_run({"scale": "smoke", "target": "models/typo@main"}, plan.WORKFLOW)
    assert plan.load_run({"scale": "smoke", "target": "owner/name"}, plan.WORKFLOW)


def make(folder: Path, *words: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of the Makefile beside stand-ins of the programs that it starts."""
    shutil.copy(ROOT / "Makefile", folder)
    environment = {key: own for key, own in os.environ.items() if key not in ("MAKEFLAGS", "MFLAGS")}
    command = ["make", "-o", ".venv/ready", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment | given)


@pytest.mark.parametrize(
    "value", ["a=b;touch ran", "a=$(touch ran)", "a=`touch ran`", "a=b | touch ran", "a=$(shell touch ran)"]
)
@pytest.mark.parametrize("given", ["word", "environment"])
def test_make_runs_nothing_of_config(value: str, given: str, tmp_path: Path) -> None:
    for name in ("snakemake", "draftlab"):
        stand_in(tmp_path / ".venv/bin" / name, 'for word; do echo "<$word>"; done')
    (tmp_path / ".venv/ready").touch()
    if given == "word":
        done = make(tmp_path, "reproduce", f"CONFIG={value}")
    else:
        done = make(tmp_path, "reproduce", CONFIG=value)
    assert not (tmp_path / "ran").exists()
    told = [word for word in re.findall("<(.*)>", done.stdout) if word != "summary"]
    assert told[-len(value.split()) :] == value.split(), done


def test_make_leaves_every_command_to_the_shell(tmp_path: Path) -> None:
    """The make of macOS starts plain ones itself, unless SHELL differs from its default, and does not find those of .venv."""
    said = make(tmp_path, "--print-data-base", "--dry-run", "types").stdout
    assert re.findall("^SHELL := (.*)", said, re.MULTILINE) == ["sh"]


def test_make_figures_leaves_out_what_was_published_under_another_name(tmp_path: Path) -> None:
    for folder in ("workflow/scales", "paper_figures/laptop/data", "paper_figures/my run/data"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "workflow/scales/laptop.yaml").touch()
    stand_in(tmp_path / ".venv/bin/snakemake", 'echo "drawn: $*"')
    done = make(tmp_path, "figures")
    assert done.returncode == 0, done.stderr
    assert re.findall("drawn: .*", done.stdout) == ["drawn: --cores all paper_figures --config scale=laptop"]
    assert "paper_figures/my run is not redrawn" in done.stdout


@pytest.mark.slow
def test_make_test_ends_if_a_worker_is_killed(tmp_path: Path) -> None:
    """pytest-xdist would start another worker, and wait for it without end."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "test_a.py").write_text("import os\n\n\ndef test_killed():\n    os.kill(os.getpid(), 9)\n")
    for name in "bcdef":
        (tmp_path / f"test_{name}.py").write_text("def test_one():\n    pass\n\n\ndef test_two():\n    pass\n")
    words = ["timeout", "120", "make", "-o", ".venv/ready", "test"]
    environment = {key: own for key, own in os.environ.items() if not key.startswith(("MAKE", "MFLAGS", "PYTEST"))}
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 2, done
    assert "crashed while running 'test_a.py::test_killed'" in done.stdout


def test_an_error_that_nobody_foresaw_is_one_line_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_secretsecret")

    def fail() -> None:
        raise LookupError("first line hf_secretsecret\nsecond line")

    with pytest.raises(SystemExit) as stop:
        cli.exit_on_error(fail)
    (log,) = tmp_path.iterdir()
    message = f"LookupError: first line … (a bug in draftlab, unless you wrote that line: please report it with {log})"
    assert re.sub(r"cli\.py:\d+", "cli.py:N", str(stop.value.code)) == (
        f"draftlab: unexpected error: {cli.__file__}:N: {message}"
    )
    text = log.read_text()
    assert "Traceback" in text
    assert "second line" in text
    assert "secret" not in text
    assert sys.argv[0] in text


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError(
                "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is free."
                " Process 1 has 38.2 GiB memory in use. See documentation"
            ),
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 39.39 GiB of which 1.12 GiB is free"
            " (lower batch_tokens, batch, micro_batch or sample_batch: docs/paper.md, A smaller GPU; finished parts are kept)",
        ),
        (RuntimeError("CUDA error: out of memory\nSearch"), "CUDA error: out of memory\\nSearch (lower batch_tokens, "),
        (MemoryError(), "the machine's memory is full: MemoryError (lower batch_tokens, "),
        (
            RuntimeError("[enforce fail] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
            "the machine's memory is full: [enforce fail] err == 0. DefaultCPUAllocator: can't allocate memory: you tried (lower",
        ),
    ],
)
def test_a_full_memory_is_no_bug_and_the_message_says_what_to_lower(error: Exception, said: str) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(SystemExit) as stop:
        cli.exit_on_error(fail)
    assert str(stop.value.code).startswith(f"draftlab: error: {said}")


def test_an_error_inside_a_users_function_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    own = str(Path(cli.__file__).with_name("core") / "verify" / "last.py")
    added: dict[str, Any] = {}
    exec(compile("\n\ndef decide(tokens):\n    return tokens['a']\n", own, "exec"), added)
    with pytest.raises(SystemExit, match=re.escape(f"draftlab: unexpected error: {own}:4: KeyError: 'a' (")):
        cli.exit_on_error(lambda: added["decide"]({}))


@pytest.mark.parametrize("name", ["a #1.jsonl", "a: b.jsonl"])
def test_a_name_that_yaml_cuts_is_not_read_as_another_file(name: str, tmp_path: Path) -> None:
    """Snakemake reads ``a #1.jsonl`` as ``a``, also in quotes, because it gives its jobs the text without them."""
    for file in ("a", name):
        (tmp_path / file).write_text('{"prompt": "one"}\n' * 2)
    said = re.escape(f"dataset: Snakemake reads {tmp_path / name} as ")
    for text in (f"{tmp_path / name}", f'"{tmp_path / name}"'):
        with pytest.raises(UserError, match=said):
            plan.run.run_of(["scale=smoke", f"dataset={text}"])
        for before in ("", "--config=", "-C"):
            with pytest.raises(UserError, match=said):
                plan.check_names(["snakemake", "-n", f"{before}dataset={text}"])
    with pytest.raises(UserError, match="dataset: Snakemake reads a' as a "):
        plan.check_names(["dataset=a'"])
    plan.check_names(["-Cdataset='a b.jsonl'", "dataset=''", "--config=dataset=a.jsonl"])
    words = ["-n", "--directory", str(tmp_path), "--config", "scale=smoke", f"dataset={tmp_path / name}"]
    assert re.search(said, snakemake(ROOT, *words, check=False))


@pytest.mark.workflow
@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ('"""Mine."""\n\ndef run(:\n', 3, "SyntaxError: invalid syntax"),
        ('"""Mine."""\n\nfrom draftlab.core import nothing\n', 3, "ImportError: cannot import name 'nothing' from"),
        ('"""Mine."""\nfrom draftlab.stages._stage import column\ncolumn()\n', 3, "TypeError: column() missing 1"),
    ],
)
def test_a_stage_that_python_cannot_import_is_named_with_its_line(
    checkout: Path, text: str, line: int, said: str
) -> None:
    stage = checkout / "src/draftlab/stages/mine.py"
    stage.write_text(text)
    try:
        planned = snakemake(checkout, "-n", "--config", "scale=smoke", check=False)
        words = [sys.executable, "-m", "draftlab", "plan", "--help"]
        done = subprocess.run(words, env=environment(checkout), capture_output=True, text=True)
    finally:
        stage.unlink()
    [named] = [found for found in planned.splitlines() if str(stage) in found]
    assert named.startswith(f"{stage}:{line}: this stage cannot be imported: {said}")
    assert named.endswith("(repair the file, or begin its name with _ if it is no stage)")
    assert "importlib" not in planned
    assert done.returncode == 1
    assert done.stderr == f"draftlab: error: {named}\n"
