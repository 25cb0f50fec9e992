"""A calibrated cost model: the measured costs of a draft step and of verifying n tokens.

OSD's Eq. 1 assumes that a verification costs one target step. This is wrong on a CPU, and on any device at large batches. With the measured
cost v, the speed-up is E[tokens] / (k c + v(k+1)), at the given context length and batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from draftlab.core.sampling_numpy import GREEDY
from draftlab.engine.loop import Timed, steps
from draftlab.latency.controlled import UNTIMED
from draftlab.latency.lookup import SURE, LookupBackend
from draftlab.latency.loop import RequestPair, fixed, start
from draftlab.models.backend import LatencyBackend
from draftlab.progress import progress

COUNTED = 2
"""Blocks in a row whose time counts, after ``UNTIMED`` in which the engine changes the shape of its calls."""
PLAIN, SETTLED = 12, 4
"""Plain steps in a row, and how many are not counted: over the first few, the target's weights return to the processor's caches."""


@dataclass(frozen=True)
class CostModel:
    """Costs in target steps, at one context length and batch size.

    ``cost_ratio`` is the cost of a draft step (c), ``verify_ratios[n]`` that of verifying n tokens in one call (v).
    """

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
    parallel: bool = False,
) -> pd.DataFrame:
    """One row per (context, batch, block, verified): seconds of a verification, of a draft step, and of a plain step before and after them.

    They run one right after the other, in the order of a server: plain steps in a row, then blocks of draft steps and a verification. The plain
    steps after one probe are those before the next. The order of the probes is shuffled in every block.

    At batch 1 there are two more times: ``caught_up_seconds`` of a draft step in a block whose first call reads two tokens, as after a
    block that was accepted whole, and ``turns_seconds`` of a plain step and a verification in turns, where each call changes the shape.

    A ``parallel`` draft makes one call for a whole block; a draft step is then an equal share of it.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for context in contexts:
        for batch in batches:
            target.fill(batch, context)
            draft.fill(batch, context)
            for size in verified:  # an engine prepares for a size at its first call
                target.probe(size)
            after = _plain_step(target)
            for block in progress(range(blocks), f"blocks, context {context}, batch {batch}"):
                for verify in rng.permutation(verified).tolist():
                    before = after
                    times, after = _block_seconds(target, draft, verify, batch, parallel), _plain_step(target)
                    cell = {"context": context, "batch": batch, "block": block, "verified": verify}
                    rows.append(cell | {"plain_before_seconds": before, **times, "plain_after_seconds": after})
    return pd.DataFrame(rows)


def _block_seconds(
    target: LatencyBackend, draft: LatencyBackend, verify: int, batch: int, parallel: bool
) -> dict[str, float]:
    """The times of ``calibrate`` for blocks of ``verify - 1`` draft steps and a verification."""
    steps = verify - 1

    def per_step(first: int) -> tuple[float, float]:
        """Seconds of a draft step in blocks whose first call reads ``first`` tokens of the text, and of the verification."""
        if parallel:
            calls = [(draft, first + steps - 1, 1)]
        else:
            calls = [(draft, 1, steps)] if first == 1 else [(draft, first, 1), (draft, 1, steps - 1)]
        *drafts, verifies = _in_a_row(*calls, (target, verify, 1))
        return sum(each * repeats for each, (*_, repeats) in zip(drafts, calls, strict=True)) / steps, verifies

    drafts, verifies = per_step(1)
    caught_up = turns = np.nan
    if batch == 1:
        caught_up, _ = per_step(2)
        turns = sum(_in_a_row((target, 1, 1), (target, verify, 1)))
    return {
        "verify_seconds": verifies,
        "draft_seconds": drafts,
        "caught_up_seconds": caught_up,
        "turns_seconds": turns,
    }


def around_calls(target: LatencyBackend, context: int, seed: int = 0) -> dict[str, float]:
    """Seconds per block outside the models: ``loop_seconds`` of the loop, and ``lookup_seconds`` of prompt lookup.

    The target answers a prompt of ``context`` random tokens with as many, which must fit its context.
    """
    prompt = np.random.default_rng(seed).integers(0, target.vocab_size, context).tolist()
    clock = target.clock()
    for _ in range(2):  # the first time warms up
        draft = LookupBackend(target)
        text = start([target, draft], prompt, context)
        pair = RequestPair(target, draft, text, fixed(1), GREEDY, np.random.default_rng(seed), SURE)
        timed, started = Timed(pair, clock), clock()
        blocks = sum(1 for _ in steps(timed, 1, context, ()))
        seconds = clock() - started
    lookup = sum(drafted - begun for begun, drafted, *_ in timed.laps)
    reading = sum(read - drafted for _, drafted, read, *_ in timed.laps)
    return {"loop_seconds": (seconds - lookup - reading) / blocks, "lookup_seconds": lookup / blocks}


def cost_model(rows: pd.DataFrame, in_turns: bool = False) -> CostModel:
    """Medians over the blocks of rows of one context length and batch size.

    With ``in_turns``, a verification costs what it does in turns with a plain step, where the engine changes the shape of its calls each time.
    """
    plain = (rows["plain_before_seconds"] + rows["plain_after_seconds"]) / 2
    verify = rows["turns_seconds"] - plain if in_turns else rows["verify_seconds"]
    ratios = (verify / plain).groupby(rows["verified"]).median()
    return CostModel(
        cost_ratio=float((rows["draft_seconds"] / plain).median()),
        verify_ratios={int(str(n)): float(ratio) for n, ratio in ratios.items()},
    )


def _plain_step(target: LatencyBackend) -> float:
    """The mean seconds of a step of plain decoding, without the first ``SETTLED``."""
    _timed(target, 1, SETTLED)
    return _timed(target, 1, PLAIN - SETTLED)


def _in_a_row(*calls: tuple[LatencyBackend, int, int]) -> list[float]:
    """The mean seconds of each of the ``calls`` of ``_timed``, over the repeats that count."""
    times = [[_timed(*call) for call in calls] for _ in range(UNTIMED + COUNTED)]
    return [float(mean) for mean in np.mean(times[UNTIMED:], axis=0)]


def _timed(backend: LatencyBackend, tokens: int, steps: int) -> float:
    """The seconds per call, over ``steps`` calls in a row."""
    clock = backend.clock()
    started = clock()
    for _ in range(steps):
        backend.probe(tokens)
    return (clock() - started) / max(steps, 1)
