"""The rehearsal changes sizes and the device, nothing else; its hub answers for pinned commits and makes a client meet each fault once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save

from draftlab import plan
from draftlab.core.settings import Device
from draftlab.errors import UserError
from rehearsal import models
from rehearsal.__main__ import rehearse
from rehearsal.hub import Repository, serve
from rehearsal.sizes import AMOUNTS, CAPS, DEVICES, sizes
from tests.conftest import ROOT

COMMIT = "236eeeab96f0dc2e463f2bebb7bb49809279c6d6"
SIZED = {*AMOUNTS, *CAPS, "seed", "gates", "threads", "arena"}


def changed(one: Any, other: Any, key: str = "") -> set[str]:
    """The keys under which two settings differ."""
    if isinstance(one, dict) and isinstance(other, dict) and set(one) == set(other):
        return {found for name in one for found in changed(one[name], other[name], name)}
    return set() if one == other else {key}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_rehearsal_has_the_pairs_experiments_and_cells_of_the_scale(tmp_path: Path, device: Device) -> None:
    whole = plan.load_run({"scale": "paper"}, plan.WORKFLOW)
    (tmp_path / "sizes.yaml").write_text(yaml.safe_dump(sizes(whole, device), sort_keys=False))
    run = plan.load_run({"scale": "paper", "sizes": str(tmp_path / "sizes.yaml")}, plan.WORKFLOW)
    assert run.settings.data.train_requests("arena") < whole.settings.data.train_requests("arena") / 100
    assert (
        changed(whole.settings.model_dump(exclude={"experiments"}), run.settings.model_dump(exclude={"experiments"}))
        <= SIZED | DEVICES[device].keys()
    )
    assert list(run.experiments) == list(whole.experiments)
    assert len(run.experiments) > 30
    for name in run.experiments:
        ours, theirs = run.cells(name), whole.cells(name)
        assert list(ours) == list(theirs)
        for cell, variants in ours.items():
            first = [own for own in theirs[cell] if own.labels.get("seed", 0) == 0]
            assert [own.labels for own in variants] == [own.labels for own in first]
            for own, other in zip(variants, first, strict=True):
                assert type(own.settings) is type(other.settings)
                assert changed(own.settings.model_dump(), other.settings.model_dump()) <= SIZED | DEVICES[device].keys()


def test_a_rehearsal_of_another_scale_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="sets name and scale itself"):
        rehearse(config=("scale=smoke", "name=mine"))
    assert not list(tmp_path.iterdir())


def test_a_rehearsal_serves_the_same_classifier_each_time() -> None:
    assert models.classifier(steps=1) == models.classifier(steps=1)


CLIENT = """
import json, os, sys, time
from pathlib import Path
time.sleep = lambda seconds: None                       # waits between attempts
from draftlab.errors import UserError
from draftlab.models.hub import copy_model
from huggingface_hub import constants
constants.DOWNLOAD_CHUNK_SIZE = 1024                    # files here are smaller than the 10 MB that are written at once
said = {}
for word in sys.argv[2:]:
    os.environ["HF_TOKEN"], name = word.split()
    try:
        copy_model(name, Path(sys.argv[1]) / name.replace("/", "-"))
        said[word] = ""
    except UserError as error:
        said[word] = str(error)
print(json.dumps(said))
"""


def test_a_shard_that_breaks_a_busy_hub_and_a_gate(tmp_path: Path) -> None:
    shards = {f"model-{n:05}-of-00002.safetensors": save({f"w{n}": torch.full((64, 64), float(n))}) for n in (1, 2)}
    index = {"weight_map": {f"w{n}": name for n, name in enumerate(shards, 1)}}
    files = {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors.index.json": json.dumps(index).encode()}
    faults = {"cut": "cut", "busy": "busy", "gate": "asks"}
    hub_of = {f"models/owner/{name}": Repository(files | shards, COMMIT, fault=fault) for name, fault in faults.items()}
    other = "0" * 40
    words = [
        f"theirs owner/gate@{COMMIT}",
        f"ours owner/busy@{other}",
        *(f"ours owner/{name}@{COMMIT}" for name in faults),
    ]
    with serve(hub_of, token="ours") as hub:
        given = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"}
        environment = os.environ | given | {"PYTHONPATH": str(ROOT / "src")}
        command = [sys.executable, "-c", CLIENT, str(tmp_path / "out"), *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    refused, absent, *fetched = json.loads(done.stdout.splitlines()[-1]).values()
    assert "it is gated (ask for access at" in refused
    assert "check its name and revision" in absent
    assert fetched == ["", "", ""]
    for name in faults:
        assert {file: (tmp_path / f"out/owner-{name}@{COMMIT}" / file).read_bytes() for file in shards} == shards
    asked = [(found[1], request) for request in hub.requests if (found := re.search(r"/owner/(\w+)", request.path))]
    answered = {(name, request.status) for name, request in asked}
    assert {("cut", 206), ("busy", 429), ("gate", 401), ("gate", 200)} <= answered
    assert ("gate", 206) not in answered
    assert hub.broken > 2
