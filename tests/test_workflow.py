"""The whole workflow at scale=smoke, in a copy of the checkout; then what reruns after which edit."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from tests.conftest import ROOT

pytestmark = pytest.mark.workflow

COPIED = ("Snakefile", "workflow", "profiles", "envs", "src")


def environment(folder: Path) -> dict[str, str]:
    """The environment of a run in a copy of the checkout, on that copy's own package."""
    return os.environ | {
        "PYTHONPATH": str(folder / "src"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def snakemake(folder: Path, *words: str, check: bool = True, cores: int = 2) -> str:
    """Run Snakemake in a copy of the checkout; return what it printed."""
    done = subprocess.run(
        ["snakemake", "--cores", str(cores), *words],
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=1500,
    )
    output = done.stdout + done.stderr
    assert not check or done.returncode == 0, output[-6000:]
    return output


def jobs(output: str) -> dict[str, int]:
    """Rule -> number of jobs, from a dry run's table."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE) if rule != "total"}


def copy_checkout(folder: Path, *more: str) -> Path:
    """A copy of the checkout to run in, without results, and without published ones unless they are among ``more``."""
    folder.mkdir(parents=True)
    for name in (*COPIED, *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    return copy_checkout(tmp_path_factory.mktemp("checkout") / "a folder with spaces", "paper_figures")


@pytest.fixture(scope="session")
def finished(checkout) -> Path:
    snakemake(checkout, "--config", "scale=smoke")
    return checkout


def test_every_table_figure_claim_and_the_report_exist(finished):
    results = finished / "results" / "smoke"
    assert (results / "report.html").stat().st_size > 10_000
    tables = {path.stem for path in results.glob("*.csv")}
    assert {
        "osd_offline",
        "osd_online",
        "osd_latency_alpha",
        "osd_speedup_theory",
        "mdss_region",
        "mdss_acceptance",
    } <= tables
    for name in tables - {"claims"}:
        assert len(pd.read_csv(results / f"{name}.csv"))
        assert (results / "figures" / f"{name}.pdf").stat().st_size > 1000
    claims = pd.read_csv(results / "claims.csv")
    assert len(claims) > 363
    assert claims["verdict"].notna().all()


def test_snakemakes_own_report_has_captions(finished):
    page = finished / "snakemake.html"
    snakemake(finished, "--report", str(page), "--config", "scale=smoke")
    text = page.read_text(encoding="utf-8")
    for words in ("Two papers about speculative decoding", "The ledger of run", "One page that explains run"):
        assert words in text
    drawn = list((finished / "results/smoke/figures").glob("*.png"))
    assert text.count("What is drawn, n and the interval stand under") == len(drawn) > 10


def test_curves_go_to_tensorboard_when_asked(finished):
    config = ("--config", "scale=smoke", "tracker=tensorboard")
    assert jobs(snakemake(finished, "-n", *config)) == {"tracker": 1, "all": 1}
    snakemake(finished, *config)
    (events,) = (finished / "results/smoke/tensorboard").glob("events*")
    assert b"osd_online/spider/online/0" in events.read_bytes()


def test_a_second_run_has_nothing_to_do(finished):
    assert "Nothing to be done" in snakemake(finished, "--config", "scale=smoke")


def test_one_value_of_one_experiment_reruns_only_its_cells(finished):
    path = finished / "workflow/experiments/osd_online.yaml"
    text = path.read_text()
    try:
        assert "update_interval: 8" in text
        path.write_text(text.replace("update_interval: 8", "update_interval: 4"))
        found = jobs(snakemake(finished, "-n", "--config", "scale=smoke"))
    finally:
        path.write_text(text)
    assert found["online"] == 4
    assert set(found) <= {"online", "memory_traffic", "collect", "figure", "claims", "report", "all"}


def test_a_comment_reruns_nothing_and_a_loss_reruns_what_uses_it(finished):
    path = finished / "src/draftlab/losses.py"
    text = path.read_text()
    try:
        path.write_text(text + "\n# a comment\n")
        assert "Nothing to be done" in snakemake(finished, "-n", "--config", "scale=smoke")
        path.write_text(text + "\n\nEXTRA = 1\n")
        found = jobs(snakemake(finished, "-n", "--config", "scale=smoke"))
    finally:
        path.write_text(text)
    assert {"offline", "online"} <= set(found)
    assert not {"target", "draft", "answer", "exact", "clean", "pairs"} & set(found)


def test_published_figures_are_redrawn_byte_for_byte_and_nothing_is_trained(checkout):
    folder = checkout / "paper_figures" / "laptop"
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert {path.suffix for path in folder.iterdir()} >= {".pdf", ".png", ".md", ".tex"}
    for name in before:
        (folder / name).unlink()
    assert set(jobs(snakemake(checkout, "-n", "paper_figures"))) == {"paper_figures"}
    snakemake(checkout, "paper_figures")
    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert "Nothing to be done" in snakemake(checkout, "paper_figures")


def test_an_edit_of_one_figure_redraws_one_figure_and_so_does_a_new_table(checkout):
    snakemake(checkout, "paper_figures")
    log = checkout / "results/laptop/logs/paper_figures.log"
    for path, more in (
        ("src/draftlab/figures/mdss_cone.py", "\nEXTRA = 1\n"),
        ("paper_figures/laptop/data/mdss_cone.csv", ""),
    ):
        text = (checkout / path).read_text()
        try:
            (checkout / path).write_text(text + more if more else text.rsplit("\n", 2)[0] + "\n")
            snakemake(checkout, "paper_figures")
            assert log.read_text() == "drawn: mdss_cone\n"
            assert "Nothing to be done" in snakemake(checkout, "paper_figures")
        finally:
            (checkout / path).write_text(text)
    snakemake(checkout, "paper_figures")


def test_real_raw_records_run_through_the_same_rules(checkout, shared):
    snakemake(checkout, "--config", "scale=smoke", f"raw={shared / 'data'}", "experiments=osd_offline")
    results = checkout / "results" / "smoke-raw"
    table = pd.read_csv(results / "osd_offline.csv")
    assert set(table["dataset"]) == {"spider", "gsm8k", "code_search_net", "finance_alpaca"}
    summary = json.loads((results / "data/gsm8k/summary.json").read_text())
    assert summary["provenance"]["train"]["source"] == "raw"
    assert "Natalia sold clips" in (results / "data/gsm8k/prompts.jsonl").read_text()


def test_a_real_trained_model_runs_as_target(checkout, shared):
    target = shared / "models/stories260K/hf"
    snakemake(
        checkout,
        "--config",
        "scale=smoke",
        f"target={target}",
        "experiments=osd_offline,osd_latency_alpha,mdss_acceptance",
    )
    results = checkout / "results" / "smoke-target"
    assert (results / "models/target/tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    record = json.loads((results / "cells/osd_latency_alpha/all/run.json").read_text())
    assert record["target"]["parameters"] == 260_032
    assert len(pd.read_csv(results / "mdss_acceptance.csv"))


def test_a_real_target_and_draft_run_as_they_are(checkout, shared, tmp_path):
    """The draft is the target's first two layers."""
    target, draft = shared / "models/stories260K/hf", tmp_path / "draft"
    shutil.copytree(target, draft)
    weights = load_file(target / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not re.search(r"layers\.[2-9]\.", name)}
    save_file(kept, draft / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text()) | {"num_hidden_layers": 2}
    (draft / "config.json").write_text(json.dumps(config))
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
    assert timed["models"] == {f"models/{role}": digest for role, digest in given.items()}
    for name in exact["pairs"]:
        made_of = json.loads((results / name).with_suffix(".json").read_text())
        assert made_of["models"] == {f"multidraft/{role}": digest for role, digest in given.items()}
    assert exact["pairs"]
    assert len(pd.read_csv(results / "mdss_acceptance.csv"))


def test_your_own_prompts_replace_the_datasets(checkout):
    mine = checkout / "mine; touch hacked.jsonl"
    lines = [json.dumps({"prompt": f"What is {i} plus {i + 1}?"}) for i in range(120)]
    mine.write_text("\n".join([*lines, "{broken"]) + "\n")
    model = checkout / "results/smoke/models/target"
    wanted = "experiments=osd_offline,mdss_acceptance"
    snakemake(checkout, "--config", "scale=smoke", f"dataset={mine}", f"target={model}", wanted)
    assert not (checkout / "hacked.jsonl").exists()
    results = checkout / "results" / "smoke-dataset-target"
    for table in ("osd_offline", "mdss_acceptance"):
        assert set(pd.read_csv(results / f"{table}.csv")["dataset"]) - {"synthetic"} == {"prompts"}
    rejected = (results / "data/prompts/rejected.jsonl").read_text()
    assert rejected.count("\n") == 1
    assert '"line": 121' in rejected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scale=lap"], "scale.*'smoke', 'laptop', 'shapes', 'shapes_cpu' or 'paper'"),
        (["experiments=osd_ofline"], "no experiment named 'osd_ofline'"),
        (["scael=smoke"], "unknown key 'scael'"),
    ],
)
def test_a_wrong_config_is_refused_before_any_job(checkout, words, message):
    output = snakemake(checkout, "-n", "--config", *words, check=False)
    assert re.search(message, output)
    assert "Traceback" not in output
