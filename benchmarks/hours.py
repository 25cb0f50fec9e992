"""The seconds that `draftlab plan` predicts for jobs on a GPU beside those that they took: python -m benchmarks.hours

Without --run, it first runs three rules of scale=paper (answers, offline and online distillation) on generated requests, with random weights of
the papers' sizes. Weights do not change the time: they only never end an answer early, which is what the plan assumes too.
With --run, it compares a finished run: python -m benchmarks.hours --run scale=paper --gpu a100-80
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
import yaml

import benchmarks
from benchmarks.memory import random_model
from draftlab.core.settings import Device
from draftlab.engine.answers import Answer
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.latency.sizes import architecture_of
from draftlab.plan.hours import GPUS, Card, seconds
from draftlab.plan.needs import jobs
from draftlab.plan.run import Run, run_of
from draftlab.plan.scale import Gpu
from draftlab.plan.times import FILE, read_times
from draftlab.stages import STAGES
from rehearsal.models import VOCABULARY, tokenizers

DATASET = "gsm8k"
METHODS = {
    "osd_offline": {
        "teacher_forward_kl": {"sample_source": "teacher", "loss": "forward_kl"},
        "student_forward_kl": {"sample_source": "student", "loss": "forward_kl"},
        "mix_request_forward_kl": {"sample_source": "mix_request", "loss": "forward_kl"},
    },
    "osd_online": {"online": {}, "static_10": {"learns": False, "warm_on": "stream", "warm_share": 0.1}},
}
"""A variant of each kind of work: learning from recorded answers, from the draft's own, and from mixtures."""


def write_model(name: str, files: dict[str, bytes], dtype: str, device: Device, folder: Path) -> None:
    """Random weights beside a tokenizer's files. Tokens that it does not know, and the end of a text, are never the likeliest."""
    model = random_model(architecture_of(name), dtype, device)
    with torch.no_grad():
        model.head[[2, *range(VOCABULARY, model.vocab_size)]] = 0
    model.save(folder)
    for file, data in files.items():
        (folder / file).write_bytes(data)


def run_rules(target: str, draft: str, requests: int, device: Device, card: Card) -> list[list[str]]:
    """Run the rules, and compare them; the models are deleted afterwards."""
    data = {"source": "generator", "datasets": [DATASET], "extra": [], "train": requests, "eval": 32}
    methods = {
        name: {"axes": {"dataset": [DATASET]}, "fixed": {"inner": {"method": every, "seed": [0]}}}
        for name, every in METHODS.items()
    }
    settings = {
        "data": data | {"raw_rows": 2 * requests},
        "pairs": {"main": {"answers": {"device": device}}},
        "compute": {"device": device},
        "experiments": methods,
    }
    with TemporaryDirectory() as temporary:
        folder, files = Path(temporary), tokenizers()["llama"]
        write_model(target, files, "float16" if device == "cuda" else "float32", device, folder / "target")
        write_model(draft, files, "float32", device, folder / "draft")
        torch.cuda.empty_cache()
        shutil.rmtree("results/hours", ignore_errors=True)
        sizes = Path("results/hours.yaml")
        sizes.write_text(yaml.safe_dump(settings, sort_keys=False))
        config = (
            "scale=paper",
            "name=hours",
            f"sizes={sizes}",
            f"target={folder / 'target'}",
            f"draft={folder / 'draft'}",
            f"experiments={','.join(METHODS)}",
        )
        if subprocess.run(["snakemake", "--cores", "all", "--config", *config]).returncode:
            raise UserError("the rules failed: see the jobs above", remedy="repair what they name, and run again")
        return list(compared(run_of(config), card))


def compared(run: Run, card: Card) -> Iterator[list[str]]:
    """For each job that the plan models and that has run: seconds by the plan, with prompts as long as the run's own, and by the clock."""
    times, lengths = read_times([run.folder / "logs" / FILE]), dict[str, int]()
    for job in jobs(run):
        name = job.name if job.rule in STAGES else f"{job.pair}/{job.rule}s/{job.name}"
        if name not in times:
            continue
        if job.pair not in lengths:
            lengths[job.pair] = prompt_length(run, job.pair)
        if (predicted := seconds(run, job, card, lengths[job.pair])) is not None:
            yield [job.rule, job.name, f"{predicted:,.0f}", f"{times[name]:,.0f}", f"{times[name] / predicted:.2f}"]


def prompt_length(run: Run, pair: str) -> int:
    """The median length of the prompts that a pair answered, in tokens."""
    files = (run.folder / pair / "answers").glob("*/answers.jsonl")
    return round(median(len(answer.prompt_ids) for file in files for answer in read_jsonl(file, Answer)))


def main(
    run: tuple[str, ...] = (),
    gpu: Gpu = "h100",
    target: str = "vicuna-7b",
    draft: str = "llama-160m",
    requests: int = 256,
    device: Device = "cuda",
) -> None:
    """Print a row per job. ``run``: the --config of a finished run; ``target`` and ``draft``: architectures of workflow/models.csv."""
    card = GPUS[gpu]
    rows = list(compared(run_of(run), card)) if run else run_rules(target, draft, requests, device, card)
    print(benchmarks.markdown_table(["rule", "job", "predicted, s", "taken, s", "ratio"], rows), end="")


if __name__ == "__main__":
    benchmarks.run(main)
