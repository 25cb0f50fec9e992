"""From a figure down to the raw data, of a run and of published figures."""

import hashlib
import json
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest

from draftlab.errors import UserError
from draftlab.files import cells
from draftlab.files.cells import write_cell
from draftlab.files.checkout import ROOT
from draftlab.files.json_files import read_json
from draftlab.files.tables import count_rows, publish_table
from draftlab.plan import load_experiment
from draftlab.report import provenance


def _write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


@pytest.fixture
def run(tmp_path):
    run = tmp_path / "results" / "laptop"
    for dataset in ("spider", "gsm8k"):
        _write(
            run / "cells" / "osd_offline" / f"{dataset}.ft" / "run.json",
            {
                "settings": {"dataset": dataset, "epochs": 2},
                "machine": {"processor": "X", "commit": "abc"},
                "inputs": {
                    "models": {"models/target": "a" * 64},
                    "answers": {f"answers/{dataset}.train/answers.jsonl": "b" * 64},
                },
            },
        )
        _write(run / "answers" / f"{dataset}.train" / "pass.json", {"sampling": {"temperature": 0.0}, "forwards": 901})
        _write(
            run / "data" / dataset / "summary.json",
            {"provenance": {"train": {"dataset": dataset, "source": "generator", "sha256": "f" * 64}}},
        )
    _write(run / "data" / "xsum" / "summary.json", {"provenance": {"train": {"dataset": "xsum", "source": "hub"}}})
    _write(run / "cells" / "mdss_region" / "all" / "run.json", {"settings": {"points": 61}})
    _write(
        run / "cells" / "mdss_acceptance" / "all" / "run.json",
        {"settings": {"datasets": ["xsum"]}, "inputs": {"pairs": {"pairs/xsum.safetensors": "c" * 64}}},
    )
    _write(
        run / "pairs" / "xsum.json",
        {"models": {"multidraft/target": "d" * 64}, "data": {"data/xsum/eval.jsonl": "e" * 64}},
    )
    _write(run / "cells" / "osd_offline.txt", "spider.ft\ngsm8k.ft\n")
    for name in ("mdss_region", "mdss_acceptance"):
        _write(run / "cells" / f"{name}.txt", "all\n")
    _write(run / "models" / "target" / "model.safetensors", "weights")
    _write(run / "osd_offline.csv", "a,b\n1,2\n3,4\n")
    for name in ("mdss_region", "mdss_acceptance"):
        _write(run / f"{name}.csv", "a\n1\n")
    for name in ("osd_offline", "mdss_region", "mdss_acceptance"):
        _write(run / "figures" / f"{name}.pdf", f"picture of {name}")
    return run


def test_the_chain_reaches_the_raw_data_of_its_own_datasets(run):
    text = "\n".join(provenance.trace(run / "figures" / "osd_offline.pdf"))
    for part in (
        "osd_offline.csv",
        "2 rows",
        "settings.epochs = 2",
        "machine.commit = abc",
        "run      gsm8k.ft",
        "model    models/target  sha256 aaaaaaaaaaaaaaaa",
        "answers  answers/gsm8k.train",
        "forwards = 901",
        "raw data spider  source = generator  sha256 = ffffffffffffffff",
    ):
        assert part in text
    assert "xsum" not in text
    assert (
        text.index("table ")
        < text.index("run ")
        < text.index("model ")
        < text.index("answers ")
        < text.index("raw data")
    )


def test_a_cell_that_its_experiment_no_longer_has_is_left_out(run):
    before = provenance.describe(run, "osd_offline")
    old = {"settings": {"dataset": "finance_alpaca"}, "inputs": {"models": {"models/old": "f" * 64}}}
    _write(run / "cells" / "osd_offline" / "finance_alpaca.ft" / "run.json", old)
    assert provenance.describe(run, "osd_offline") == before
    (run / "cells" / "osd_offline.txt").unlink()
    with pytest.raises(UserError, match=r"osd_offline\.txt: no such file"):
        provenance.describe(run, "osd_offline")


def test_an_exact_table_has_no_models_behind_it(run):
    text = "\n".join(provenance.trace(run / "figures" / "mdss_region.pdf"))
    assert "points = 61" in text
    assert "model " not in text
    assert "raw data" not in text


def test_recorded_pairs_lead_to_their_own_models_and_data(run):
    found = provenance.describe(run, "mdss_acceptance")
    assert found["models"] == {"multidraft/target": "d" * 64}
    assert found["pairs"] == {"pairs/xsum.safetensors": "c" * 64}
    assert list(found["data"]) == ["xsum"]
    assert provenance.describe(run, "osd_offline")["models"] == {"models/target": "a" * 64}


def test_a_cell_names_its_models(tmp_path):
    cell, model = tmp_path / "run" / "cells" / "osd_online" / "all", tmp_path / "run" / "models" / "target"
    for part, text in (("1", "one"), ("2", "two")):
        _write(model / f"{part}.safetensors", text)
    _write(model / "model.safetensors.index.json", {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}})
    write_cell(cell, pd.DataFrame({"a": [1]}), {"settings": {}}, models=[model, Path("vicuna-7b")])
    of_parts = "\n".join(hashlib.sha256(part).hexdigest() for part in (b"one", b"two"))
    whole = hashlib.sha256(of_parts.encode()).hexdigest()
    assert read_json(cell / "run.json")["inputs"] == {"models": {"models/target": whole, "vicuna-7b": None}}


def test_a_figure_is_traced_from_its_own_folder(run, monkeypatch):
    _write(run / "figures" / "osd_offline.csv", "estimate\n1\n")  # the cells that are printed
    _, *lines = provenance.trace(run / "figures" / "osd_offline.pdf")
    for place, name in ((run / "figures", "osd_offline.pdf"), (run, "figures/osd_offline.pdf")):
        monkeypatch.chdir(place)
        assert list(provenance.trace(Path(name)))[1:] == lines
    assert list(provenance.trace(run / "osd_offline.csv")) == lines, "the rows behind the figure"
    assert list(provenance.trace(run / "figures" / "osd_offline.csv"))[1:] == lines


def test_a_cell_of_several_lines_is_one_row(run):
    (run / "osd_offline.csv").write_text('token,n\n"\n",1\n"\n\n",2\n')
    assert provenance.describe(run, "osd_offline")["table"]["rows"] == 2


def test_published_records_count_the_rows_of_their_tables():
    for file in ROOT.glob("paper_figures/*/data/osd_token_recall.csv.gz"):  # cells of this table have line breaks
        record = read_json(file.with_name("provenance.json"))["osd_token_recall"]["table"]
        assert record["rows"] == count_rows(file), file


def test_a_published_figure_is_traced_without_its_run(run, tmp_path):
    paper = tmp_path / "paper_figures" / "laptop"
    provenance.publish(run, ["osd_offline"], paper / "data")
    _write(paper / "osd_offline.pdf", "picture")
    shutil.rmtree(run)
    text = "\n".join(provenance.trace(paper / "osd_offline.pdf"))
    assert "raw data gsm8k" in text
    assert list(provenance.trace(paper / "data" / "osd_offline.csv.gz")) == text.splitlines()[1:]
    (tmp_path / "osd_offline.csv").write_text("a,b\n1,2\n3,5\n")
    publish_table(tmp_path / "osd_offline.csv", paper / "data")
    with pytest.raises(UserError, match="not the one that was published"):
        list(provenance.trace(paper / "osd_offline.pdf"))


def test_nothing_is_published_if_one_table_is_missing(run, tmp_path):
    with pytest.raises(UserError, match="no such table"):
        provenance.publish(run, ["osd_offline", "osd_online"], tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("osd_nothing.pdf", "no such figure"),
        ("orphan.pdf", "no such table"),
    ],
)
def test_what_is_missing_is_named(run, name, message):
    _write(run / "figures" / "orphan.pdf", "picture")
    with pytest.raises(UserError, match=message):
        list(provenance.trace(run / "figures" / name))


@pytest.mark.parametrize(
    "scale", sorted({path.parents[1].name for path in ROOT.glob("paper_figures/*/data/provenance.json")} - {"smollm2"})
)
def test_published_tables_of_a_scale_are_of_the_same_models(scale):
    """Otherwise a reader who makes them again gets others. At ``smollm2`` times and acceptances are of two runs.

    Where acceptance is set, a table holds times alone, which the values of the weights do not change.
    """
    tables = read_json(ROOT / f"paper_figures/{scale}/data/provenance.json")
    of_models = {}
    timed = {"latency_alpha", "latency_branches", "latency_cost", "latency_null"}
    for name, record in tables.items():
        if load_experiment(ROOT / f"workflow/experiments/{name}.yaml").stage in timed:
            continue
        for model, digest in record.get("models", {}).items():
            role = model.replace("main/models/", "models/")  # older records leave out the main pair
            of_models.setdefault(role, {}).setdefault(digest, []).append(name)
    assert of_models or scale.startswith("shapes")
    assert {model: found for model, found in of_models.items() if len(found) > 1} == {}


def test_settings_that_all_runs_share_are_listed_once():
    common, varied = provenance.split_common([{"cell": "a", "x": 1, "y": 2}, {"cell": "b", "x": 1, "y": 3}])
    assert common == {"x": 1}
    assert varied == [{"cell": "a", "y": 2}, {"cell": "b", "y": 3}]
    assert provenance.split_common([]) == ({}, [])


def test_a_cell_names_the_code_that_made_it(tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "code_digest", lambda *modules: " ".join(modules))
    monkeypatch.setitem(sys.modules, "draftlab.cli", cells)
    write_cell(tmp_path, pd.DataFrame({"a": [1]}), {"settings": {}})
    code = read_json(tmp_path / "run.json")["code"].split()
    assert "draftlab.files.cells" in code
    assert "draftlab.cli" not in code
