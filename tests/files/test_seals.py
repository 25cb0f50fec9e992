"""Digests of a run's outputs and inputs: a change of the bytes is noticed, a change of the time alone is not one."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftlab.data import sources
from draftlab.engine.recorded_pairs import Pairs, load_pairs
from draftlab.engine.recording import load_pass
from draftlab.errors import UserError
from draftlab.files import seals
from draftlab.files.atomic import SEAL
from draftlab.files.cells import write_cell
from draftlab.files.json_files import read_json
from draftlab.files.seals import check_content, content_digest, remove_and_report_damaged, remove_damaged, seal, verify
from draftlab.files.tables import join_tables, read_table
from draftlab.models import load_model
from draftlab.models.config import TOOL_TEMPLATE
from draftlab.models.hub import copy_model
from tests.pair import make_results


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with one pair."""
    folder = tmp_path_factory.mktemp("made")
    make_results(folder / "main")
    zeros = torch.zeros(20, dtype=torch.int64)
    Pairs(torch.rand(20, 30), torch.rand(20, 30), zeros, zeros + 1).save(folder / "main/pairs/toy.safetensors")
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def reverse_columns(file: Path) -> None:
    """Another tensor of the same shape and the same file size."""
    tensors = load_file(file)
    name = next(name for name, tensor in tensors.items() if tensor.ndim == 2)
    save_file(tensors | {name: tensors[name].flip(-1).contiguous()}, file)


def cut(file: Path) -> None:
    """Fewer bytes at the same time."""
    when = file.stat().st_mtime_ns
    file.write_bytes(file.read_bytes()[:-7])
    os.utime(file, ns=(when, when))


READERS: dict[str, Callable[[Path], object]] = {
    "main/answers/toy.train/distributions.safetensors": lambda file: load_pass(file.parent),
    "main/answers/toy.train/answers.jsonl": lambda file: load_pass(file.parent),
    "main/models/draft/model.safetensors": lambda file: load_model(file.parent),
    "main/pairs/toy.safetensors": load_pairs,
}


@pytest.mark.parametrize("damage", [reverse_columns, cut])
@pytest.mark.parametrize("name", READERS)
def test_other_bytes_are_refused_and_made_again(
    name: str, damage: Callable[[Path], None], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if damage is reverse_columns and name.endswith(".jsonl"):
        pytest.skip("no tensors")
    file = run / name
    READERS[name](file)
    damage(file)
    with pytest.raises(UserError, match="its content is not what was written here") as error:
        READERS[name](file)
    assert error.value.file == file
    remove_and_report_damaged(run)
    assert f"{file}: missing, damaged, or changed since" in capsys.readouterr().err
    assert not file.exists()
    declared = {"answers": "answers.jsonl", "models": "config.json", "pairs": file.name}[Path(name).parts[1]]
    assert not (file.parent / declared).exists()
    others = [other for other in READERS if Path(other).parent != Path(name).parent]
    assert all((run / other).exists() for other in others)


@pytest.mark.parametrize("name", ["draft", "kept_learning"])
def test_a_cell_whose_draft_is_damaged_runs_again(name: str, run: Path) -> None:
    cell = run / "cells/traffic_verdict/prompts.0"
    shutil.copytree(run / "main/models/draft", cell / name)
    (cell / "rows.csv").touch()
    cut(cell / name / "model.safetensors")
    remove_and_report_damaged(run)
    assert not (cell / "rows.csv").exists()
    assert not (cell / name / "model.safetensors").exists()


@pytest.mark.parametrize("damage", [cut, Path.unlink])
@pytest.mark.parametrize("name", ["toy.csv", "cells/toy/1/rows.csv"])
def test_a_table_or_a_cell_that_is_damaged_or_missing_takes_the_report_with_it(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    write_cell(tmp_path / "cells/toy/1", pd.DataFrame({"a": [1, 2]}), {})
    join_tables((tmp_path / "cells/toy/1/rows.csv",), tmp_path / "toy.csv")
    (tmp_path / "report.html").touch()
    assert list(remove_damaged(tmp_path)) == []
    assert (tmp_path / "report.html").exists()
    damage(tmp_path / name)
    assert list(remove_damaged(tmp_path)) == [tmp_path / name]
    assert not (tmp_path / name).exists()
    assert not (tmp_path / "report.html").exists(), "without it, Snakemake finds nothing to do"


def test_a_table_with_fewer_rows_is_refused(tmp_path: Path) -> None:
    write_cell(tmp_path / "cells/toy/1", pd.DataFrame({"a": [1, 2]}), {})
    join_tables((tmp_path / "cells/toy/1/rows.csv",), tmp_path / "toy.csv")
    assert len(read_table(tmp_path / "toy.csv")) == 2
    (tmp_path / "toy.csv").write_text("a\n1\n")
    with pytest.raises(UserError, match="its content is not what was written here"):
        read_table(tmp_path / "toy.csv")


def test_a_sound_run_is_left_alone_and_not_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in run.rglob("*"):  # a copy has other times: each is read once, and is the same
        os.utime(file)
    assert list(remove_damaged(run)) == []
    for folder in {Path(name).parent for name in READERS if "pairs" not in name}:
        seal(run / folder)
    seals.seal_file(run / "main/pairs/toy.safetensors")
    monkeypatch.setattr(seals.hashlib, "file_digest", lambda *_: pytest.fail("read"))
    for name in READERS:
        verify(run / name)


def test_a_file_that_nobody_sealed_is_read(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("x")
    assert verify(tmp_path / "one") == tmp_path / "one"
    (tmp_path / "sealed.json").write_text("[")
    assert verify(tmp_path / "one")


def test_linked_weights_that_change_stop_the_run(run: Path, tmp_path: Path) -> None:
    original = run / "main/models/draft"
    copy_model(str(original), tmp_path / "copy")
    before = content_digest(original)
    load_model(tmp_path / "copy")
    reverse_columns(original / "model.safetensors")
    with pytest.raises(UserError, match="its content is not what was written"):
        load_model(tmp_path / "copy")
    with pytest.raises(UserError, match="changed while the run was under way"):
        check_content(original, before)


def test_content_follows_the_bytes_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seals, "RACY", 0)
    remembered = tmp_path / "digests.json"
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_text(name)
    old = 1_000_000_000
    first = content_digest(folder, remembered=remembered)
    for name in ("config.json", "model.safetensors"):
        os.utime(folder / name, ns=(old, old))
    for name in (".DS_Store", SEAL):
        (folder / name).touch()
    assert content_digest(folder, remembered=remembered) == first
    assert set(read_json(remembered)) == {str(folder / name) for name in ("config.json", "model.safetensors")}
    time.sleep(0.02)  # more than a tick of the clock
    (folder / "model.safetensors").write_text("MODEL.safetensors")  # as many bytes, at the same time
    os.utime(folder / "model.safetensors", ns=(old, old))
    assert content_digest(folder, remembered=remembered) != first
    without_weights = content_digest(folder, weights=False)
    (folder / "model.safetensors").write_text("again")
    assert content_digest(folder, weights=False) == without_weights
    assert content_digest(tmp_path / "absent") == ""
    (tmp_path / ".mine.jsonl").touch()
    assert content_digest(tmp_path / ".mine.jsonl")


def test_the_template_for_requests_with_tools_is_content(tmp_path: Path) -> None:
    template = tmp_path / TOOL_TEMPLATE
    template.parent.mkdir()
    (tmp_path / "config.json").write_text("{}")
    digests = set()
    for text in ("{{ messages }}", "{{ messages }}{{ tools }}", "{{ messages }}"):
        template.write_text(text)
        digests.add(content_digest(tmp_path))
    assert len(digests) == 2
    (template.parent / ".DS_Store").touch()
    assert content_digest(tmp_path) in digests


def test_a_digest_is_remembered_once_the_file_rests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, remembered = tmp_path / "file", tmp_path / "digests.json"
    file.write_text("x")
    content_digest(file, remembered=remembered)
    assert not remembered.exists()  # it may change within the tick of the clock
    monkeypatch.setattr(seals.time, "time_ns", lambda: file.stat().st_ctime_ns + 3_000_000_000)
    first = content_digest(file, remembered=remembered)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: pytest.fail("read again"))
    assert content_digest(file, remembered=remembered) == first


def test_raw_files_that_change_under_way_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "one"}\n')
    before = sources.content_of("prompts", "train", "raw", file)
    out = tmp_path / "out.jsonl"
    sources.fetch("prompts", "train", "raw", raw=file, out=out, content=before)
    file.write_text('{"prompt": "two"}\n')
    with pytest.raises(UserError, match=r"mine.jsonl: changed while the run was under way"):
        sources.fetch("prompts", "train", "raw", raw=file, out=out, content=before)
    assert not out.exists()


def test_the_companions_of_raw_files_count(tmp_path: Path) -> None:
    file, labels = tmp_path / "train.jsonl", tmp_path / "train-labels.lst"
    file.write_text('{"goal": "a", "sol1": "b", "sol2": "c"}\n')
    labels.write_text("0\n")
    before = sources.content_of("piqa", "train", "raw", file)
    labels.write_text("1\n")
    assert sources.content_of("piqa", "train", "raw", file) != before
