"""The memory that `draftlab plan` predicts beside what the same code takes here: python -m benchmarks.memory [--device cuda]

Each size runs in its own process, with random weights: small models in float32 on the CPU, the models of scale=paper on a GPU. On the CPU the
measurement is the peak of the process less what it held before; second copies of weights (`models.packed.PACKED`) are switched off, as no GPU
has them. On a GPU it is the peak of torch's allocator; the table also shows what the allocator has taken from the card, and the speed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import tyro

from draftlab.core.settings import Device
from draftlab.latency.sizes import BYTES, Sizes, architectures
from draftlab.plan.memory import beside, comparing, decoding, speculating, training

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from draftlab.engine.recording import TargetPass
    from draftlab.models.llama import Llama

EXACT = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Freed memory goes back at once, as in a GPU's allocator."""

SIZES = architectures() | {
    "tiny": Sizes(kind="llama", hidden=64, ffn=128, layers=1, heads=2, kv_heads=2, vocab=100, context=64),
    "38M": Sizes(kind="llama", hidden=512, ffn=1536, layers=4, heads=8, kv_heads=8, vocab=24000, context=1024),
    "85M": Sizes(kind="llama", hidden=768, ffn=2048, layers=6, heads=12, kv_heads=12, vocab=28000, context=1024),
    "162M": Sizes(kind="llama", hidden=768, ffn=3072, layers=12, heads=12, kv_heads=12, vocab=32000, context=2048),
}
PAPER_UPDATES = ((8, 512, 128, 8), (8, 2048, 128, 8), (32, 512, 128, 128), (32, 2048, 128, 128))
CASES: dict[str, dict[Device, list[tuple[str, tuple[int, ...]]]]] = {
    "decoding": {
        "cpu": [("38M", (32, 256, 32)), ("85M", (24, 384, 32)), ("162M", (16, 512, 32))],
        "cuda": [("vicuna-7b", (rows, prompt, 128)) for rows, prompt in ((1, 128), (32, 128), (32, 512), (32, 1920))],
    },
    "training": {
        "cpu": [("38M", (8, 192, 64, 8)), ("85M", (8, 256, 64, 16)), ("162M", (4, 256, 96, 8))],
        "cuda": [("llama-160m", how) for how in PAPER_UPDATES],
    },
    "online": {"cpu": [("38M", (8, 192, 64, 8)), ("85M", (8, 256, 64, 64)), ("162M", (4, 256, 96, 32))], "cuda": []},
    "beside a target": {"cpu": [], "cuda": [("llama-160m", (32, 2048, 128, 128))]},
    "several drafts": {
        "cpu": [("38M", (8, 256, 8, 8, 4)), ("85M", (8, 384, 8, 2, 4)), ("162M", (8, 512, 8, 4, 4))],
        "cuda": [],
    },
    "along texts": {"cpu": [("38M", (8, 256, 32)), ("162M", (8, 512, 16))], "cuda": []},
    "trees": {"cpu": [("38M", (2, 256, 16)), ("85M", (2, 256, 16))], "cuda": []},
}
"""Models and sizes by job. Decoding: requests, tokens of a prompt and of an answer. Training: requests in one forward, tokens of each, tokens of
its answer, requests of the update. Online: the same, for a draft that learns while it serves. Beside a target: the same, where the draft writes
the answers and ``TARGET`` scores them, ``AT_ONCE`` requests at a time. Several drafts: requests, tokens of a prompt and of an answer, sequences, tokens of each. Along texts and trees: as decoding.
In the last three, the model's first ``DRAFT_LAYERS`` layers draft."""
DRAFT_LAYERS = 2
NUCLEUS = {"several drafts": True, "along texts": True, "trees": False}
"""Whether tokens are sampled with top-p, by job with a draft; otherwise with top-k."""
TARGET = "vicuna-7b"
AT_ONCE = 32
UPDATES = 2  # the last one is timed


@dataclass(frozen=True)
class Measured:
    """The peak in bytes, the bytes that the allocator has taken from a card, and the seconds of all answers or of an update."""

    peak: int
    taken: int
    seconds: float


def measure(job: str, name: str, how: tuple[int, ...], device: Device) -> Measured:
    """Run one job twice, first in small, so that the memory that every process holds is not counted."""
    import torch

    from draftlab.files.machine import peak_mb
    from draftlab.models import packed, products, set_up_gpu

    small = (2, 8, 4, 2, 4)[: len(how)]
    if device == "cuda":
        set_up_gpu()
        _run("training" if job == "beside a target" else job, "tiny", small, device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        seconds = _run(job, name, how, device)
        return Measured(torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), seconds)
    packed.PACKED, products.LONGEST = {}, 0  # as on a GPU: no copies of weights, no attention that keeps its own
    torch.set_num_threads(1)
    _run(job, "tiny", small, device)
    held = peak_mb()
    seconds = _run(job, name, how, device)
    return Measured(round((peak_mb() - held) * 2**20), 0, seconds)


def print_measured(job: str, name: str, how: tuple[int, ...], device: Device) -> None:
    """Measure, and print the result for the process that started this one."""
    print(json.dumps(asdict(measure(job, name, how, device))))


def random_model(sizes: Sizes, dtype: str, device: Device) -> Llama:
    """A model with random weights, made on the device."""
    import torch

    from draftlab.latency.shapes import llama_config
    from draftlab.models.llama import Llama

    config = llama_config(sizes)
    model = Llama(config, torch.device("meta")).to(getattr(torch, dtype)).to_empty(device=device)
    for weight in model.parameters():
        torch.nn.init.ones_(weight)
    return model.initialise(torch.Generator(device).manual_seed(0))


def _run(job: str, name: str, how: tuple[int, ...], device: Device) -> float:
    """Seconds of answering, or of an update."""
    import torch

    from draftlab.core.sampling import Sampling
    from draftlab.engine.answers import Answer
    from draftlab.engine.recording import TargetPass, record
    from draftlab.models.clock import clock_of
    from draftlab.train.learning import train
    from draftlab.train.settings import Training
    from draftlab.train.sources import Scene

    clock = clock_of(device)
    if job == "decoding":
        model = random_model(SIZES[name], _dtype(device), device)
        rows, prompt, new = how
        requests = [(str(row), [3] * prompt) for row in range(rows)]
        began = clock()
        record(model, requests, max_new_tokens=new, eos_ids=(), batch_size=rows)
        return clock() - began
    if job in NUCLEUS:
        _draft(job, name, how, device)
        return 0.0
    rows, length, answer, batch = how
    answers = [Answer(str(row), [3] * (length - answer), [5] * answer, True) for row in range(batch)]
    kept = torch.full((batch * answer, 65), -4.0, dtype=torch.float16)
    ids = torch.arange(64, dtype=torch.int32).repeat(batch * answer, 1)
    seen = TargetPass(answers, Sampling(0.0), SIZES[name].vocab, kept, ids, 0)
    given = {"learning_rate": 1e-5, "batch": batch, "micro_batch": rows, "autocast": device == "cuda", "device": device}
    if job == "online":
        return _online(random_model(SIZES[name], "float32", device), seen, given, clock)
    target = random_model(SIZES[TARGET], _dtype(device), device) if job == "beside a target" else None
    scene = Scene(random_model(SIZES[name], "float32", device), seen, target, answer, (), AT_ONCE if target else None)
    times: list[float] = []
    train(
        scene,
        range(batch),
        UPDATES,
        Training.model_validate(given),
        "student" if target else "teacher",
        watch=lambda step: times.append(clock()),
    )
    return clock() - times[-1]


def _online(draft: Llama, seen: TargetPass, given: Mapping[str, object], clock: Callable[[], float]) -> float:
    """Seconds of an update of a draft that serves."""
    import numpy as np

    from draftlab.train import training
    from draftlab.train.online import Lesson, learn
    from draftlab.train.settings import Serving

    settings = Serving.model_validate({**given, "update_interval": len(seen.answers)})
    lessons = [Lesson(seen, request, np.arange(length)) for request, length in enumerate(seen.lengths)]
    optimizer = training.adamw(draft, settings.learning_rate)
    for _ in range(UPDATES):
        began = clock()
        learn(draft, optimizer, lessons, settings)
    return clock() - began


def _draft(job: str, name: str, how: tuple[int, ...], device: Device) -> None:
    """Decode with drafted sequences, or compare target and draft along texts, or search trees along them, as the stages do."""
    import torch

    from draftlab.core.sampling import Sampling
    from draftlab.core.verify import token_verifier
    from draftlab.engine.held_out import Request, Work, write_texts
    from draftlab.engine.replay_drafts import survival
    from draftlab.engine.replay_trees import confident_trees
    from draftlab.engine.speculate import speculate

    sampling = Sampling(1.0, top_p=0.95) if NUCLEUS[job] else Sampling(1.0, top_k=5)
    target = random_model(SIZES[name], _dtype(device), device)
    draft = random_model(SIZES[name].model_copy(update={"layers": DRAFT_LAYERS}), _dtype(device), device)
    generator = torch.Generator(device).manual_seed(0)
    rows, prompt, new, *drafted = how
    prompts, verifier = [[3] * prompt] * rows, token_verifier("importance_truncated")
    if job == "several drafts":
        speculate(
            target,
            draft,
            prompts,
            draft_len=drafted[1],
            max_new_tokens=new,
            eos_ids=(),
            num_drafts=drafted[0],
            verifier=verifier,
            sampling=sampling,
            generator=generator,
        )
        return
    requests = [Request(row, prompt, None) for row, prompt in enumerate(prompts)]
    texts = write_texts(Work(target, draft, None, []), requests, sampling, new, (), generator)  # type: ignore[arg-type]
    if job == "along texts":
        survival([verifier], texts, [sampling], (2,))
        return
    answers = texts.token.view(rows, new).tolist()
    confident_trees(target, prompts, answers, sampling, nodes=(16,), depth=4, width=8)


def _dtype(device: Device) -> str:
    """The type of a target's weights."""
    return "float16" if device == "cuda" else "float32"


def predicted(job: str, name: str, how: tuple[int, ...], device: Device) -> int:
    """The bytes that the plan predicts for the job."""
    sizes = SIZES[name]
    if job == "decoding":
        rows, prompt, new = how
        return decoding(sizes, _dtype(device), rows, prompt, new, device)
    if job in NUCLEUS:
        dtype, draft = _dtype(device), sizes.model_copy(update={"layers": DRAFT_LAYERS})
        if job == "several drafts":
            rows, prompt, new, drafts, draft_len = how
            peak = speculating(sizes, draft, (dtype, dtype), rows, prompt, new, drafts, draft_len, NUCLEUS[job], device)
        else:
            rows, prompt, new = how
            peak = comparing(sizes, dtype, rows, prompt, new, NUCLEUS[job], device, job == "trees")
        return draft.parameters * BYTES[dtype] + peak
    rows, length, answer, batch = how
    if job == "online":
        return training(sizes, rows, length, answer, rows, device == "cuda", in_parts=rows < batch)
    update = training(sizes, rows, length, answer, batch, device == "cuda")
    if job == "training":
        return update
    return beside(SIZES[TARGET], _dtype(device), sizes, update, AT_ONCE, length - answer, answer, device)


def main(device: Device = "cpu", jobs: tuple[str, ...] = tuple(CASES)) -> None:
    """Print the table, one row for each size and job."""
    gpu = device == "cuda"
    print("| job | model | predicted, MB | measured, MB | off by |" + (" taken, MB | speed |" if gpu else ""))
    print("|---" * (7 if gpu else 5) + "|")
    for job, name, how in [(kind, *case) for kind in CASES if kind in jobs for case in CASES[kind][device]]:
        code = f"from benchmarks.memory import print_measured; print_measured({job!r}, {name!r}, {how!r}, {device!r})"
        done = subprocess.run([sys.executable, "-c", code], env=EXACT, capture_output=True, text=True)
        if done.returncode:
            print(f"{job} {name} {how} failed", done.stderr, sep="\n", file=sys.stderr)
            continue
        measured = Measured(**json.loads(done.stdout.splitlines()[-1]))
        plan = predicted(job, name, how, device)
        off = plan / measured.peak - 1
        row = f"| {job} | {name}, {how} | {plan / 1e6:,.0f} | {measured.peak / 1e6:,.0f} | {off:+.0%} |"
        if gpu:
            decoded = job == "decoding"
            speed = f"{how[0] * how[2] / measured.seconds:,.0f} tokens/s" if decoded else f"{measured.seconds:.2f} s"
            row += f" {measured.taken / 1e6:,.0f} | {speed} |"
        print(row, flush=True)


if __name__ == "__main__":
    tyro.cli(main)
