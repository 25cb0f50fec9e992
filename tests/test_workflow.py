"""The whole workflow at scale=smoke, in a copy of the checkout; then what reruns after which edit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from tests.conftest import ROOT

pytestmark = [pytest.mark.workflow, pytest.mark.xdist_group("workflow")]

COPIED = ("Snakefile", "workflow", "profiles", "envs", "src", "paper_figures")


def snakemake(folder: Path, *words: str, check: bool = True) -> str:
    """Run Snakemake in a copy of the checkout, on that copy's own package; return what it printed."""
    env = os.environ | {"PYTHONPATH": str(folder / "src"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["snakemake", "--cores", "2", *words], cwd=folder, env=env, capture_output=True, text=True, timeout=1500
    )
    output = done.stdout + done.stderr
    assert not check or done.returncode == 0, output[-6000:]
    return output


def jobs(output: str) -> dict[str, int]:
    """Rule -> number of jobs, from a dry run's table."""
    return {rule: int(count) for rule, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE) if rule != "total"}


@pytest.fixture(scope="session")
def checkout(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkout") / "a folder with spaces"
    folder.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        elif (ROOT / name).exists():
            shutil.copyfile(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def finished(checkout) -> Path:
    snakemake(checkout, "--config", "scale=smoke")
    return checkout


def test_every_table_figure_claim_and_the_report_exist(finished):
    results = finished / "results" / "smoke"
    assert (results / "report.html").stat().st_size > 10_000
    tables = {path.stem for path in results.glob("*.csv")}
    assert {"osd_offline", "osd_online", "osd_latency_alpha", "osd_speedup_theory", "mdss_region", "mdss_acceptance"} <= tables
    for name in tables - {"claims"}:
        assert len(pd.read_csv(results / f"{name}.csv"))
        assert (results / "figures" / f"{name}.pdf").stat().st_size > 1000
    claims = pd.read_csv(results / "claims.csv")
    assert len(claims) > 363
    assert claims["verdict"].notna().all()


def test_a_second_run_has_nothing_to_do(finished):
    assert "Nothing to be done" in snakemake(finished, "--config", "scale=smoke")


def test_one_value_of_one_experiment_reruns_only_its_cells(finished):
    path = finished / "workflow/experiments/osd_offline.yaml"
    text = path.read_text()
    try:
        path.write_text(text.replace("ft: {sample_source", "ft: {schedule: constant, sample_source"))
        found = jobs(snakemake(finished, "-n", "--config", "scale=smoke"))
    finally:
        path.write_text(text)
    assert found["offline"] == 4
    assert set(found) <= {"offline", "collect", "figure", "claims", "report", "all"}


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
    assert not {"target", "draft", "answer", "latency_alpha", "region", "clean"} & set(found)


def test_paper_figures_never_train(checkout):
    words = snakemake(checkout, "-n", "paper_figures", "--forceall")
    assert set(jobs(words)) == {"paper_figure", "paper_figures"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["scale=lap"], "scale.*'smoke', 'laptop', 'shapes' or 'paper'"),
        (["experiments=osd_ofline"], "no experiment named 'osd_ofline'"),
        (["scael=smoke"], "unknown key 'scael'"),
    ],
)
def test_a_wrong_config_is_refused_before_any_job(checkout, words, message):
    output = snakemake(checkout, "-n", "--config", *words, check=False)
    assert re.search(message, output)
    assert "Traceback" not in output
