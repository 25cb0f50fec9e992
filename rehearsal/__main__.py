"""``python -m rehearsal``: write the repositories of a hub, serve them, and run ``scale=paper`` from there on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

import tyro
import yaml

from draftlab import plan
from draftlab.cli import exit_on_error
from draftlab.core.settings import Device
from draftlab.data import registry
from draftlab.errors import UserError
from draftlab.latency.sizes import known_models
from draftlab.plan.run import Run
from rehearsal import datasets, models
from rehearsal.hub import Repository, serve
from rehearsal.sizes import FACTOR, sizes

NAME = "rehearsal"
TOKEN = "rehearsal-token"
FAULTS = {
    "models/lmsys/vicuna-7b-v1.3": "cut",
    "models/facebook/opt-125m": "busy",
    "datasets/openai/gsm8k": "busy",
    "datasets/claudios/code_search_net": "cut",
}
"""The fault that each file of a repository has once."""
ROWS = {
    "spider": (7000, 1034),
    "gsm8k": (7473, 1319),
    "code_search_net": (412178, 22176),
    "finance_alpaca": (68912, 0),
    "arena": (33000, 0),
    "cnn_dailymail": (287113, 13368),
    "xsum": (204045, 11332),
    "dolly": (15011, 0),
    "wmt16": (4548885, 2169),
}
"""Rows of the datasets on the hub, train and the split that is held out."""
NOT_SHOWN_ON: dict[Device, str] = {
    "cpu": "CUDA: its kernels, its memory, several GPUs, and the speed of anything (every time in these tables is of a toy)",
    "cuda": "the speed of anything (every time in these tables is of a toy), the memory of real models, and several GPUs",
}
NOT_SHOWN = (
    "peak memory, disk and download of the real models: `draftlab plan --config scale=paper` computes them",
    "the real weights: numbers of these tables mean nothing, and verdicts on them neither",
    "files of the real repositories that differ from these: layouts were written after what is known of them",
    "the hub's Xet transport, its rate limits, and a connection slower than the loopback interface",
)


def repositories(run: Run) -> dict[str, Repository]:
    """Every repository that a run asks the hub for, at the commit that it asks for."""
    known, tokenizers, served = known_models(), models.tokenizers(), {}
    named = {recipe.model for pair in run.settings.pairs.values() for recipe in pair.models.values() if recipe.model}
    for model in sorted(named):
        name, _, commit = model.partition("@")
        served[f"models/{name}"] = _repository(f"models/{name}", models.files_of(name, known[name], tokenizers), commit)
    name, _, commit = run.settings.data.classifier.partition("@")
    served[f"models/{name}"] = _repository(f"models/{name}", models.classifier(), commit)
    for dataset in map(registry.find, run.settings.every_dataset):
        train, held_out = (max(20, round(min(count, datasets.LARGEST) * FACTOR)) for count in ROWS[dataset.name])
        rows = {dataset.train: train} | ({dataset.eval: held_out} if dataset.eval else {})
        key = f"datasets/{dataset.hub_id}"
        gate = "asks" if dataset.gated == "yes" else ""
        served[key] = _repository(key, datasets.files_of(dataset, rows), dataset.revision, gate)
    return served


def _repository(key: str, files: dict[str, bytes], revision: str, fault: str = "") -> Repository:
    fault = fault or FAULTS.get(key, "fine")
    if re.fullmatch("[0-9a-f]{40}", revision):
        return Repository(files, revision, fault=fault)
    return Repository(files, branches=(revision or "main",), fault=fault)


def rehearse(
    cores: int = 2, config: tuple[str, ...] = (), keep: bool = False, device: Device = "cpu", gpus: int = 1
) -> None:
    """Run ``scale=paper`` with the sizes of a rehearsal.

    ``config``: further values of ``--config``, such as experiments=osd_offline. ``keep``: continue from the files of an earlier rehearsal.
    ``gpus``: jobs that may use a GPU at the same time; with CUDA_VISIBLE_DEVICES=0, all of them use the first.
    """
    values = dict(word.partition("=")[::2] for word in config)
    if taken := sorted({"scale", "name", "sizes"} & values.keys()):
        raise UserError(f"--config: a rehearsal sets {' and '.join(taken)} itself", remedy="leave it out")
    began, folder = time.monotonic(), Path("results") / NAME
    whole = plan.load_run({"scale": "paper"}, plan.WORKFLOW)
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "sizes.yaml"
    file.write_text(yaml.safe_dump(sizes(whole, device), sort_keys=False))
    run = plan.load_run({**values, "scale": "paper", "name": NAME, "sizes": str(file)}, plan.WORKFLOW)
    _log(f"{len(run.experiments)} of {len(whole.experiments)} experiments of scale=paper; writing the hub")
    with serve(repositories(run), TOKEN) as hub:
        _log(f"the hub has {len(hub.repositories)} repositories ({time.monotonic() - began:.0f} s)")
        environment = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str((folder / "hub").resolve())}
        environment |= {"NO_PROXY": "127.0.0.1"}
        environment = {key: value for key, value in environment.items() if key not in ("HF_TOKEN", "HF_HUB_OFFLINE")}
        _check_gates(run, environment)
        command = ["snakemake", "--cores", str(cores), "--keep-going", "--resources", f"gpu={gpus}", "exclusive=1"]
        command += ["--config", "scale=paper", f"name={NAME}", f"sizes={file}", *config]
        done = subprocess.run(command, env=environment | {"HF_TOKEN": TOKEN})
        counts = dict(sorted(Counter(request.status for request in hub.requests).items()))
        _log(
            f"the hub answered {len(hub.requests)} requests, by status {counts}; {hub.broken} answers broke in their middle"
        )
    _print_results(run, whole, time.monotonic() - began)
    print("A rehearsal cannot show:", *(f"* {line}" for line in (NOT_SHOWN_ON[device], *NOT_SHOWN)), sep="\n")
    if done.returncode:
        raise UserError(
            "the rehearsal failed: see the jobs above", remedy="repair what they name, and go on with --keep"
        )


def _log(text: str) -> None:
    print(f"rehearsal: {text}", flush=True)


def _check_gates(run: Run, environment: dict[str, str]) -> None:
    """Check that fetching a gated dataset without a token fails with one line that says where to ask for access."""
    for name in run.settings.every_dataset:
        if registry.find(name).gated != "yes":
            continue
        out = run.folder / f"{name}.refused.jsonl"
        fetch = f"draftlab data fetch --dataset {name} --split train --source hub --out".split()
        done = subprocess.run([*fetch, str(out)], env=environment, capture_output=True, text=True)
        lines = done.stderr.strip().splitlines()
        if done.returncode != 1 or "it is gated" not in lines[-1] or out.exists():
            raise UserError(f"{name} without a token: {' '.join(lines[-3:])}", remedy="repair draftlab.files.hub")
        _log(f"without a token: {lines[-1]}")


def _print_results(run: Run, whole: Run, seconds: float) -> None:
    tables = [name for name in run.experiments if (run.folder / f"{name}.csv").is_file()]
    figures = [name for name in run.experiments if (run.folder / "figures" / f"{name}.png").is_file()]
    count, minutes = len(run.experiments), seconds / 60
    _log(f"{len(tables)} tables and {len(figures)} figures of {count} experiments in {minutes:.1f} min")
    for what, missing in (
        ("not rehearsed", [name for name in whole.experiments if name not in run.experiments]),
        ("without a table", [name for name in run.experiments if name not in tables]),
        ("without a figure", [name for name in run.experiments if name not in figures]),
    ):
        if missing:
            _log(f"{what}: {', '.join(missing)}")


if __name__ == "__main__":
    exit_on_error(lambda: tyro.cli(rehearse))
