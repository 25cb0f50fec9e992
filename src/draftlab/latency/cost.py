"""A calibrated cost model: the cost of a draft step and of verifying n tokens, and the speed-up that follows.

OSD's Eq. 1 assumes that a verification costs one target step. This is wrong on a CPU, and for large batches anywhere. Here the predicted
speed-up is E[tokens] / (k c + v(k+1)) with the measured v, at the given context length and batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftlab.engine.loop import Timed, steps
from draftlab.latency.lookup import SURE, Lookup
from draftlab.latency.loop import Alone
from draftlab.models.backend import LatencyBackend
from draftlab.progress import progress

REPEATS = 3
"""Blocks in a row, whose first is left out: there the engine changes the shape of its calls."""
PLAIN, SETTLED = 12, 4
"""Plain steps in a row, and how many of them are left out: the caches fill with the target's weights again over the first few."""


@dataclass(frozen=True)
class CostModel:
    """Times over one target step, measured at one context length and batch size.

    ``cost_ratio`` is a draft step's (c), ``verify_ratios[n]`` that of verifying n tokens in one call (v).
    """

    step_seconds: float
    cost_ratio: float
    verify_ratios: dict[int, float]

    def verify(self, tokens: int) -> float:
        """v(tokens), interpolated linearly between measured lengths."""
        known = {1: 1.0} | self.verify_ratios
        return float(np.interp(tokens, sorted(known), [known[n] for n in sorted(known)]))

    @property
    def by_draft_len(self) -> dict[int, float]:
        """Draft length k -> v(k+1)."""
        return {n - 1: ratio for n, ratio in self.verify_ratios.items() if n > 1}


def calibrate(
    target: LatencyBackend,
    draft: LatencyBackend,
    contexts: Iterable[int],
    batches: Sequence[int],
    verified: Sequence[int],
    blocks: int,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per (context, batch, block, verified): seconds of verifying, of a draft step, and of a plain step before and after them, taken
    within the same moment and as a server takes them: plain steps in a row, and blocks of draft steps and a verification in a row. The plain
    steps after one probe are those before the next.

    At batch 1 two more: a draft step of a block whose first call reads two tokens, as after a block that was accepted whole
    (``caught_up_seconds``), and a plain step and a verification in turns, where every call has another shape than the one before
    (``turns_seconds``). The order of the probes is shuffled in every block.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for context in contexts:
        for batch in batches:
            target.fill(batch, context)
            draft.fill(batch, context)
            for size in verified:  # the engine makes room for a call's size when it sees it for the first time
                target.probe(size)
            after = _plain_step(target)
            for block in progress(range(blocks), f"blocks, context {context}, batch {batch}"):
                for verify in rng.permutation(verified).tolist():
                    before = after
                    drafts, verifies = _in_a_row((draft, 1, verify - 1), (target, verify, 1))
                    caught_up = turns = np.nan
                    if batch == 1:
                        first, others, _ = _in_a_row((draft, 2, 1), (draft, 1, verify - 2), (target, verify, 1))
                        caught_up = (first + (verify - 2) * others) / (verify - 1)
                        turns = sum(_in_a_row((target, 1, 1), (target, verify, 1)))
                    after = _plain_step(target)
                    row = {
                        "context": context,
                        "batch": batch,
                        "block": block,
                        "verified": verify,
                        "plain_before_seconds": before,
                        "verify_seconds": verifies,
                        "draft_seconds": drafts,
                        "caught_up_seconds": caught_up,
                        "turns_seconds": turns,
                        "plain_after_seconds": after,
                    }
                    rows.append(row)
    return pd.DataFrame(rows)


def around_calls(target: LatencyBackend, context: int, seed: int = 0) -> dict[str, float]:
    """Seconds of a block in which no model runs: ``loop_seconds`` of the loop, ``lookup_seconds`` of finding tokens in the text so far.

    From a few blocks with prompt lookup on random tokens, which the target answers; they need room for ``2 * context`` tokens.
    """
    prompt = np.random.default_rng(seed).integers(0, target.vocab_size, context).tolist()
    clock = target.clock()
    for _ in range(2):  # the first time warms up
        pair = Alone(target, Lookup(target), prompt, context, lambda: 1, temperature=0, rng=None, least=SURE)
        timed, started = Timed(pair, clock), clock()
        blocks = sum(1 for _ in steps(timed, 1, context, ()))
        seconds = clock() - started
    finding = sum(drafted - begun for begun, drafted, *_ in timed.laps)
    reading = sum(read - drafted for _, drafted, read, *_ in timed.laps)
    return {"loop_seconds": (seconds - finding - reading) / blocks, "lookup_seconds": finding / blocks}


def cost_model(rows: pd.DataFrame) -> CostModel:
    """Medians over the blocks of rows of one context length and batch size."""
    plain = (rows["plain_before_seconds"] + rows["plain_after_seconds"]) / 2
    ratios = (rows["verify_seconds"] / plain).groupby(rows["verified"]).median()
    return CostModel(
        step_seconds=float(plain.median()),
        cost_ratio=float((rows["draft_seconds"] / plain).median()),
        verify_ratios={int(str(n)): float(ratio) for n, ratio in ratios.items()},
    )


def _plain_step(target: LatencyBackend) -> float:
    """The mean seconds of a step of plain decoding, once it has settled."""
    _timed(target, 1, SETTLED)
    return _timed(target, 1, PLAIN - SETTLED)


def _in_a_row(*calls: tuple[LatencyBackend, int, int]) -> list[float]:
    """The mean seconds of each of ``_timed``'s calls, over all repeats except the first."""
    times = [[_timed(*call) for call in calls] for _ in range(REPEATS)]
    return [float(mean) for mean in np.mean(times[1:], axis=0)]


def _timed(backend: LatencyBackend, tokens: int, steps: int) -> float:
    """The seconds per call, over ``steps`` calls in a row."""
    clock = backend.clock()
    started = clock()
    for _ in range(steps):
        backend.probe(tokens)
    return (clock() - started) / max(steps, 1)
