"""Tokens per second of the three engines that record answers, by the number of requests at a time.

    llama-server -m MODEL.gguf -c 16384 -np 32 -t 1 -tb 1 --port 8000 &
    python -m benchmarks.server --target MODEL.gguf --prompts prompts.jsonl --url http://127.0.0.1:8000/v1 --process $!

With ``--process``, of a server on this machine, also per second of its CPU time, which varies less on a busy machine.
"""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import psutil
import tyro

from draftlab.engine import answering
from draftlab.engine.settings import Answers
from draftlab.files.scratch import scratch


def main(
    target: Path, prompts: Path, url: str, process: int | None = None, requests: int = 32, max_new_tokens: int = 16
) -> None:
    """Print a line for each engine and number of requests at a time; each gets other prompts, because a server remembers prompts."""
    server, lines = psutil.Process(process or None), prompts.read_text(encoding="utf-8").splitlines(keepends=True)
    cases = list(itertools.product(("openai", "llama_cpp", "transformers"), (1, 8, 32)))
    if len(lines) < requests * len(cases):
        sys.exit(f"{prompts} has {len(lines)} prompts: give {requests * len(cases)}, or lower --requests")
    print(
        "| engine | at a time | tokens read | tokens written | seconds | written/s | written per CPU second |\n|---|---|---|---|---|---|---|"
    )
    for number, (engine, at_once) in enumerate(cases):
        values = {"engine": engine, "url": url if engine == "openai" else "", "batch": at_once, "template": "own"}
        settings = Answers.model_validate(values | {"max_new_tokens": max_new_tokens, "keep": 64, "dtype": "fast"})
        measured = server if engine == "openai" else psutil.Process()
        with scratch() as folder:
            file = folder / "prompts.jsonl"
            file.write_text("".join(lines[number :: len(cases)][:requests]), encoding="utf-8")
            wall, cpu = time.perf_counter(), sum(measured.cpu_times()[:2])
            recorded, _ = answering.answer(target, file, requests, settings)
            wall, cpu = time.perf_counter() - wall, sum(measured.cpu_times()[:2]) - cpu
        read, tokens = sum(len(answer.prompt_ids) for answer in recorded.answers), sum(recorded.lengths)
        speeds = [f"{wall:.1f}", f"{tokens / wall:.1f}", f"{tokens / cpu:.1f}" if cpu else "-"]
        print("| " + " | ".join(map(str, [engine, at_once, read, tokens, *speeds])) + " |", flush=True)


if __name__ == "__main__":
    tyro.cli(main)
