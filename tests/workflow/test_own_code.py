"""A verifier in a file of the user's own, through Snakemake: its test comes first, and an edit of the file repeats it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkout import copy_checkout, jobs, snakemake

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
