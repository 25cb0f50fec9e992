"""On a full disk every writer gives one message with file, space and remedy, and leaves nothing half-written."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.figure import Figure

from draftlab.engine.recorded_pairs import Pairs
from draftlab.engine.recording import load_pass
from draftlab.errors import UserError
from draftlab.files import atomic
from draftlab.files.atomic import atomic_dir, atomic_path, write_text
from draftlab.files.cells import write_cell
from draftlab.files.json_files import write_json, write_jsonl
from draftlab.latency.inflate import inflate
from draftlab.models.gguf import export
from draftlab.models.hf import new_t5
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.tokenizer import train_tokenizer
from draftlab.train import training
from tests.pair import make_results

LARGE = 400_000  # bytes, more than the disk of the test holds


def large_llama() -> Llama:
    return Llama(LlamaConfig(320, 96, 192, 2, 2, 2, 64)).initialise(torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make_results(folder)
    large_llama().save(folder / "large")
    train_tokenizer(["some text"], 320).save(folder / "large")
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder whose disk holds 256 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("this user may not mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _figure(made: Path, out: Path) -> None:
    figure = Figure(figsize=(8, 8))
    figure.subplots().imshow(np.random.default_rng(0).random((600, 600)))
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format="png", dpi=200)


def _pairs(made: Path, out: Path) -> None:
    probs, tokens = torch.zeros(200, 320), torch.zeros(200, dtype=torch.int64)
    Pairs(probs, probs.clone(), tokens, tokens.clone()).save(out)


def _checkpoint(made: Path, out: Path) -> None:
    model = large_llama()
    training.save_checkpoint(out, "me", model, training.adamw(model), 1, {})


def _numpy(made: Path, out: Path) -> None:
    with atomic_path(out) as temporary, temporary.open("wb") as file:
        np.zeros(LARGE, dtype=np.uint8).tofile(file)


WRITERS: dict[str, Callable[[Path, Path], object]] = {
    "text": lambda _, out: write_text(out, "x" * LARGE),
    "json": lambda _, out: write_json(out, ["x" * LARGE]),
    "json lines": lambda _, out: write_jsonl(out, ({"text": "x" * 1000} for _ in range(400))),
    "table": lambda _, out: write_cell(out, pd.DataFrame({"a": ["x" * 100] * 4000}), {}),
    "figure": _figure,
    "model": lambda _, out: large_llama().save(out),
    "t5": lambda _, out: new_t5(320, 64, 128, 2, 2, torch.Generator().manual_seed(0)).save(out),
    "pass": lambda made, out: load_pass(made / "answers/toy.train").save(out),
    "pairs": _pairs,
    "checkpoint": _checkpoint,
    "gguf": lambda made, out: export(made / "large", out),
    "inflated": lambda made, out: inflate(made / "models/target", out, layers=9, ffn=128),
    "numpy": _numpy,
}


@pytest.mark.parametrize("noticed", ["before", "while"])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_is_one_message(
    writer: str, noticed: str, made: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if noticed == "while":  # another process fills the disk after its free space was checked
        room = shutil.disk_usage("/")._replace(free=10**15)
        monkeypatch.setattr(atomic.shutil, "disk_usage", lambda _: room)
    with pytest.raises(UserError, match=r"disk/out.*No space left on device: .* MB are free, .* needed \(free space"):
        WRITERS[writer](made, small_disk / "out")
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("writer", ["text", "table", "model", "t5", "pairs"])
def test_a_limit_of_file_sizes_is_one_message(writer: str, made: Path, tmp_path: Path) -> None:
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGE // 4, usual[1]))
    try:
        with pytest.raises(UserError, match=r"out.*: File too large for .* \(write to another .*ulimit -f"):
            WRITERS[writer](made, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o002])
def test_the_umask_is_respected(umask: int, tmp_path: Path) -> None:
    code = (
        "import numpy\nfrom safetensors.numpy import save_file\n"
        "from draftlab.files.atomic import atomic_dir, atomic_path, write_text\nwrite_text('file', 'x')\n"
        "with atomic_path('tensors') as path: save_file({'x': numpy.zeros(1)}, path)\n"
        "with atomic_dir('folder') as folder: (folder / 'inside').write_text('x')"
    )
    subprocess.run(["sh", "-c", f'umask {umask:o}; exec "$0" -c "$1"', sys.executable, code], cwd=tmp_path, check=True)
    modes = {name: (tmp_path / name).stat().st_mode & 0o777 for name in ("file", "tensors", "folder", "folder/inside")}
    assert modes == {name: (0o777 if name == "folder" else 0o666) & ~umask for name in modes}


def test_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    monkeypatch.setattr(atomic.os, "fsync", noted)
    write_text(tmp_path / "one", "x")
    with atomic_dir(tmp_path / "two") as folder:
        (folder / "inside").write_text("x")
    assert [name.split(".")[1] if name.startswith(".") else name for name in synced] == ["one", "inside"]


def test_other_errors_pass_unchanged(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), atomic_path(tmp_path / "out"):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []


def test_a_linked_file_keeps_its_mode(tmp_path: Path) -> None:
    """It is another folder's too, such as the hub's cache."""
    (tmp_path / "theirs").touch(0o400)
    with atomic_dir(tmp_path / "out") as folder:
        os.link(tmp_path / "theirs", folder / "linked")
    assert (tmp_path / "theirs").stat().st_mode & 0o777 == 0o400


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    """Hours of training must not end with: cannot call rmtree on a symbolic link."""
    (tmp_path / "large disk").mkdir()
    (tmp_path / "large disk/config.json").touch()
    for name, to in (("out", "large disk"), ("new", "not there yet")):
        (tmp_path / name).symlink_to(tmp_path / to)
        with atomic_dir(tmp_path / name) as folder:
            (folder / "model").touch()
        assert [file.name for file in (tmp_path / to).iterdir()] == ["model"]
        assert (tmp_path / name).is_symlink()


@pytest.mark.parametrize("name", ["mine", ".", "..", "mine/inside/.."])
def test_a_folder_with_other_files_is_not_replaced(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine/inside").mkdir(parents=True)
    (tmp_path / "mine/notes.txt").touch()
    monkeypatch.chdir(tmp_path / {".": "mine", "..": "mine/inside"}.get(name, ""))
    with pytest.raises(UserError, match=r"it holds (inside|notes\.txt), which would be lost"), atomic_dir(name):
        pytest.fail("it was begun")
    assert (tmp_path / "mine/notes.txt").exists()


@pytest.mark.parametrize(
    "names", [[], ["config.json", "model.safetensors", "tokenizer.json"], ["sealed.json", "x"], [".x.json.a1b2c3_d"]]
)
def test_a_folder_that_was_written_before_is_replaced(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for name in names:
        (tmp_path / "out" / name).touch()
    with atomic_dir(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["new"]
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_kill_while_the_folder_before_is_deleted_leaves_a_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "out" / name).touch()
    delete = shutil.rmtree

    def killed(path: Path, **given: Any) -> None:
        if (path / "config.json").exists():
            (path / "config.json").unlink()
            raise SystemExit(143)
        delete(path, **given)

    monkeypatch.setattr(shutil, "rmtree", killed)
    with pytest.raises(SystemExit), atomic_dir(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["new"]


def test_a_folder_of_a_containers_image_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rename(self: Path, to: Path) -> Path:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    (tmp_path / "out").mkdir()
    (tmp_path / "out/config.json").touch()
    monkeypatch.setattr(Path, "rename", rename)
    with atomic_dir(tmp_path / "out") as folder:
        (folder / "new").touch()
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["new"]


def test_two_processes_may_write_one_folder_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second renames its folder between the two steps of the first."""
    rename = Path.replace
    late = iter(["second"])

    def replace(self: Path, to: Path) -> Path:
        if name := next(late, None):
            to.mkdir()
            (to / name).touch()
        return rename(self, to)

    monkeypatch.setattr(Path, "replace", replace)
    with atomic_dir(tmp_path / "out") as folder:
        (folder / "first").touch()
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["first"]
    assert [file.name for file in tmp_path.iterdir()] == ["out"]


def test_a_file_is_not_taken_for_a_folder_nor_a_folder_for_a_file(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    with pytest.raises(UserError, match="a file, not a folder"), atomic_dir(tmp_path / "model.gguf"):
        pytest.fail("it was begun")
    with pytest.raises(UserError, match="a folder, not a file"), atomic_path(tmp_path):
        pytest.fail("it was begun")


def test_what_does_not_fit_is_refused_before_it_is_written(tmp_path: Path) -> None:
    for opened in (atomic_path, atomic_dir):
        with pytest.raises(UserError, match=r"No space left .* 1,000,000,000,000"), opened(tmp_path / "out", 10**18):
            pytest.fail("it was begun")


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127, "x" + "\U0001f600" * 63])
def test_a_name_may_be_as_long_as_the_system_allows(name: str, tmp_path: Path) -> None:
    write_text(tmp_path / "files" / name, "text")
    for number in range(2):
        with atomic_dir(tmp_path / "folders" / name) as temporary:
            (temporary / "config.json").write_text(f"{number}")
    assert [path.name for path in (tmp_path / "files").iterdir()] == [name]
    assert [path.name for path in (tmp_path / "folders").iterdir()] == [name]
    assert (tmp_path / "folders" / name / "config.json").read_text() == "1"
