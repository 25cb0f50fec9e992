"""What jobs ask of a scheduler at each scale, and that every profile plans the same jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from draftlab import experiments
from tests.conftest import ROOT
from tests.test_workflow import copy_checkout, environment, jobs, snakemake

SCALES = [path.stem for path in (ROOT / "workflow/scales").glob("*.yaml")]
RULES = {
    name: text
    for path in [*(ROOT / "workflow/rules").glob("*.smk"), ROOT / "workflow/figures.smk"]
    for name, text in re.findall(
        r"^(?:use rule \w+ as |rule )(\w+).*?:\n(.*?)(?=^\S|\Z)", path.read_text(), re.M | re.S
    )
}


def test_every_rule_says_what_it_needs():
    rules = {name: text for name, text in RULES.items() if "shell:" in text and "localrule" not in text}
    assert len(rules) > 20
    for name, text in rules.items():
        assert f'**resources_of("{name}")' in text
        assert f'threads: needs("{name}").threads' in text or "threads: 64" in text
        assert "message:" in text


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_names_only_rules(scale):
    named = yaml.safe_load((ROOT / f"workflow/scales/{scale}.yaml").read_text()).get("needs", {})
    assert set(named) <= set(RULES)


def test_training_on_several_gpus_asks_for_them():
    run = experiments.load_run({"scale": "paper"}, ROOT / "workflow")
    values = run.settings.model_dump() | {"compute": {"device": "cuda", "processes": 4}}
    with pytest.raises(ValueError, match=r"compute.processes is 4, but needs.offline.gpu is 1"):
        experiments.ScaleSettings.model_validate(values)


@pytest.mark.workflow
@pytest.mark.xdist_group("workflow")
def test_the_papers_scale_plans_every_experiment_with_what_its_models_need():
    before = os.times().children_user
    planned = jobs(snakemake(ROOT, "-n", "--config", "scale=paper", "experiments=all"))
    assert os.times().children_user - before < 10
    run = experiments.load_run({"scale": "paper", "experiments": "all"}, ROOT / "workflow")
    assert planned["collect"] == planned["figure"] == len(run.experiments)
    for rule in ("answer", "offline", "online", "live", "pairs", "latency"):
        assert planned[rule]
        asked = run.settings.needs[rule]
        assert asked.gpu == 1
        assert asked.mem_mb >= 64_000
        assert asked.runtime >= 240
    assert not {"collect", "figure", "claims", "report"} & set(run.settings.needs)


KUBECTL = """#!{python}
import json, pathlib, subprocess, sys, yaml
jobs = pathlib.Path({jobs!r})
if sys.argv[1] == "create":
    job = yaml.safe_load(sys.stdin)
    name = f"job.batch/draftlab-{{len(list(jobs.iterdir()))}}"
    container = job["spec"]["template"]["spec"]["containers"][0]
    code = subprocess.run(container["command"], cwd=container["workingDir"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode
    (jobs / name.replace("/", ".")).write_text(json.dumps({{"job": job, "code": code}}))
    print(name)
else:
    code = json.loads((jobs / sys.argv[2].replace("/", ".")).read_text())["code"]
    print("1/" if code == 0 else "/1", end="")
"""


@pytest.mark.workflow
@pytest.mark.xdist_group("workflow")
def test_the_kubernetes_profile_hands_jobs_with_their_needs_to_kubectl(tmp_path, monkeypatch):
    jobs_folder, folder = tmp_path / "jobs", copy_checkout(tmp_path / "checkout")
    jobs_folder.mkdir()
    stand_in = tmp_path / "bin/kubectl"
    stand_in.parent.mkdir()
    stand_in.write_text(KUBECTL.format(python=sys.executable, jobs=str(jobs_folder)))
    stand_in.chmod(0o755)
    env = environment(folder) | {
        "DRAFTLAB_IMAGE": "draftlab:1",
        "DRAFTLAB_CLAIM": "work",
        "DRAFTLAB_MOUNT": str(tmp_path),
    }
    words = (
        "--seconds-between-status-checks=1",
        "--latency-wait=5",
        "results/smoke/mdss_region.csv",
        "--config",
        "scale=smoke",
    )
    done = subprocess.run(
        ["snakemake", "--workflow-profile", "profiles/kubernetes", *words],
        cwd=folder,
        env=env | {"PATH": f"{stand_in.parent}:{env['PATH']}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "results/smoke/mdss_region.csv").exists()
    submitted = [json.loads(path.read_text())["job"]["spec"] for path in jobs_folder.iterdir()]
    containers = [spec["template"]["spec"]["containers"][0] for spec in submitted]
    assert len(containers) == 2
    assert all(container["image"] == "draftlab:1" for container in containers)
    assert all(container["resources"]["requests"] == {"cpu": 1, "memory": "2000Mi"} for container in containers)
    assert all(spec["activeDeadlineSeconds"] == 1800 for spec in submitted)
    submit = ["sh", "profiles/kubernetes/job.sh", "submit", "4", "64000", "2", "60", "/dev/null"]
    name = subprocess.run(
        submit,
        cwd=folder,
        env=env | {"PATH": f"{stand_in.parent}:{env['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    limits = json.loads((jobs_folder / name.replace("/", ".")).read_text())["job"]["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert limits["resources"]["limits"] == {"memory": "64000Mi", "nvidia.com/gpu": 2}
