"""What a run will need: sizes of the papers' models, jobs that do not fit, what is left out."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from benchmarks import memory
from draftlab import plan
from draftlab.core.settings import Device
from draftlab.latency.sizes import Sizes, known_models
from draftlab.models.hf import new_t5
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.plan import needs
from draftlab.plan.memory import decoding, training
from tests.conftest import ROOT

WORKFLOW = Path(plan.WORKFLOW)
PRINTED = {  # million weights, as the models' cards or papers count them
    "lmsys/vicuna-7b-v1.3": 6738.4,
    "lmsys/vicuna-33b-v1.3": 32528.9,
    "JackFram/llama-160m": 162.4,
    "facebook/opt-13b": 12853.5,
    "facebook/opt-125m": 125.2,
    "google/flan-t5-xl": 2849.8,
    "google/t5-efficient-small": 60.5,
}


def run(**config: object) -> plan.Run:
    return plan.load_run({"scale": "paper"} | config, WORKFLOW)


def test_the_sizes_are_those_of_the_models() -> None:
    known = known_models()
    for name, millions in PRINTED.items():
        assert known[name].sizes.parameters / 1e6 == pytest.approx(millions, abs=0.06), name
    llama = Sizes(kind="llama", hidden=32, ffn=64, layers=3, heads=4, kv_heads=2, vocab=100, context=64)
    made = Llama(LlamaConfig(100, 32, 64, 3, 4, 2, 64, tie_word_embeddings=False))
    assert llama.parameters == sum(weight.numel() for weight in made.parameters())
    t5 = Sizes(kind="t5", hidden=32, ffn=64, layers=3, heads=4, kv_heads=4, vocab=100, context=64, tied=True)
    network = new_t5(100, 32, 64, 3, 4, torch.Generator().manual_seed(0))
    assert t5.parameters == sum(weight.numel() for weight in network.parameters())


def test_every_model_of_the_papers_is_in_the_table_and_every_job_fits_a_card_of_80_gb() -> None:
    every = list(needs.jobs(run()))
    assert {job.rule for job in every} >= {"answer", "offline", "online", "target", "draft", "pairs", "latency_alpha"}
    unknown = [job for job in every if job.rule in ("answer", "offline", "online", "pairs") and not job.peak]
    assert unknown == []
    said = list(needs.lines(run(), "a100-80"))
    assert said[-1] == "every job that is modelled fits a100-80 (80 GB)"
    assert any("lmsys/vicuna-33b-v1.3" in line for line in said)
    assert any(line.startswith("requires access") and "chatbot_arena" in line for line in said)


def test_jobs_that_do_not_fit_are_named() -> None:
    said = list(needs.lines(run(), "rtx4090"))
    small = [line for line in said if line.startswith("does not fit")]
    assert any("answer main spider.train" in line for line in small)
    assert any("latency_alpha large" in line for line in small)
    assert not any("t5-efficient" in line for line in small)


def test_a_longer_batch_takes_its_cache_and_a_larger_one_its_distributions() -> None:
    sizes = known_models()["lmsys/vicuna-7b-v1.3"].sizes
    assert decoding(sizes, "float16", 1, 0, 0) == pytest.approx(2 * 6738.4e6, rel=1e-3)
    more = decoding(sizes, "float16", 32, 1, 2047) - decoding(sizes, "float16", 32, 1, 1023)
    assert more == 32 * 1024 * sizes.entry * 2
    small = known_models()["JackFram/llama-160m"].sizes
    assert training(small, 8, 256, 64, 32) - training(small, 8, 256, 64, 16) == 16 * 64 * 32000 * 4


def test_a_run_that_downloads_nothing_asks_for_nothing() -> None:
    said = list(needs.lines(plan.load_run({"scale": "smoke"}, WORKFLOW), "a100-80"))
    assert not any(line.startswith("requires access") for line in said)
    assert not any("hub" in line.lower() for line in said)


def test_the_published_memory_is_what_is_computed_and_within_15_percent_of_what_was_measured() -> None:
    said = [
        line.split("|")
        for line in (ROOT / "docs/paper.md").read_text().splitlines()
        if ", (" in line and line[0] == "|"
    ]
    found = []
    for _, job, model, predicted, measured, *_ in said:
        name, how = model.strip().split(", ", 1)
        device: Device = "cpu" if name.endswith("M") else "cuda"
        found.append((device, job.strip(), name, ast.literal_eval(how)))
        computed = memory.predicted(job.strip(), name, found[-1][3], device) / 1e6
        assert f"{computed:,.0f}" == predicted.strip()
        assert computed == pytest.approx(float(measured.replace(",", "")), rel=0.15)
    kinds = {"decoding": memory.DECODING, "training": memory.TRAINING, "beside a target": memory.BESIDE}
    devices: tuple[Device, Device] = ("cpu", "cuda")
    assert found == [(on, job, *one) for on in devices for job, sizes in kinds.items() for one in sizes[on]]
