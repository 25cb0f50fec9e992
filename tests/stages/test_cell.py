"""A cell as a file: what its record says, and what a table that is not its stage's is told."""

import dataclasses

import pytest

from draftlab.errors import UserError
from draftlab.files.json_files import read_json, write_json
from draftlab.stages import STAGES, _cell
from draftlab.stages._cell_file import cell_file
from draftlab.stages._stage import NoInputs, Variant

REGION = STAGES["region"]


def variants():
    return [Variant({"part": name}, REGION.settings(num_drafts=[2], points=n)) for name, n in (("a", 3), ("b", 5))]


def test_the_record_says_shared_settings_once_and_of_each_run_what_is_its_own(tmp_path):
    write_json(tmp_path / "cell.json", cell_file(REGION, "mdss_region", "all", variants(), NoInputs()))
    _cell.run_file(tmp_path / "cell.json")
    record = read_json(tmp_path / "run.json")
    assert record["stage"] == "region"
    assert record["settings"] == {"num_drafts": [2]}
    assert record["runs"] == [{"points": 3, "part": "a"}, {"points": 5, "part": "b"}]
    assert {"draftlab", "code", "inputs", "machine"} <= set(record)


def test_a_cell_file_that_is_not_whole_says_what_to_do(tmp_path):
    write_json(tmp_path / "cell.json", {"stage": "region"})
    with pytest.raises(UserError, match=r"cell\.json: no 'variants' in it \(run the workflow again"):
        _cell.run_file(tmp_path / "cell.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="q2"), "lacks q2"),
        (lambda rows: rows.assign(mine=1), "does not know mine"),
        (lambda rows: rows.assign(scheme=1), "says another kind for scheme"),
    ],
)
def test_a_table_that_is_not_its_stages_is_refused(tmp_path, change, message):
    def run(settings, inputs, bench):
        rows, facts = REGION.run(settings, inputs, bench)
        return change(rows), facts

    with pytest.raises(TypeError, match=f"stage region: the table {message}"):
        _cell.run(dataclasses.replace(REGION, run=run), variants(), NoInputs(), tmp_path)
    assert not (tmp_path / "rows.csv").exists()
