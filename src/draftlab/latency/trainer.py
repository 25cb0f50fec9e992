"""Trains a draft in another process, on another core, while this process measures; it can be paused."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from draftlab.errors import UserError
from draftlab.files.scratch import die_with_parent
from draftlab.models.cores import pin

PATIENCE = 120


@dataclass(frozen=True)
class Trainer:
    """A process that updates a copy of a draft again and again, and counts its updates."""

    draft: Path
    process: subprocess.Popen[bytes]
    counter: np.ndarray

    @property
    def steps(self) -> int:
        return int(self.counter[0])

    def run(self, running: bool) -> None:
        """Continue the process, or stop it."""
        self.process.send_signal(signal.SIGCONT if running else signal.SIGSTOP)

    def steps_during(self, work: Callable[[], None]) -> dict[str, float]:
        """The number of updates made while ``work`` runs, and how long it runs; ``UserError`` if the process has ended meanwhile."""
        begun, steps = time.perf_counter(), self.steps
        work()
        found = {"training_steps": self.steps - steps, "wall_seconds": time.perf_counter() - begun}
        self.check()
        return found

    def check(self) -> None:
        """``UserError`` if the process has ended, such as for lack of memory."""
        if self.process.poll() is not None:
            _, output = self.process.communicate()
            error = (output.decode().strip().splitlines() or [f"it ended with {self.process.returncode}"])[-1]
            what = f"the training process failed: {error}"
            raise UserError(what, file=self.draft, remedy="check the draft, and whether the memory is enough")


@contextlib.contextmanager
def training(draft: Path, batch: int, tokens: int, core: int | None = None) -> Iterator[Trainer]:
    """Run updates of a copy of ``draft`` in another process, pinned to ``core``, until the end of the block."""
    with tempfile.NamedTemporaryFile() as file:
        counter = np.memmap(file.name, dtype=np.int64, mode="w+", shape=(1,))
        options = {"draft": draft, "batch": batch, "tokens": tokens, "counter": file.name, "parent": os.getpid()}
        options |= {} if core is None else {"core": core}
        command = [sys.executable, "-m", __name__, *(f"--{name}={value}" for name, value in options.items())]
        process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)
        try:
            trainer, deadline = Trainer(draft, process, counter), time.monotonic() + PATIENCE
            while trainer.steps == 0:
                trainer.check()
                if time.monotonic() > deadline:
                    what = f"no update of the draft in {PATIENCE} s"
                    raise UserError(what, file=draft, remedy="use a smaller draft or update_batch")
                time.sleep(0.05)
            yield trainer
        finally:
            process.kill()
            process.wait()


def _train(draft: Path, batch: int, tokens: int, counter: Path, parent: int, core: int | None = None) -> None:
    """Train without end: forward and backward of the cross-entropy of random tokens, then AdamW."""
    die_with_parent(parent)
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
    tyro.cli(_train)
