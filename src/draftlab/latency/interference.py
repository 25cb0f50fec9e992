"""Serving while a draft trains on another core: what online distillation costs the requests being served.

The paper updates the draft beside the server and measures neither's effect on the other. Here a second process runs the
draft's own updates; it is stopped and continued around the same speculative blocks, so that both phases see one machine.

Seconds are CPU time of the serving thread, which has a core to itself: what training costs it through caches, memory and a
sibling hardware thread is in them, what third processes take is not.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from draftlab.errors import UserError
from draftlab.latency.alpha import PROMPT, measure_block
from draftlab.latency.controlled import record, schedule
from draftlab.latency.pair import describe, open_pair
from draftlab.models.backend import LatencyBackend
from draftlab.models.cores import can_pin, pin, pinned

if TYPE_CHECKING:
    from draftlab.stages.latency_interference import Settings as LatencyInterference

PATIENCE = 120
IDLE_SECONDS = 0.3


class Trainer:
    """A process that updates a copy of a draft, over and over; it only counts its steps."""

    def __init__(self, process: subprocess.Popen[bytes], counter: np.ndarray) -> None:
        self.process, self.counter = process, counter

    @property
    def steps(self) -> int:
        return int(self.counter[0])

    def run(self, running: bool) -> None:
        """Continue the process, or stop it."""
        self.process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)


def latency_interference(
    settings: LatencyInterference, target: Path, draft: Path
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """``measure_interference`` with llama.cpp on one core and the training process on another."""
    if not draft.is_dir():
        raise UserError("the draft is no folder", file=draft, remedy="give the draft's folder: it is to be trained")
    longest = max(settings.draft_len)
    context = PROMPT + settings.rounds * (longest + 1) + 2 * longest
    opened = open_pair(target, draft, settings=settings, context_length=context)
    with pinned(1) as others, opened as (big, small):
        if not others:
            raise UserError("no second core to train on", remedy="let the process use two cores")
        spare = others[-1] if can_pin() else None
        with training(draft, settings.update_batch, settings.update_tokens, spare) as trainer:
            rows = measure_interference(big, small, trainer, settings)
        return rows, describe(big, small) | {"training_core": spare}


def measure_interference(
    target: LatencyBackend, draft: LatencyBackend, trainer: Trainer, settings: LatencyInterference
) -> pd.DataFrame:
    """One row per (phase, alpha, draft_len, block), the columns of ``measure_alpha`` and ``training_steps`` in ``wall_seconds``.

    The phases alternate as alone, training, training, alone; ``idle_`` columns count updates while nothing is served.
    """
    rng, longest = np.random.default_rng(settings.seed), max(settings.draft_len)
    prompt = rng.integers(0, target.vocab_size, PROMPT).tolist()
    text = record(target, prompt, settings.rounds * (longest + 1) + longest)
    cells = [(alpha, draft_len) for draft_len in settings.draft_len for alpha in settings.alpha]
    plans = {
        cell: schedule(*cell, 2 * settings.blocks * settings.rounds, rng).reshape(-1, 2, settings.rounds)
        for cell in cells
    }
    measure_block(target, draft, text, [longest] * settings.rounds, longest)  # warm-up
    rows: list[dict[str, Any]] = []
    for block in range(settings.blocks):
        trainer.run(True)
        idle = _progress(trainer, lambda: time.sleep(IDLE_SECONDS))
        served = []
        for half, phase in enumerate(("alone", "training", "training", "alone")):
            trainer.run(phase == "training")
            for alpha, draft_len in cells:
                plan = plans[alpha, draft_len][block][half % 2].tolist()
                row = {"phase": phase, "alpha": alpha, "draft_len": draft_len, "block": block}
                spent = _progress(trainer, lambda: row.update(measure_block(target, draft, text, plan, draft_len)))  # noqa: B023
                served.append(row | spent)
        rows += [row | {f"idle_{name}": value for name, value in idle.items()} for row in served]
    return pd.DataFrame(rows)


def _progress(trainer: Trainer, work: Callable[[], None]) -> dict[str, float]:
    """Updates that the training process made while ``work`` ran, and for how long that was."""
    begun, steps = time.perf_counter(), trainer.steps
    work()
    return {"training_steps": trainer.steps - steps, "wall_seconds": time.perf_counter() - begun}


@contextlib.contextmanager
def training(draft: Path, batch: int, tokens: int, core: int | None = None) -> Iterator[Trainer]:
    """Run updates of a copy of ``draft`` in another process, pinned to ``core``; it ends with the block."""
    with tempfile.NamedTemporaryFile() as file:
        counter = np.memmap(file.name, dtype=np.int64, mode="w+", shape=(1,))
        arguments = ["--draft", draft, "--batch", batch, "--tokens", tokens, "--counter", file.name]
        arguments += [] if core is None else ["--core", core]
        process = subprocess.Popen(
            [sys.executable, "-m", __name__, *map(str, arguments)],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
        )
        try:
            deadline = time.monotonic() + PATIENCE
            while counter[0] == 0:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    error = (process.communicate()[1].decode().strip().splitlines() or ["no message"])[-1]
                    raise UserError(f"the training process does not run: {error}", file=draft, remedy="check the draft")
                time.sleep(0.05)
            yield Trainer(process, counter)
        finally:
            process.kill()
            process.wait()


def _train(draft: Path, batch: int, tokens: int, counter: Path, core: int | None) -> None:
    """Update forever: forward and backward of cross-entropy on random tokens, AdamW; the work of a real update."""
    if core is not None:
        pin([core])
    import torch

    from draftlab.models import load_model

    torch.set_num_threads(1)
    model = load_model(draft)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    steps = np.memmap(counter, dtype=np.int64, mode="r+", shape=(1,))
    while True:
        text = torch.randint(model.vocab_size, (batch, tokens), generator=generator).tolist()
        logits = model.answer_logits([row[:1] for row in text], [row[1:] for row in text])
        labels = torch.tensor([token for row in text for token in row[1:]])
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(logits, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        steps[0] += 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, kind in {"draft": Path, "batch": int, "tokens": int, "counter": Path, "core": int}.items():
        parser.add_argument(f"--{name}", type=kind)
    _train(**vars(parser.parse_args()))
