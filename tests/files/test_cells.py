"""Cells on disk: the digests of their models, without reading weights twice."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pandas as pd
import pytest

from draftlab.errors import UserError
from draftlab.files import cells, weights
from draftlab.files.cells import write_cell
from draftlab.files.json_files import read_json
from draftlab.files.seals import remove_damaged
from draftlab.files.tables import join_tables
from draftlab.models.llama import Llama, LlamaConfig

ROWS = pd.DataFrame({"a": [1]})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose bytes are digested."""
    found: list[str] = []
    digest = hashlib.file_digest

    def noted(file, algorithm):  # type: ignore[no-untyped-def]
        found.extend([Path(file.name).name] * str(file.name).endswith(".safetensors"))  # not what the cell itself wrote
        return digest(file, algorithm)

    monkeypatch.setattr(weights.hashlib, "file_digest", noted)
    return found


def model_of(cell: Path, model: Path) -> str:
    write_cell(cell, ROWS, {"settings": {}}, models=[model])
    (found,) = read_json(cell / "run.json")["inputs"]["models"].values()
    return str(found)


def test_another_run_that_starts_while_a_cell_is_written_again_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = tmp_path / "cells/e/1"
    write_cell(cell, ROWS, {"settings": {}})
    write = cells.write_json

    def meanwhile(path: Path, value: object) -> None:
        assert list(remove_damaged(tmp_path)) == []
        write(path, value)

    monkeypatch.setattr(cells, "write_json", meanwhile)
    write_cell(cell, ROWS * 2, {"settings": {}})
    assert (cell / "rows.csv").read_text() == "a\n2\n"


def test_a_cell_reads_no_weights_that_were_digested_before(tmp_path: Path, reads: list[str]) -> None:
    model, cells = tmp_path / "models" / "target", tmp_path / "cells" / "e"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"one")
    assert model_of(cells / "1", model) == hashlib.sha256(b"one").hexdigest()
    assert reads == ["model.safetensors"]
    assert model_of(cells / "2", model) == hashlib.sha256(b"one").hexdigest()
    assert reads == ["model.safetensors"]


def test_changed_weights_are_noticed(tmp_path: Path, reads: list[str]) -> None:
    model, cells = tmp_path / "models" / "target", tmp_path / "cells" / "e"
    model.mkdir(parents=True)
    file = model / "model.safetensors"
    contents = (b"one", b"other", b"OTHER")  # the last one has the size of the one before it
    for number, content in enumerate(contents):
        file.write_bytes(content)
        os.utime(file, ns=(number, number))
        assert model_of(cells / str(number), model) == hashlib.sha256(content).hexdigest()
    os.utime(file, ns=(9, 9))
    assert model_of(cells / "same", model) == hashlib.sha256(b"OTHER").hexdigest()
    assert len(reads) == 4


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"files": null, "sha256": 1}'])
def test_a_damaged_record_is_made_again(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"one")
    (tmp_path / "digest.json").write_text(text)
    assert weights.weights_digest(tmp_path) == hashlib.sha256(b"one").hexdigest()
    assert read_json(tmp_path / "digest.json")["sha256"] == hashlib.sha256(b"one").hexdigest()


def test_a_saved_model_has_its_digest_beside_it(tmp_path: Path, reads: list[str]) -> None:
    Llama(LlamaConfig(40, 16, 32, 1, 2, 2, 64)).save(tmp_path / "draft")
    whole = hashlib.sha256((tmp_path / "draft" / "model.safetensors").read_bytes()).hexdigest()
    reads.clear()
    assert model_of(tmp_path / "cells" / "e" / "1", tmp_path / "draft") == whole
    assert reads == []


def test_cells_are_joined_as_they_are_written_and_a_damaged_one_is_named(tmp_path):
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    one.write_text('name,alpha\n"a, b",0.30000000000000004\n')
    two.write_text("name,alpha,tokens\nc,1,2\nd,,3\n")
    join_tables([one, two], tmp_path / "table.csv")
    joined = (tmp_path / "table.csv").read_text()
    assert joined == 'name,alpha,tokens\n"a, b",0.30000000000000004,\nc,1,2\nd,,3\n'
    for broken, message in (
        ("name,alpha\na\n", "1 fields, the header has 2"),
        ("name\na", "cut short"),
        ("name\n", "no rows"),
    ):
        two.write_text(broken)
        with pytest.raises(UserError, match=rf"two\.csv.*{message}"):
            join_tables([one, two], tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == joined
