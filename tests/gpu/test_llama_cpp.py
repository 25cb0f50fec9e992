"""The code path of a GPU in llama.cpp, beside the CPU's on the same small models.

`make test-gpu` runs it with CUDA, `make test-vulkan` on any machine: Vulkan in software, where speed means nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from draftlab.errors import UserError
from draftlab.latency.controlled import continue_text
from draftlab.latency.loop import decode, fixed, speculate
from draftlab.latency.self_check import write_toy
from draftlab.models.backend import EngineOptions
from draftlab.models.gguf import export
from draftlab.models.llama_cpp import LlamaCpp, describe_build
from tests.gpu.measured import measured

pytestmark = pytest.mark.gpu

CPU, GPU = EngineOptions(context_length=256), EngineOptions(context_length=256, gpu_layers=-1)
PROMPT = [30, 4, 8, 100, 2, 60]


@pytest.fixture(scope="module")
def device() -> str:
    """The GPU that llama.cpp names first."""
    return str(describe_build()["gpus"][0])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target in f16 with heads as wide as Vicuna's."""
    folder = tmp_path_factory.mktemp("toy")
    sizes = {"hidden_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 1024}
    write_toy(folder / "toy", **sizes, num_hidden_layers=3, vocab_size=1024, tie_word_embeddings=False)
    export(folder / "toy", folder / "toy.gguf", "f16", vocabulary=False)
    return folder / "toy.gguf"


def test_the_build_names_its_gpus(device: str) -> None:
    said = subprocess.run([sys.executable, "-m", "draftlab", "latency", "check"], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "gpu: True" in said.stdout
    assert device in said.stdout


def test_f16_gives_the_cpu_s_distributions_and_text(file: Path, device: str) -> None:
    with LlamaCpp(file, CPU) as cpu, LlamaCpp(file, GPU) as gpu:
        assert cpu.describe()["device"] == "CPU"
        assert device in gpu.describe()["device"]
        assert (gpu.describe()["cache"], gpu.describe()["clock"]) == ("f16", "perf_counter")
        text = continue_text(cpu, PROMPT, 100)
        for model in (cpu, gpu):
            model.trim(0)
        expected, found = (model.extend(text[:60]).copy() for model in (cpu, gpu))
        assert np.abs(found - expected).max() < 0.02 * expected.std()
        apart = np.diff(np.sort(expected, axis=-1)[:, -2:])[:, 0] > 0.04 * expected.std()
        assert apart.mean() > 0.8
        assert (expected.argmax(-1) == found.argmax(-1))[apart].all()


@pytest.mark.parametrize("where", [(GPU, GPU), (GPU, CPU), (CPU, GPU), (EngineOptions(256, gpu_layers=2), CPU)])
def test_speculation_leaves_greedy_text_as_it_is(file: Path, where: tuple[EngineOptions, EngineOptions]) -> None:
    """Target and draft on one device, or on two, or the target on both. The draft is the target itself: nearly all of its tokens stand."""
    with LlamaCpp(file, where[0]) as target, LlamaCpp(file, where[1]) as draft:
        plain = decode(target, PROMPT, 60)
        done = speculate(target, draft, PROMPT, 60, fixed(4))
    same = next((at for at, pair in enumerate(zip(plain.tokens, done.tokens, strict=True)) if len(set(pair)) > 1), 60)
    assert same >= 20  # a batch sums in another order than a step, and random weights have ties
    assert sum(block.accepted for block in done.blocks) > 30


def test_what_does_not_fit_is_an_error(file: Path) -> None:
    with pytest.raises(UserError, match="cannot open a context"):
        LlamaCpp(file, EngineOptions(context_length=60_000_000, gpu_layers=-1))
    with LlamaCpp(file, GPU) as model:  # and the next one is not disturbed
        assert len(model.extend([1, 2, 3])) == 3


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("latency-alpha", "--alpha 0.8 --draft-len 3 --blocks 2 --rounds 2 --gpu-layers -1 --weights f16"),
        ("latency-length", "--alpha 0.8 --draft-len 3 --length 16 64 --prefix 32 --blocks 2 --rounds 2 --gpu-layers -1 --weights f16"),
        ("latency-cost", "--context 64 --batch 1 4 --verified 2 4 --blocks 2 --gpu-layers -1 --weights q8_0"),
    ],
)  # fmt: skip
def test_measurements_run_on_the_gpu(verb: str, words: str, tmp_path: Path, device: str) -> None:
    assert device in measured(verb, words, tmp_path)


def test_the_workflow_measures_on_the_gpu(tmp_path: Path, checkout: Path, device: str) -> None:
    """A trained pair of scale=smoke, served and timed with all layers on the GPU."""
    fixed_settings = {"fixed": {"gpu_layers": -1, "weights": "f16"}}
    experiments = ["osd_latency_alpha", "osd_latency_dataset", "osd_latency_length"]
    sizes = tmp_path / "sizes.yaml"
    sizes.write_text(json.dumps({"experiments": dict.fromkeys(experiments, fixed_settings)}), encoding="utf-8")
    words = ["scale=smoke", "name=gpu", f"sizes={sizes}", f"experiments={','.join(experiments)}"]
    command = ["snakemake", "--cores", "all", "--config", *words]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    for name in experiments:
        cells = sorted((checkout / "results/gpu/cells" / name).glob("*/run.json"))
        assert cells
        assert all(device in cell.read_text(encoding="utf-8") for cell in cells)
        assert (checkout / f"results/gpu/figures/{name}.png").is_file()
    served = pd.read_csv(checkout / "results/gpu/osd_latency_dataset.csv")
    assert (served["seconds"] > 0).all()
