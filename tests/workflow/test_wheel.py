"""The wheel: what ``make wheel`` puts together holds the workflow, and plans a run from another folder."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from draftlab.files.checkout import ROOT


@pytest.mark.slow
def test_an_installed_wheel_plans_a_run_elsewhere(tmp_path: Path):
    recipe = re.search(r"^wheel:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    lines = (
        recipe[1].replace("$(WHEEL)", str(tmp_path / "wheel")).replace("--wheel-dir dist", f"--wheel-dir {tmp_path}")
    )
    lines = lines.replace("pip wheel", f"{sys.executable} -m pip wheel --no-build-isolation")
    subprocess.run(["sh", "-ec", lines], cwd=ROOT, check=True, capture_output=True)
    wheel = next(tmp_path.glob("draftlab-*.whl"))
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        packed.extractall(tmp_path / "site")
    assert "draftlab/checkout/Snakefile" in names
    assert "draftlab/checkout/workflow/scales/traffic.yaml" in names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".sif")]
    prompts = tmp_path / "log.jsonl"
    prompts.write_text("".join(f'{{"prompt": "how much is {i} + {i}?"}}\n' for i in range(80)))
    inside = tmp_path / "site/draftlab/checkout"
    command = [sys.executable, "-m", "snakemake", "-n", "--snakefile", inside / "Snakefile"]
    command += ["--workflow-profile", inside / "profiles/default", "--config", "scale=traffic", f"dataset={prompts}"]
    shutil.rmtree(tmp_path / "wheel", ignore_errors=True)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    (tmp_path / "elsewhere").mkdir()
    done = subprocess.run([str(word) for word in command], cwd=tmp_path / "elsewhere", env=environment, text=True, check=False, capture_output=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "replay_log" in done.stdout + done.stderr
