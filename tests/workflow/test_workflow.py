"""The whole workflow at scale=smoke, in a copy of the checkout; then what reruns after which edit."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from benchmarks import requests
from draftlab import plan
from draftlab.errors import UserError
from draftlab.plan import times
from tests.checkout import edited, jobs, snakemake

pytestmark = pytest.mark.workflow


@pytest.fixture(scope="session")
def finished(checkout) -> Path:
    snakemake(checkout, "--config", "scale=smoke")
    return checkout


def test_jobs_ran_in_forks_of_one_process_and_their_times_are_kept(finished):
    logs = finished / "results/smoke/logs"
    started = (logs / "starts.tsv").read_text().splitlines()
    took = times.read_times([logs / "times.tsv"])
    assert len(started) > 100
    assert all(len(line.split("\t")) == 4 for line in started)
    assert {"figure/osd_online", "main/target", "osd_online/spider", "all"} <= set(took)


def test_measurements_run_on_one_thread(finished):
    """Snakemake gives them all cores, so that nothing runs beside them, and sets MKL_NUM_THREADS accordingly."""
    records = list((finished / "results/smoke/cells/osd_medusa").glob("*/run.json"))
    assert records
    assert {json.loads(record.read_text())["machine"]["threads"] for record in records} == {"1"}


def test_no_job_took_more_memory_than_it_requests(finished):
    run = plan.load_run({"scale": "smoke"}, finished / "workflow")
    found = list(requests.jobs(run, finished / "results/smoke/logs/starts.tsv"))
    assert len(found) > 50
    assert {rule for rule, *_ in found} >= {"target", "draft", "answer", "pairs", "offline", "online", "blocks"}
    assert [(name, taken, asked) for _, name, taken, asked in found if taken > asked] == []


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
    assert jobs(snakemake(finished, "--config", "scale=smoke", "tracker=tensorboard")) == {"tracker": 1, "all": 1}
    (events,) = (finished / "results/smoke/tensorboard").glob("events*")
    assert b"osd_online/spider/online/0" in events.read_bytes()


def test_one_value_of_one_experiment_reruns_only_its_cells(finished):
    experiment = finished / "workflow/experiments/osd_online.yaml"
    with edited(experiment, "update_interval: 8", "update_interval: 4"):
        found = jobs(snakemake(finished, "-n", "--config", "scale=smoke"))
    assert found["online"] == 4
    assert set(found) <= {"online", "memory_traffic", "collect", "figure", "claims", "report", "all"}


@pytest.mark.parametrize(
    ("file", "old", "new", "rules"),
    [
        ("src/draftlab/report/templates/report.css", "--ink: #1b1b1b", "--ink: #1b1b1c", {"report"}),
        ("src/draftlab/report/templates/vendor/dataTables.LICENSE.txt", "Copyright", "copyright", {"report"}),
        ("workflow/experiments/mdss_region.yaml", "question: ", "question: Really, ", {"report"}),
        ("workflow/published/mdss.csv", ",", ", ", {"figure", "claims", "report"}),
        (
            "src/draftlab/stages/region.py",
            '"second probability of the target"',
            '"q2 of the target"',
            {"figure", "claims", "report"},
        ),
    ],
)
def test_an_edit_of_what_is_shown_draws_it_again_and_measures_nothing(finished, file, old, new, rules):
    with edited(finished / file, old, new):
        found = jobs(snakemake(finished, "-n", "--config", "scale=smoke"))
    assert set(found) == rules | {"all"}


def test_a_second_run_has_nothing_to_do_nor_after_a_comment_and_a_loss_reruns_what_uses_it(finished):
    losses = finished / "src/draftlab/core/losses.py"
    with edited(losses, "", "\n# a comment\n"):
        assert "Nothing to be done" in snakemake(finished, "--config", "scale=smoke")
    with edited(losses, "", "\n\nEXTRA = 1\n"):
        found = jobs(snakemake(finished, "-n", "--config", "scale=smoke"))
    assert {"offline", "online"} <= set(found)
    assert not {"target", "draft", "answer", "region", "clean", "pairs"} & set(found)


def test_your_own_prompts_replace_the_datasets(checkout):
    mine = checkout / "mine; touch hacked.jsonl"
    lines = [json.dumps({"prompt": f"What is {i} plus {i + 1}?"}) for i in range(120)]
    mine.write_text("\n".join([*lines, "{broken"]) + "\n")
    model = checkout / "results/smoke/main/models/target"
    wanted = "experiments=osd_offline,mdss_acceptance"
    config = ("--config", "scale=smoke", f"dataset={mine}", f"target={model}", wanted)
    answer = "Report   results/smoke-dataset-target/report.html"
    assert answer in snakemake(checkout, *config)
    made = "results/smoke-dataset-target/data/prompts/prompts.jsonl"
    assert answer not in snakemake(checkout, made, "--forcerun", "clean", *config), (
        "no job of this call made the report"
    )
    assert not (checkout / "hacked.jsonl").exists()
    results = checkout / "results" / "smoke-dataset-target"
    for table in ("osd_offline", "mdss_acceptance"):
        assert set(pd.read_csv(results / f"{table}.csv")["dataset"]) - {"synthetic"} == {"prompts"}
    rejected = (results / "data/prompts/rejected.jsonl").read_text()
    assert rejected.count("\n") == 1
    assert '"line": 121' in rejected


def test_a_wrong_config_is_refused_before_any_job(checkout):
    for words, message in (
        ({"scale": "lap"}, "scale.*'laptop', 'paper', .*'smoke'"),
        ({"experiments": "osd_ofline"}, "no experiment named 'osd_ofline'"),
        ({"scael": "smoke"}, "unknown key 'scael'"),
    ):
        with pytest.raises(UserError, match=message):
            plan.load_run(words, plan.WORKFLOW)
    output = snakemake(checkout, "-n", "--config", "scael=smoke", check=False)
    assert "unknown key 'scael'" in output
    assert "Traceback" not in output
