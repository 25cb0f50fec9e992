"""Tokens per second that a server answers with, by how many requests are under way at a time, and llama.cpp in process beside it.

    llama-server -m MODEL.gguf -c 16384 -np 32 -t 1 -tb 1 --port 8000 &
    python -m benchmarks.server --target MODEL.gguf --prompts prompts.jsonl --url http://127.0.0.1:8000/v1 --process $!

With ``--process``, of a server on this machine, also per second of its CPU time, which a busy machine changes less.
"""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import tyro

from draftlab.engine import recording
from draftlab.engine.settings import Answers


def main(
    target: Path, prompts: Path, url: str, process: int | None = None, requests: int = 32, max_new_tokens: int = 16
) -> None:
    """Print a line for each number of requests at a time."""
    server = psutil.Process(process or None)
    print("| engine | at a time | tokens | seconds | tokens/s | tokens per CPU second |\n|---|---|---|---|---|---|")
    for engine, together in (("openai", 1), ("openai", 8), ("openai", 32), ("llama_cpp", 1), ("llama_cpp", 32)):
        asked = {"engine": engine, "url": url if engine == "openai" else "", "batch": together, "template": "own"}
        settings = Answers.model_validate(asked | {"max_new_tokens": max_new_tokens, "keep": 64})
        who = server if engine == "openai" else psutil.Process()
        wall, cpu = time.perf_counter(), sum(who.cpu_times()[:2])
        found, _ = recording.answer(target, prompts, requests, settings)
        wall, cpu = time.perf_counter() - wall, sum(who.cpu_times()[:2]) - cpu
        tokens = sum(found.lengths)
        cells = [engine, together, tokens, f"{wall:.1f}", f"{tokens / wall:.1f}", f"{tokens / cpu:.1f}" if cpu else "-"]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
