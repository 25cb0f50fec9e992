"""The memory that `draftlab plan` predicts beside what the same code takes here: python -m benchmarks.memory

Each size runs in a process of its own, with random weights in float32, on the CPU: what a process holds at most, less what it held before. The
CPU's second copies of weights (`models.llama.PACKED`) are switched off, as no GPU has them.
"""

from __future__ import annotations

import os
import subprocess
import sys

from draftlab.latency.sizes import Sizes
from draftlab.plan.memory import decoding, training

EXACT = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""What is freed goes back at once, as in a GPU's own allocator."""

SIZES = {
    "38M": Sizes(kind="llama", hidden=512, ffn=1536, layers=4, heads=8, kv_heads=8, vocab=24000, context=1024),
    "85M": Sizes(kind="llama", hidden=768, ffn=2048, layers=6, heads=12, kv_heads=12, vocab=28000, context=1024),
    "162M": Sizes(kind="llama", hidden=768, ffn=3072, layers=12, heads=12, kv_heads=12, vocab=32000, context=2048),
}
DECODING = {"38M": (32, 256, 32), "85M": (24, 384, 32), "162M": (16, 512, 32)}
"""Requests, tokens of a prompt and of an answer."""
TRAINING = {"38M": (8, 192, 64, 8), "85M": (8, 256, 64, 16), "162M": (4, 256, 96, 8)}
"""Requests in one forward, tokens of each, tokens of its answer, requests of the update."""


def measure(job: str, name: str) -> int:
    """Bytes that a job takes at most."""
    import torch

    from draftlab.core.sampling import Sampling
    from draftlab.engine.answers import Answer
    from draftlab.engine.recording import TargetPass, record
    from draftlab.files.machine import peak_mb
    from draftlab.models import llama
    from draftlab.train.learning import train
    from draftlab.train.settings import Training
    from draftlab.train.sources import Scene

    llama.PACKED = (0, 0)
    torch.set_num_threads(1)

    def made(sizes: Sizes) -> llama.Llama:
        config = llama.LlamaConfig(
            sizes.vocab, sizes.hidden, sizes.ffn, sizes.layers, sizes.heads, sizes.kv_heads, sizes.context,
            tie_word_embeddings=sizes.tied,
        )  # fmt: skip
        return llama.Llama(config).initialise(torch.Generator().manual_seed(0))

    def run(sizes: Sizes, job: str, *how: int) -> None:
        model = made(sizes)
        if job == "decoding":
            rows, prompt, new = how
            requests = [(str(row), [3] * prompt) for row in range(rows)]
            record(model, requests, max_new_tokens=new, eos_ids=(), batch_size=rows)
            return
        rows, length, answer, batch = how
        answers = [Answer(str(row), [3] * (length - answer), [5] * answer, True) for row in range(batch)]
        kept = torch.full((batch * answer, 65), -4.0, dtype=torch.float16)
        ids = torch.arange(64, dtype=torch.int32).repeat(batch * answer, 1)
        seen = TargetPass(answers, Sampling(0.0), sizes.vocab, kept, ids, 0)
        chosen = Training.model_validate({"learning_rate": 1e-5, "batch": batch, "micro_batch": rows})
        train(Scene(model, None, seen, answer, ()), range(batch), 2, chosen)

    small = Sizes(kind="llama", hidden=64, ffn=128, layers=1, heads=2, kv_heads=2, vocab=100, context=64)
    run(small, job, *((2, 8, 4) if job == "decoding" else (2, 8, 4, 2)))
    before = peak_mb()
    run(SIZES[name], job, *(DECODING if job == "decoding" else TRAINING)[name])
    return round((peak_mb() - before) * 2**20)


def main() -> None:
    """Print the table, one row for each size and job."""
    print("| job | model | predicted, MB | measured, MB | off by |\n|---|---|---|---|---|")
    for job, jobs in (("decoding", DECODING), ("training", TRAINING)):
        for name, how in jobs.items():
            sizes = SIZES[name]
            predicted = decoding(sizes, "float32", *how) if job == "decoding" else training(sizes, *how)
            code = f"from benchmarks.memory import measure; print(measure({job!r}, {name!r}))"
            found = subprocess.run([sys.executable, "-c", code], env=EXACT, capture_output=True, text=True, check=True)
            measured = int(found.stdout.split()[-1])
            off = predicted / measured - 1
            print(
                f"| {job} | {name}, {how} | {predicted / 1e6:,.0f} | {measured / 1e6:,.0f} | {off:+.0%} |", flush=True
            )


if __name__ == "__main__":
    main()
