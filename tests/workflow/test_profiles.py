"""What jobs ask of a scheduler at each scale, and that every profile plans the same jobs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from draftlab import plan
from draftlab.stages import STAGES
from tests.checkout import copy_checkout, environment, jobs, snakemake, stand_in
from tests.conftest import ROOT

CLUSTERS = ("slurm", "generic", "kubernetes")
SCALES = [path.stem for path in (ROOT / "workflow/scales").glob("*.yaml")]
RULES = {
    name: text
    for path in [*(ROOT / "workflow/rules").glob("*.smk"), ROOT / "workflow/figures.smk"]
    for name, text in re.findall(r"^rule (\w+):\n(.*?)(?=^\S|\Z)", path.read_text(), re.M | re.S)
}
CELL = re.search(r"^for STAGE in STAGES.*?(?=^\S)", (ROOT / "workflow/rules/cells.smk").read_text(), re.M | re.S)[0]
"""The rule of every stage, made in a loop."""
EVERY = {*RULES, *STAGES}
MEASURED = {name for name, stage in STAGES.items() if stage.exclusive}


def test_every_rule_says_what_it_needs():
    rules = {name: text for name, text in RULES.items() if "shell:" in text and "localrule" not in text}
    assert len(rules) >= 13
    for name, text in rules.items():
        assert f'**resources_of("{name}")' in text
        assert f'threads: threads_of("{name}")' in text
        assert "message:" in text
    asks = ("**resources_of(STAGE.name)", "all_cores() if STAGE.exclusive else threads_of(STAGE.name)", "message:")
    assert all(words in CELL for words in asks)


@pytest.mark.workflow
def test_every_stage_has_a_rule_and_every_rule_its_sentence():
    listed = snakemake(ROOT, "--list-rules")
    assert set(re.findall(r"^(\w+)", listed, re.M)) >= EVERY


@pytest.mark.parametrize("scale", SCALES)
def test_a_scale_names_only_rules(scale):
    said = yaml.safe_load((ROOT / f"workflow/scales/{scale}.yaml").read_text())
    for name in said.get("needs", {}):
        rule, _, pair = name.partition(".")
        assert rule in EVERY | {"latency"}  # which stands for all that measure it
        assert not pair or pair in said["pairs"]


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_profile_names_only_rules_and_gives_measurements_their_threads(name):
    profile = yaml.safe_load((ROOT / f"profiles/{name}/config.yaml").read_text())
    grouped, threads = (dict(word.split("=") for word in profile[key]) for key in ("groups", "set-threads"))
    assert len(grouped) > 3
    assert set(grouped) <= EVERY
    assert len(MEASURED) > 10
    assert threads == dict.fromkeys(MEASURED, "1") | {"latency_interference": "2"}  # it trains beside serving
    assert not MEASURED & set(grouped)
    assert "collect" not in grouped, "a cell may read a collected table, so a group of both would depend on itself"
    if name == "slurm":
        assert sorted(profile["set-resources"]) == sorted(f"{rule}:slurm_extra='--exclusive'" for rule in MEASURED)


def submitted(folder, rule, target, *words):
    """The rule and the threads of the job that a cluster is asked for."""
    submit = ("--executor=cluster-generic", "--cluster-generic-submit-cmd=echo {rule} {threads} >submitted; false")
    plain = ("--workflow-profile=none", "--jobs=1", "--seconds-between-status-checks=1")
    snakemake(folder, *submit, *plain, *words, f"--allowed-rules={rule}", "--", target, check=False, cores=None)
    return (folder / "submitted").read_text()


@pytest.mark.workflow
def test_one_pair_may_ask_for_more_threads(tmp_path):
    folder = copy_checkout(tmp_path / "checkout")
    sizes = folder / "sizes.yaml"
    sizes.write_text("needs: {pairs.multidraft: {threads: 3}}\n")
    asked = plan.load_run({"scale": "smoke", "sizes": str(sizes)}, plan.WORKFLOW).settings.asked
    assert (asked("pairs", "main").threads, asked("pairs", "multidraft").threads) == (1, 3)
    files = ["data/dolly/eval.jsonl", *(f"multidraft/models/{role}/config.json" for role in ("target", "draft"))]
    for file in files:
        (folder / "results/mine" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "results/mine" / file).touch()
    words = ("--cores", "8", "--config", "scale=smoke", "name=mine", "sizes=sizes.yaml")
    assert submitted(folder, "pairs", "results/mine/multidraft/pairs/dolly.safetensors", *words) == "pairs 3\n"


@pytest.mark.workflow
@pytest.mark.parametrize(("cores", "asked"), [(("--cores", "200"), 200), ((), 1)])
def test_a_measurement_asks_for_every_core_that_is_counted(tmp_path, cores, asked):
    folder = copy_checkout(tmp_path / "checkout")
    for model in ("target", "draft"):
        made = folder / f"results/smoke/main/models/{model}/config.json"
        made.parent.mkdir(parents=True)
        made.touch()
    target = "results/smoke/cells/osd_latency_alpha/all/rows.csv"
    found = submitted(folder, "latency_alpha", target, *cores, "--config", "scale=smoke")
    assert found == f"latency_alpha {asked}\n"


@pytest.mark.workflow
def test_no_job_requests_more_than_the_limits_also_when_it_is_tried_again(tmp_path):
    """A cluster holds a job that requests more than its longest one for ever."""
    folder = copy_checkout(tmp_path / "checkout")
    (folder / "sizes.yaml").write_text("{needs: {offline: {runtime: 500}}, limits: {runtime: 720, mem_mb: 3000}}")
    for file in (
        "main/models/target/config.json",
        "main/models/draft/config.json",
        "main/answers/spider.train/answers.jsonl",
    ):
        (folder / "results/mine" / file).parent.mkdir(parents=True)
        (folder / "results/mine" / file).touch()
    held_out = folder / "results/mine/main/answers/spider.eval/answers.jsonl"
    held_out.parent.mkdir()
    held_out.touch()
    submit = "echo {resources.runtime} {resources.mem_mb} >>submitted; false"
    words = (
        "--retries=1",
        f"--cluster-generic-submit-cmd={submit}",
        "--config",
        "scale=smoke",
        "name=mine",
        "sizes=sizes.yaml",
    )
    found = submitted(folder, "offline", "results/mine/cells/osd_offline/spider/rows.csv", *words)
    assert [line.split() for line in found.splitlines()] == [["500", "2500"], ["720", "3000"]]


SQUEUE = {"COMPLETED": "success"} | dict.fromkeys(["COMPLETING", "PENDING", "RUNNING"], "running")
SQUEUE |= dict.fromkeys(["FAILED", "OUT_OF_MEMORY", "TIMEOUT", "CANCELLED", "NODE_FAIL"], "failed")


@pytest.mark.parametrize(
    ("squeue", "sacct", "status"),
    [
        *((f"echo {state}", "exit 1", status) for state, status in SQUEUE.items()),
        ("echo Unable to contact slurm controller >&2; exit 1", "echo FAILED", "running"),
        ("echo Invalid job id specified >&2; exit 1", "echo '  COMPLETED '", "success"),
        ("echo Invalid job id specified >&2; exit 1", "echo ' TIMEOUT '", "failed"),
        ("echo Invalid job id specified >&2; exit 1", "echo accounting is off >&2; exit 1", "failed"),
    ],
)
def test_the_generic_profile_sees_how_a_job_ended(tmp_path, squeue, sacct, status):
    for name, body in (("squeue", squeue), ("sacct", sacct)):
        stand_in(tmp_path / name, body)
    folder = ROOT / "profiles/generic"
    command = folder / yaml.safe_load((folder / "config.yaml").read_text())["cluster-generic-status-cmd"]
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    asked = subprocess.run([command, "7"], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert asked.stdout == f"{status}\n"


def test_training_on_several_gpus_asks_for_them():
    run = plan.load_run({"scale": "paper"}, ROOT / "workflow")
    values = run.settings.model_dump() | {"compute": {"device": "cuda", "processes": 4}}
    with pytest.raises(ValueError, match=r"compute.processes is 4, but needs.offline.gpu is 1"):
        type(run.settings).model_validate(values)


@pytest.mark.workflow
def test_the_papers_scale_plans_every_experiment_with_what_its_models_need():
    before = os.times().children_user
    command = ["snakemake", "--cores", "1", "-n", "--config", "scale=paper", "experiments=all"]
    done = subprocess.run(command, cwd=ROOT, env=environment(ROOT), capture_output=True, text=True, check=True)
    planned = jobs(done.stdout + done.stderr)
    assert os.times().children_user - before < 10
    run = plan.load_run({"scale": "paper", "experiments": "all"}, ROOT / "workflow")
    assert planned["collect"] == planned["figure"] == len(run.experiments)
    for rule in ("answer", "offline", "online", "live", "pairs", "latency_alpha", "latency_update"):
        assert planned[rule]
        asked = run.settings.asked(rule)
        assert asked.gpu == 1
        assert asked.runtime >= 240
    assert not {"collect", "figure", "claims", "report"} & set(run.settings.needs)


@pytest.mark.workflow
def test_a_table_that_an_experiment_needs_is_planned_and_a_name_is_not_a_pattern():
    planned = jobs(snakemake(ROOT, "-n", "--config", "scale=smoke", "experiments=osd_memory_traffic", "name=a+b"))
    assert planned["memory_traffic"] == 1
    assert planned["collect"] == 2  # osd_online's too
    assert planned["figure"] == 1


@pytest.mark.workflow
def test_prefetch_gets_data_and_models_and_runs_none(tmp_path):
    run = plan.load_run({"scale": "paper"}, ROOT / "workflow")
    planned = jobs(snakemake(ROOT, "-n", "prefetch", "--config", "scale=paper"))
    datasets = run.settings.every_dataset
    assert planned.pop("clean") <= len(datasets)  # what small models would learn from is an input of named ones too
    assert planned == {"fetch": 2 * len(datasets), "prefetch": 1, "tokenizer": 4, "target": 4, "draft": 13}
    folder = copy_checkout(tmp_path / "checkout")
    snakemake(folder, "prefetch", "--config", "scale=smoke")
    made = {path.name for path in (folder / "results/smoke").iterdir()}
    assert made == {"data", "logs"}


KUBECTL = """#!{python}
# A cluster that runs a Job at once, with the image's programs and the container's variables alone, and is away when first asked for it.
import json, pathlib, subprocess, sys, yaml
jobs, words = pathlib.Path({jobs!r}), sys.argv[1:]
if words[0] == "create":
    job = yaml.safe_load(sys.stdin)
    name = f"job.batch/draftlab-{{len(list(jobs.iterdir()))}}"
    container = job["spec"]["template"]["spec"]["containers"][0]
    env = {{"PATH": {image!r} + ":/usr/bin:/bin"}} | {{pair["name"]: pair["value"] for pair in container["env"]}}
    code = subprocess.run(container["command"], cwd=container["workingDir"], env=env, capture_output=True).returncode
    (jobs / name.replace("/", ".")).write_text(json.dumps({{"job": job, "code": code, "asked": 0}}))
    print(name)
elif words[0] == "get":
    path = jobs / next(word for word in words if word.startswith("job.")).replace("/", ".")
    if not path.exists():
        sys.exit(0 if "--ignore-not-found" in words else 1)
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {{"asked": found["asked"] + 1}}))
    if not found["asked"]:
        sys.exit("the server is away")
    print("1/" if found["code"] == 0 else "/1", end="")
else:
    for name in words[2:]:
        (jobs / name.replace("/", ".")).unlink()
"""


@pytest.fixture
def kubernetes(tmp_path):
    """A folder of Jobs, and the environment of a checkout whose ``kubectl`` keeps them there."""
    jobs_folder, folder, image = tmp_path / "jobs", copy_checkout(tmp_path / "checkout"), tmp_path / "image"
    jobs_folder.mkdir()
    stand_in(image / "python", f'echo used >>{tmp_path}/python\nexec {sys.executable} "$@"')
    stand_in(image / "draftlab", f'exec {sys.executable} -m draftlab "$@"')
    kubectl = tmp_path / "bin/kubectl"
    kubectl.parent.mkdir()
    kubectl.write_text(KUBECTL.format(python=sys.executable, jobs=str(jobs_folder), image=str(image)))
    kubectl.chmod(0o755)
    env = environment(folder)
    env |= {"DRAFTLAB_IMAGE": "draftlab:1", "DRAFTLAB_CLAIM": "work", "DRAFTLAB_MOUNT": str(tmp_path)}
    env |= {"HF_HOME": f"{tmp_path}/hub", "PATH": f"{kubectl.parent}:{env['PATH']}"}
    return folder, jobs_folder, env


@pytest.mark.workflow
def test_the_kubernetes_profile_runs_jobs_with_their_needs_in_the_image(kubernetes, tmp_path):
    """From a folder other than the checkout."""
    checkout, jobs_folder, env = kubernetes
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    words = [f"--snakefile={checkout}/Snakefile", f"--workflow-profile={checkout}/profiles/kubernetes"]
    words += ["--seconds-between-status-checks=1", "--latency-wait=5", "results/smoke/mdss_region.csv"]
    snakemake(folder, *words, "--config", "scale=smoke", cores=None, env=env)
    assert (folder / "results/smoke/mdss_region.csv").exists()
    pods = [json.loads(path.read_text())["job"]["spec"]["template"]["spec"] for path in jobs_folder.iterdir()]
    assert len(pods) == 2
    assert len((tmp_path / "python").read_text().splitlines()) >= 2
    for pod in pods:
        assert pod["activeDeadlineSeconds"] == 1800
        (container,) = pod["containers"]
        assert container["image"] == "draftlab:1"
        assert container["resources"]["requests"] == {"cpu": 1, "memory": "2000Mi"}
        assert {"name": "HF_HOME", "value": f"{tmp_path}/hub"} in container["env"]


def test_the_kubernetes_profile_asks_for_gpus_sees_what_became_of_a_job_and_deletes_it(kubernetes):
    folder, jobs_folder, env = kubernetes
    profile = yaml.safe_load((folder / "profiles/kubernetes/config.yaml").read_text())
    status, cancel = (
        str(folder / "profiles/kubernetes" / profile[f"cluster-generic-{verb}-cmd"]) for verb in ("status", "cancel")
    )

    def said(*words):
        done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    (folder / "job.sh").write_text("exit 1")
    name = said("profiles/kubernetes/submit", "4", "64000", "2", "60", "job.sh")
    (path,) = jobs_folder.iterdir()
    (container,) = json.loads(path.read_text())["job"]["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"memory": "64000Mi", "nvidia.com/gpu": 2}
    assert [said(status, name) for _ in range(2)] == ["running", "failed"]
    said(cancel, name)  # one word, as the plugin calls it
    assert not path.exists()
    assert said(status, name) == "failed"
    env["HF_HOME"] = "/elsewhere"
    command = ["profiles/kubernetes/submit", "1", "1", "0", "1", "job.sh"]
    refused = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "is not below DRAFTLAB_MOUNT" in refused.stderr
