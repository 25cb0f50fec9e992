"""Stages that run on a GPU, on a pretended one: their tensors do not meet the CPU's, and their tables are the CPU's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from draftlab.data.prompts import Prompt
from draftlab.engine.settings import Answers
from draftlab.files.json_files import write_jsonl
from draftlab.stages import STAGES
from draftlab.stages._decoding import Inputs as Decoded
from draftlab.stages._stage import Bench, NoInputs
from tests.models.test_t5 import small_t5
from tests.pair import inputs_of, make_results
from tests.pretended_gpu import pretended_gpu

LEARNS = {"dataset": "toy", "batch": 8, "learning_rate": 1e-2, "draft_len": 3}
SERVES = LEARNS | {"update_interval": 8}
REPLAYS = SERVES | {"epochs": 1, "ceiling": 2}
FEW = {"draft_len": 2, "requests": 2, "batch": 2, "max_new_tokens": 6}
DECODES = FEW | {"top_k": [5], "num_drafts": [2], "draft_temperature": [1.2]}
TIMED = LEARNS | {"requests": 16}
HEADS = {"warm": ["other"], "warm_requests": 8, "heads_learning_rate": 1e-3, "widths": [2, 1, 1]}
CELLS: dict[str, tuple[str, dict[str, Any]]] = {
    "offline": ("offline", LEARNS | {"epochs": 1, "micro_batch": 4, "autocast": True, "live": True, "probes": 1}),
    "offline_states": ("offline", LEARNS | {"epochs": 1, "reads_target": True, "live": True}),
    "online_states": ("online", SERVES | {"reads_target": True}),
    "offline_parallel": ("offline", LEARNS | {"epochs": 1, "parallel": True, "live": True, "autocast": True}),
    "online_parallel": ("online", SERVES | {"parallel": True, "reads_target": True, "live": True}),
    "mix_token": ("offline", LEARNS | {"epochs": 1, "sample_source": "mix_token"}),
    "mix_request": ("offline", LEARNS | {"epochs": 1, "sample_source": "mix_request", "temperature": 1.0}),
    "hard_label": ("offline", LEARNS | {"epochs": 1, "loss": "hard_label"}),
    "online": ("online", SERVES | {"replay": 4, "lag": 4}),
    "online_sampled": ("online", SERVES | {"temperature": 1.0, "loss": "tvd", "loss_positions": "all"}),
    "tokens": ("tokens", LEARNS | {"epochs": 1}),
    "replay_log": ("replay_log", REPLAYS | {"draft_lens": [1, 3]}),
    "replay_log_sampled": ("replay_log", REPLAYS | {"draft_lens": [2], "temperature": 1.0}),
    "medusa": (
        "medusa",
        TIMED
        | HEADS
        | {"update_interval": 8, "verifiers": ["rrs", "greedy", "typical"], "live_requests": 2, "timed_updates": 1},
    ),
    "break_even": ("break_even", TIMED | {"intervals": [4], "larger": "draft", "measurements": 1, "context": 16}),
    "live": ("live", DECODES | {"schemes": ["plain", "single", "importance_truncated", "rrs", "gls", "k_seq+block"]}),
    "blocks": ("blocks", DECODES | {"schemes": ["k_seq", "traversal", "sampled", "optimal"], "ceiling": True}),
    "trees": ("trees", FEW | {"nodes": [4], "width": 3}),
    "verifier_cost": (
        "verifier_cost",
        {"vocabs": [500], "num_drafts": [2], "batches": [2], "rounds": 1, "filters": ["top-k 10"]},
    ),
}
OF_T5 = ("offline", "online")
"""The stages in which a T5 runs, as at the papers' scale."""
HALF = {name: "float16" for name in ("offline_states", "mix_token", "mix_request", "medusa", "live", "blocks", "trees")}
"""Where the target has a type of its own, it also runs in float16, whose table differs from the CPU's."""


@pytest.fixture(scope="module")
def results_of_family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy pair with recorded answers, and prompts of several lengths."""
    folder = tmp_path_factory.mktemp(request.param)
    make_results(folder, *([small_t5] if request.param == "t5" else []))
    texts = [f"some text {i}" + " more words" * i for i in range(4)]
    write_jsonl(folder / "prompts.jsonl", [Prompt(str(i), "toy", "eval", text, text) for i, text in enumerate(texts)])
    return folder


def run(name: str, changes: dict[str, Any], results: Path, out: Path, device: str, dtype: str) -> pd.DataFrame:
    """The table of a cell, without its measured times."""
    stage = STAGES[name]
    on_device = {"device": device} if "device" in stage.settings.model_fields else {}
    settings = stage.settings.model_validate(changes | on_device)
    inputs: Any = NoInputs()
    if stage.inputs is Decoded:
        answers = Answers.model_validate({"max_new_tokens": 12, "template": "plain", "device": device, "dtype": dtype})
        files = {role: results / "models" / role for role in ("target", "draft")}
        inputs = Decoded(**files, prompts={"toy": results / "prompts.jsonl"}, answers=answers)
    elif stage.inputs is not NoInputs:
        inputs = inputs_of(results, stage.inputs, dtype=dtype)
    rows, _ = stage.run(settings, inputs, Bench(out))
    return rows[[column for column in rows if not stage.columns[column].timed]]


@pytest.mark.parametrize(
    ("results_of_family", "cell"),
    [
        *(("llama", cell) for cell in CELLS),
        *(
            ("t5", cell)
            for cell, (name, changes) in CELLS.items()
            if name in OF_T5 and not {"reads_target", "parallel"} & set(changes)
        ),
    ],
    indirect=["results_of_family"],
)
def test_the_table_of_a_gpu_is_the_cpu_s(
    results_of_family: Path, cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results, (name, changes) = results_of_family, CELLS[cell]
    of_cpu = run(name, changes, results, tmp_path, "cpu", "float32")
    with pretended_gpu(monkeypatch):
        pd.testing.assert_frame_equal(run(name, changes, results, tmp_path, "cuda", "float32"), of_cpu)
        if cell in HALF:
            assert len(run(name, changes, results, tmp_path, "cuda", HALF[cell])) > 0


def test_tensors_on_two_devices_do_not_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU refuses, and what it allows: indices and single numbers of the CPU."""
    with pretended_gpu(monkeypatch):
        there, here, first = torch.ones(3, device="cuda"), torch.ones(3), torch.tensor([0])
        refused: list[Callable[[], object]] = [
            lambda: there + here,
            lambda: torch.cat([here, there]),
            lambda: torch.tensor(2.0, device="cuda") * here,
            lambda: here[first.to("cuda")],
            lambda: there.gather(0, first),
            lambda: F.embedding(first, there[:, None]),
            lambda: there.index_put_((first,), torch.ones(1)),
            lambda: torch.rand(2, device="cuda", generator=torch.Generator()),
            lambda: there * torch.from_numpy(np.ones(3)),
            lambda: np.asarray(there),
            there.numpy,
        ]
        for call in refused:
            with pytest.raises((RuntimeError, TypeError), match="device"):
                call()
        model = copy.deepcopy(nn.Linear(3, 3).to("cuda"))
        model(there).sum().backward()
        assert model.weight.grad is not None
        made = [there[first], there * torch.tensor(2.0), there[1:], there.new_tensor([1]), model.weight.grad]
        assert [tensor.device.type for tensor in made] == ["cuda"] * 5
        assert (there.cpu() + here).is_cpu
