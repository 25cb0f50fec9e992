"""The workflow at scale=smoke on real raw records and on a real trained model."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from tests.checkout import copy_checkout, edited, environment, jobs, snakemake
from tests.conftest import ROOT

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """A copy whose smallest scale trains its target for a few steps: here it is the records and the models that matter."""
    return copy_checkout(tmp_path_factory.mktemp("real") / "a folder with spaces")


def sizes(checkout: Path, *datasets: str) -> None:
    """Make the smallest scale smaller: a target of a few steps, and these datasets alone."""
    text = (ROOT / "workflow/scales/smoke.yaml").read_text()
    smaller = re.sub(
        r"steps: \d+", "steps: 10", re.sub(r"datasets: \[.*\]", f"datasets: [{', '.join(datasets)}]", text, count=1)
    )
    assert smaller != text
    (checkout / "workflow/scales/smoke.yaml").write_text(smaller)


def test_real_raw_records_run_through_the_same_rules(checkout, shared):
    names = ["gsm8k", "code_search_net"]
    sizes(checkout, *names)
    every = "dataset: [spider, gsm8k, code_search_net, finance_alpaca]"
    with edited(checkout / "workflow/experiments/osd_offline.yaml", every, f"dataset: [{', '.join(names)}]"):
        snakemake(checkout, "--config", "scale=smoke", f"raw={shared / 'data'}", "experiments=osd_offline")
    results = checkout / "results" / "smoke-raw"
    table = pd.read_csv(results / "osd_offline.csv")
    assert set(table["dataset"]) == set(names)
    summary = json.loads((results / "data/gsm8k/summary.json").read_text())
    assert summary["provenance"]["train"]["source"] == "raw"
    assert "Natalia sold clips" in (results / "data/gsm8k/prompts.jsonl").read_text()


def test_a_checkout_below_a_folder_with_spaces_runs_from_another_place(checkout, tmp_path):
    """Snakemake refuses such an image even where nothing runs in a container."""
    snakefile = str(checkout / "Snakefile")
    words = ("-n", "-s", snakefile, "--config", "scale=smoke", "experiments=mdss_region")
    output = snakemake(tmp_path, *words, env=environment(checkout))
    assert jobs(output)["region"] == 1
    refused = snakemake(tmp_path, *words, "--sdm", "apptainer", env=environment(checkout), check=False)
    assert "Invalid singularity image" in refused


def test_a_real_trained_model_runs_as_target(checkout, shared):
    sizes(checkout, "spider")
    target = shared / "models/stories260K/hf"
    snakemake(checkout, "--config", "scale=smoke", f"target={target}", "experiments=osd_epochs")
    results = checkout / "results" / "smoke-target"
    for name in ("tokenizer.json", "model.safetensors"):
        assert (results / "main/models/target" / name).read_bytes() == (target / name).read_bytes()
    assert len(pd.read_csv(results / "osd_epochs.csv"))


def test_a_real_target_and_draft_run_as_they_are(checkout, shared, tmp_path):
    """The draft is the target's first two layers."""
    target, draft = shared / "models/stories260K/hf", tmp_path / "draft"
    shutil.copytree(target, draft)
    weights = load_file(target / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not re.search(r"layers\.[2-9]\.", name)}
    save_file(kept, draft / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text()) | {"num_hidden_layers": 2}
    (draft / "config.json").write_text(json.dumps(config))
    sizes(checkout, "spider")
    wanted = "experiments=osd_latency_alpha,mdss_acceptance"
    snakemake(checkout, "--config", "scale=smoke", f"target={target}", f"draft={draft}", wanted)
    results = checkout / "results" / "smoke-target-draft"
    given = {
        role: hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
        for role, folder in (("draft", draft), ("target", target))
    }
    timed, exact = (
        json.loads((results / f"cells/{name}/all/run.json").read_text())["inputs"]
        for name in ("osd_latency_alpha", "mdss_acceptance")
    )
    assert timed["models"] == {f"main/models/{role}": digest for role, digest in given.items()}
    for name in exact["pairs"]:
        made_of = json.loads((results / name).with_suffix(".json").read_text())
        assert made_of["models"] == {f"multidraft/models/{role}": digest for role, digest in given.items()}
    assert exact["pairs"]
    assert len(pd.read_csv(results / "mdss_acceptance.csv"))
