"""The whole workflow at scale=smoke, in a copy of the checkout; then what reruns after which edit."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from draftlab.files.tables import table_bytes
from tests.checkout import jobs, snakemake

pytestmark = pytest.mark.workflow


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
    for name in tables - {"claims", "claims_related"}:
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
    path = finished / "src/draftlab/core/losses.py"
    text = path.read_text()
    try:
        path.write_text(text + "\n# a comment\n")
        assert "Nothing to be done" in snakemake(finished, "-n", "--config", "scale=smoke")
        path.write_text(text + "\n\nEXTRA = 1\n")
        found = jobs(snakemake(finished, "-n", "--config", "scale=smoke"))
    finally:
        path.write_text(text)
    assert {"offline", "online"} <= set(found)
    assert not {"target", "draft", "answer", "region", "clean", "pairs"} & set(found)


def test_published_figures_are_redrawn_byte_for_byte_and_nothing_is_trained(checkout):
    folder = checkout / "paper_figures" / "laptop"

    def read() -> dict[str, bytes]:
        drawn = (path for path in folder.iterdir() if path.is_file() and path.name != "README.md")
        return {path.name: path.read_bytes() for path in drawn}

    before = read()
    assert {path.suffix for path in folder.iterdir()} >= {".pdf", ".png", ".md", ".tex"}
    for name in before:
        (folder / name).unlink()
    assert set(jobs(snakemake(checkout, "-n", "paper_figures"))) == {"paper_figures"}
    snakemake(checkout, "paper_figures")
    assert read() == before
    assert "Nothing to be done" in snakemake(checkout, "paper_figures")


def test_an_edit_of_one_figure_redraws_one_figure_and_so_does_a_new_table(checkout):
    snakemake(checkout, "paper_figures")
    log = checkout / "results/laptop/logs/paper_figures.log"
    for path, more in (
        ("src/draftlab/report/figures/mdss_cone.py", "\nEXTRA = 1\n"),
        ("paper_figures/laptop/data/mdss_cone.csv.gz", ""),
    ):
        before, text = (checkout / path).read_bytes(), table_bytes(checkout / path).decode()
        new = (text + more if more else text.rsplit("\n", 2)[0] + "\n").encode()
        try:
            (checkout / path).write_bytes(new if more else gzip.compress(new))
            snakemake(checkout, "paper_figures")
            assert log.read_text() == "drawn: mdss_cone\n"
            assert "Nothing to be done" in snakemake(checkout, "paper_figures")
        finally:
            (checkout / path).write_bytes(before)
    snakemake(checkout, "paper_figures")


def test_your_own_prompts_replace_the_datasets(checkout):
    mine = checkout / "mine; touch hacked.jsonl"
    lines = [json.dumps({"prompt": f"What is {i} plus {i + 1}?"}) for i in range(120)]
    mine.write_text("\n".join([*lines, "{broken"]) + "\n")
    model = checkout / "results/smoke/main/models/target"
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
        (["scale=lap"], "scale.*'laptop', 'paper', .*'smoke'"),
        (["experiments=osd_ofline"], "no experiment named 'osd_ofline'"),
        (["scael=smoke"], "unknown key 'scael'"),
    ],
)
def test_a_wrong_config_is_refused_before_any_job(checkout, words, message):
    output = snakemake(checkout, "-n", "--config", *words, check=False)
    assert re.search(message, output)
    assert "Traceback" not in output
