"""One list of pinned versions behind pip, conda and the containers."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
import sys
import tomllib

import pytest

from draftlab import plan
from draftlab.stages import STAGES
from tests.conftest import ROOT

ENVS = ROOT / "envs"
RULES = ROOT / "workflow/rules"
RENDERED = ("cpu.yaml", "gpu.yaml", "Containerfile", "apptainer.def")
PINS = {line for line in (ENVS / "constraints.txt").read_text().splitlines() if not line.startswith("#")}


def check(folder):
    return subprocess.run([sys.executable, folder / "render.py", "--check"], capture_output=True, text=True)


@pytest.mark.parametrize("name", RENDERED)
def test_a_rendered_file_has_every_pin_and_no_other(name):
    text = (ENVS / name).read_text()
    assert set(re.findall(r"^ +(?:- )?([\w.-]+==[^\s\\]+)", text, re.M)) == PINS
    assert len(PINS) > 100


def test_a_changed_pin_is_noticed_in_every_file(tmp_path):
    folder = shutil.copytree(ENVS, tmp_path / "envs")
    assert check(folder).returncode == 0
    constraints = folder / "constraints.txt"
    constraints.write_text(re.sub(r"^scipy==.*$", "scipy==0.0.1", constraints.read_text(), flags=re.M))
    message = check(folder).stderr
    assert all(name in message for name in (*RENDERED, "hashes.txt"))


def test_what_is_installed_by_digest_is_every_pin_but_torch_and_llama_cpp():
    lines = (ENVS / "hashes.txt").read_text().split("\n")
    assert sum("==" in line and line[0].isalnum() for line in lines) == len(PINS) - 2
    for before, line in itertools.pairwise(lines):
        if "==" in before and before[0].isalnum():
            assert re.match(r"    --hash=sha256:[0-9a-f]{64}", line), before
    assert "pip install --no-deps --require-hashes -r envs/hashes.txt" in (ENVS / "setup.sh").read_text()


def test_every_dependency_is_pinned():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(name for names in project["optional-dependencies"].values() for name in names),
    ]
    pinned = {re.sub(r"[-_.]+", "-", pin.split("==")[0].lower()) for pin in PINS}
    names = {re.match(r"[\w.-]+", requirement)[0].replace("_", "-").lower() for requirement in wanted}
    assert names - {"draftlab"} <= pinned  # an extra names another one as draftlab[...]


def test_llama_cpp_is_built_alike_everywhere():
    flags = re.search(r'LLAMA_FLAGS = "(.*)"', (ENVS / "render.py").read_text())[1]
    assert all(flags in (ENVS / name).read_text() for name in ("setup.sh", "Containerfile", "apptainer.def"))
    for name, cuda in (("cpu.yaml", ""), ("gpu.yaml", ";-DGGML_CUDA=ON")):
        (line,) = re.findall(r"- (llama-cpp-python==.*)", (ENVS / name).read_text())
        assert line.endswith(f' --config-settings="cmake.args={flags.replace(" ", ";")}{cuda}"')


@pytest.mark.parametrize(("scale", "name"), [("smoke", "cpu"), ("paper", "gpu")])
@pytest.mark.parametrize("stage", ["latency_alpha", "latency_requests", "latency_interference", "region"])
def test_llama_cpp_is_measured_in_the_environment_of_its_device(scale, name, stage):
    run = plan.load_run({"scale": scale}, ROOT / "workflow")
    said = re.search(r"^for STAGE .*?conda:\s+(f\".*?\")\n", (RULES / "cells.smk").read_text(), re.M | re.S)[1]
    found = eval(said, {"STAGE": STAGES[stage], "RUN": run})  # noqa: S307 - the rule's own words
    assert (RULES / found).resolve() == ENVS / f"{name if stage != 'region' else 'cpu'}.yaml"


def test_every_conda_file_that_a_rule_names_exists():
    found = [
        (path, name)
        for path in (ROOT / "workflow").rglob("*.smk")
        for name in re.findall(r'conda:\s+"([^"]+)"', path.read_text())
    ]
    assert len(found) > 15
    for path, name in found:
        assert (path.parent / name).is_file()
        assert (path.parent / name).with_suffix(".post-deploy.sh").is_file()
