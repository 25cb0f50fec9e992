"""This workflow as a module of another one, and what a catalogue of workflows reads of it."""

from __future__ import annotations

import pandas as pd
import pytest
import yaml

from tests.checkout import environment, jobs, snakemake
from tests.conftest import ROOT

pytestmark = pytest.mark.workflow

OUTER = """
module draftlab:
    snakefile: "{root}/Snakefile"
    config: {{"scale": "smoke", "experiments": "mdss_region,osd_online,mdss_acceptance"}}


use rule * from draftlab as draftlab_*


rule best:
    input:
        table="results/smoke/mdss_region.csv",
    output:
        "best.csv",
    default_target: True
    shell:
        "sort -t, -k2 -r {{input.table:q}} | sed -n 1,3p > {{output:q}}"
"""


def outer(folder, *words):
    return snakemake(folder, *words, cores=1, env=environment(ROOT))


def test_another_workflow_imports_its_rules_and_reads_its_tables(tmp_path):
    (tmp_path / "Snakefile").write_text(OUTER.format(root=ROOT))
    outer(tmp_path)
    assert len((tmp_path / "best.csv").read_text().splitlines()) == 3
    assert len(pd.read_csv(tmp_path / "results/smoke/mdss_region.csv")) > 10
    planned = jobs(outer(tmp_path, "-n", "draftlab_all"))
    assert planned["draftlab_online"] >= 4
    assert planned["draftlab_draft"] == 2
    assert planned["draftlab_figure"] == 3


def test_its_rules_can_be_changed_where_they_are_imported(tmp_path):
    more = '\n\nuse rule region from draftlab as draftlab_region with:\n    message:\n        "Computed for us: {{wildcards.cell}}"\n'
    (tmp_path / "Snakefile").write_text((OUTER + more).format(root=ROOT))
    assert "Computed for us: all" in outer(tmp_path, "-n")


def test_the_catalogue_finds_what_it_asks_for():
    usage = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())["usage"]
    assert usage["software-stack-deployment"] == {"conda": False, "apptainer": False}
    assert usage["report"] is True
    for flag in usage["mandatory-flags"]["flags"].split():
        assert flag.startswith("--")
    assert (ROOT / "Snakefile").exists()
    assert "snakemake" in (ROOT / "config/README.md").read_text()
