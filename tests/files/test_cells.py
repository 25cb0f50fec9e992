"""Cells on disk: the digests of their models, without reading weights twice."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pandas as pd
import pytest

from draftlab.errors import UserError
from draftlab.files import cells, weights
from draftlab.files.cells import write_cell
from draftlab.files.json_files import read_json
from draftlab.files.seals import remove_damaged, seal
from draftlab.files.tables import count_rows, join_tables, read_table
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


def test_a_file_that_a_cell_read_is_recorded_by_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("{}\n")
    write_cell(tmp_path / "cells/e/1", ROWS, {"settings": {}}, data=[tmp_path / "data.jsonl", Path("llama-7b")])
    recorded = read_json(tmp_path / "cells/e/1/run.json")["inputs"]["data"]
    assert recorded == {"data.jsonl": hashlib.sha256(b"{}\n").hexdigest(), "llama-7b": None}


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


def test_the_digest_of_sealed_weights_in_several_files_comes_from_the_seal(tmp_path: Path, reads: list[str]) -> None:
    parts = ["model-1.safetensors", "model-2.safetensors"]
    for part in parts:
        (tmp_path / part).write_text(part)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {part: part for part in parts}}))
    unsealed = weights.weights_digest(tmp_path)
    seal(tmp_path)
    reads.clear()
    assert weights.weights_digest(tmp_path) == unsealed
    assert reads == []


def test_changed_weights_are_noticed(tmp_path: Path) -> None:
    model, cells = tmp_path / "models" / "target", tmp_path / "cells" / "e"
    model.mkdir(parents=True)
    file = model / "model.safetensors"
    contents = (b"one", b"other", b"OTHER")  # the last one has the size of the one before it
    for number, content in enumerate(contents):
        file.write_bytes(content)
        os.utime(file, ns=(number, number))
        assert model_of(cells / str(number), model) == hashlib.sha256(content).hexdigest()


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


@pytest.mark.parametrize("token", ["\r", "a\rb", "\r\n", "\n", '"', ","])
def test_a_token_may_be_any_text(tmp_path: Path, token: str) -> None:
    """The table of osd_token_recall holds every token that was proposed."""
    rows = pd.DataFrame({"token": [13, 14], "text": [token, "b"], "alpha": [0.5, None]})
    write_cell(tmp_path / "cell", rows, {})
    join_tables((tmp_path / "cell/rows.csv",), tmp_path / "table.csv")
    for path in (tmp_path / "cell/rows.csv", tmp_path / "table.csv"):
        pd.testing.assert_frame_equal(read_table(path), rows)
        assert count_rows(path) == 2
