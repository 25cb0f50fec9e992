"""Code and an experiment in files of the user's own, through Snakemake: what depends on them runs, and an edit repeats it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkout import copy_checkout, edited, jobs, snakemake

pytestmark = [pytest.mark.workflow, pytest.mark.slow]

OURS = """\
import dataclasses
from draftlab.core.verify import single

mine = dataclasses.replace(single, closed_form=None, survivors=None)
"""
SIZES = "experiments: {mdss_topk: {fixed: {num_drafts: [2], schemes: [single, optimal, 'ideas/our ideas.py:mine']}}}"


def test_a_verifier_is_tested_before_a_cell_that_names_it(tmp_path: Path) -> None:
    folder = copy_checkout(tmp_path / "checkout")
    (folder / "ideas").mkdir()
    ours = folder / "ideas/our ideas.py"
    ours.write_text(OURS)
    (folder / "mine.yaml").write_text(SIZES)
    config = ("--config", "scale=smoke", "sizes=mine.yaml", "experiments=mdss_topk")

    def ran(*more: str, check: bool = True) -> str:
        return snakemake(folder, *more, *config, check=check)

    planned = jobs(ran("-n"))
    assert planned["conformance"] == 1
    assert planned["blocks"] >= 1
    result = "results/smoke-sizes/verifiers/our-ideas.mine.txt"
    ran(result)
    assert "ideas/our ideas.py:mine: lossless" in (folder / result).read_text()
    assert "conformance" not in jobs(ran("-n"))
    ours.write_text(OURS + "\n# Only words.\n")
    assert "conformance" not in jobs(ran("-n"))
    ours.write_text(OURS.replace("single, closed_form", "single, decide=lambda *given: 1 / 0, closed_form"))
    output = ran(result, check=False)
    assert "our ideas.py:4: ideas/our ideas.py:mine raised ZeroDivisionError: division by zero" in output
    assert not (folder / result).exists()
    ours.unlink()
    output = ran("-n", check=False)
    assert "mine.yaml:1: " in output
    assert "no such file: ideas/our ideas.py (give its path from" in output


REGION = """\
title: A region
question: Where is acceptance 1?
paper: beyond
artefact: mine
finding: {left: {num_drafts: 4}, right: {num_drafts: 2}, more: "More is better: {gap}", level: "It is all the same: {gap}"}
layout: {rows: [panel, scheme], columns: [num_drafts]}
stage: region
fixed: {num_drafts: [2, 4], points: 4}
scales: {smoke: {}}
"""


def test_an_experiment_beside_one_s_own_code_runs_to_the_report_and_nothing_of_it_goes_stale(tmp_path: Path) -> None:
    folder = copy_checkout(tmp_path / "checkout")
    (folder / "my ideas").mkdir()
    mine = folder / "my ideas/mine.yaml"
    mine.write_text(REGION)

    def ran(*more: str, check: bool = True) -> str:
        return snakemake(folder, *more, "--config", "scale=smoke", "experiments=my ideas/mine.yaml", check=check)

    def again(old: str, new: str) -> set[str]:
        with edited(mine, old, new):
            return set(jobs(ran("-n"))) - {"all"}

    ran()
    assert (folder / "results/smoke/figures/mine.md").read_text().startswith("More is better: ")
    assert 'id="mine"' in (folder / "results/smoke/report.html").read_text()
    assert again("", "# Only words.\n") == set()
    assert again("Where is", "Where really is") == {"report"}
    assert again("More is better", "Four are better") == {"figure", "report"}
    assert again("points: 4", "points: 5") == {"region", "collect", "figure", "claims", "report"}
    with edited(mine, "points: 4", "points: four"):
        assert "my ideas/mine.yaml:8: points: " in ran("-n", check=False)
