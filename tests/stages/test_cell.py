"""A cell as a file: what its record says, and what a table that is not its stage's is told."""

import dataclasses
import importlib
from pathlib import Path

import pandas as pd
import pytest

from draftlab.errors import UserError
from draftlab.files.json_files import read_json, write_json
from draftlab.stages import STAGES, _cell
from draftlab.stages._stage import NoInputs, Variant, cell_file, stage_in
from draftlab.train.folders import Folders
from tests.pair import Killed, Mortal

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


OF_OLD = {"num_drafts": [2], "points": 3, "of_old": 1}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ({"stage": "region"}, "no 'variants' in it"),
        ({"stage": "region", "variants": [{"labels": {}, "settings": OF_OLD}]}, "of_old: Extra inputs"),
    ],
)
def test_a_cell_file_that_is_not_whole_or_old_says_what_to_do(tmp_path, content, fault):
    write_json(tmp_path / "cell.json", content)
    with pytest.raises(UserError, match=rf"cell\.json: {fault}.*\(run the workflow again"):
        _cell.run_file(tmp_path / "cell.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop(columns="q2"), "lacks q2"),
        (lambda rows: rows.assign(mine=1), "has unknown mine"),
        (lambda rows: rows.assign(scheme=1), "has the wrong kind of scheme"),
    ],
)
def test_a_table_that_is_not_its_stages_is_refused(tmp_path, change, message):
    def run(settings, inputs, bench):
        rows, facts = REGION.run(settings, inputs, bench)
        return change(rows), facts

    with pytest.raises(UserError, match=rf"test_cell.py:\d+: stage region: the table {message}"):
        _cell.run(dataclasses.replace(REGION, run=run), variants(), NoInputs(), tmp_path)
    assert not (tmp_path / "rows.csv").exists()


@pytest.mark.parametrize("returned", [None, pd.DataFrame({"q2": [1.0]}), ({}, pd.DataFrame())])
def test_a_run_that_returns_no_table_with_facts_is_refused(tmp_path, returned):
    def run(settings, inputs, bench):
        return returned

    with pytest.raises(UserError, match=r"test_cell.py:\d+: stage region: run returned .*, not a pair of a DataFrame"):
        _cell.run(dataclasses.replace(REGION, run=run), variants(), NoInputs(), tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("MEASURES = {", "MEASURE = {", "a stage without MEASURES"),
        ("class Row:", "class Rows:", "a stage without Row"),
        ('Measure("acceptance", None', 'Measure("accepted", None', "measure 'acceptance': no column 'accepted'"),
        ("STAGE = ", "OTHER = ", "a stage without STAGE"),
    ],
)
def test_a_file_that_is_no_whole_stage_names_what_is_missing(tmp_path, monkeypatch, old, new, message):
    text = Path(REGION.run.__code__.co_filename).read_text(encoding="utf-8")
    assert old in text
    module = f"mine_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(text.replace(old, new), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=rf"{module}.py: {message}"):
        stage_in(importlib.import_module(module))


@pytest.mark.parametrize("exclusive", [False, True])
def test_a_killed_cell_goes_on_after_its_last_finished_variant(tmp_path, exclusive):
    """To the same bytes; a measurement of time begins anew."""
    run = Mortal(REGION.run, dies_at=2)
    stage = dataclasses.replace(REGION, run=run, exclusive=exclusive)
    with pytest.raises(Killed):
        _cell.run(stage, variants(), NoInputs(), tmp_path / "killed")
    _cell.run(stage, variants(), NoInputs(), tmp_path / "killed")
    assert run.calls == (4 if exclusive else 3)
    _cell.run(stage, variants(), NoInputs(), tmp_path / "whole")
    assert not {file.name for file in (tmp_path / "killed").iterdir()} - {"rows.csv", "run.json", "sealed.json"}
    for name in ("rows.csv", "run.json"):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_cell_that_goes_on_saves_no_second_draft(tmp_path):
    saved, region = [], Mortal(REGION.run, dies_at=2)

    def run(settings, inputs, bench):
        Folders(tmp_path, tmp_path, bench.kept).once("saved", lambda: saved.append(settings.points))
        return region(settings, inputs, bench)

    stage = dataclasses.replace(REGION, run=run)
    with pytest.raises(Killed):
        _cell.run(stage, variants(), NoInputs(), tmp_path / "killed")
    _cell.run(stage, variants(), NoInputs(), tmp_path / "killed")
    assert region.calls == 3
    assert saved == [3]


def test_what_is_left_of_other_settings_is_not_used(tmp_path):
    with pytest.raises(Killed):
        _cell.run(dataclasses.replace(REGION, run=Mortal(REGION.run, dies_at=2)), variants(), NoInputs(), tmp_path)
    others = [Variant(own.labels, own.settings.model_copy(update={"points": 4})) for own in variants()]
    _cell.run(REGION, others, NoInputs(), tmp_path)
    assert read_json(tmp_path / "run.json")["settings"] == {"num_drafts": [2], "points": 4}
    fresh = tmp_path / "fresh"
    _cell.run(REGION, others, NoInputs(), fresh)
    assert (tmp_path / "rows.csv").read_bytes() == (fresh / "rows.csv").read_bytes()
