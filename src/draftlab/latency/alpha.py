"""Tables 2 and 7 of OSD: time per token at a set acceptance, speculative and plain interleaved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Int

from draftlab.latency.controlled import plain_steps, record, replay, schedule
from draftlab.latency.loop import resume
from draftlab.latency.pair import describe, open_pair
from draftlab.latency.summary import summarise
from draftlab.models.backend import LatencyBackend

if TYPE_CHECKING:
    from draftlab.stages.latency_alpha import Settings as LatencyAlpha

PROMPT = 64
BASELINE_STEPS = 4  # on each side of a block
VERIFY_PROBES = 2
DRAFT_PROBES = 6
ATTEMPTS = 3


def latency_alpha(settings: LatencyAlpha, target: Path, draft: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Measure every cell of ``settings`` with llama.cpp: the rows of ``measure_alpha``, with the target's ``weights``, and the run's description."""
    longest = max(settings.draft_len)
    context = PROMPT + settings.rounds * (longest + 1) + 2 * longest
    with open_pair(target, draft, settings=settings, context_length=context) as (big, small):
        run = describe(big, small)
        return measure_alpha(big, small, settings).assign(weights=run["target"]["weights"]), run


def measure_alpha(target: LatencyBackend, draft: LatencyBackend, settings: LatencyAlpha) -> pd.DataFrame:
    """One row per (alpha, draft_len, block): sums of seconds and steps of contenders that ran within the same moment.

    A block runs plain steps, ``rounds`` speculative blocks, probes of one verification and of draft steps, and plain steps
    again; ratios are taken inside a block, so a machine that slows down for a second slows all of them. The cells' blocks
    are interleaved. A cell whose block ratios scatter (IQR over ``summary.QUIET``) is measured again, at most ``ATTEMPTS`` times.
    """
    rng = np.random.default_rng(settings.seed)
    longest = max(settings.draft_len)
    prompt = rng.integers(0, target.vocab_size, PROMPT).tolist()
    text = record(target, prompt, settings.rounds * (longest + 1) + longest)
    cells = [(alpha, draft_len) for draft_len in settings.draft_len for alpha in settings.alpha]
    # One plan for every attempt: what is done does not depend on how long it took.
    plans = {
        cell: schedule(*cell, settings.blocks * settings.rounds, rng).reshape(settings.blocks, -1) for cell in cells
    }
    measured: dict[tuple[float, int], pd.DataFrame] = {}
    measure_block(target, draft, text, [longest] * settings.rounds, longest)  # warm-up
    for attempt in range(ATTEMPTS):
        rows = pd.DataFrame(_cells(target, draft, text, {cell: plans[cell] for cell in cells}, rng)).assign(
            attempt=attempt
        )
        loud = summarise(rows).query("not quiet")
        measured |= {cell: rows[(rows["alpha"] == cell[0]) & (rows["draft_len"] == cell[1])] for cell in cells}
        cells = list(zip(loud["alpha"].tolist(), loud["draft_len"].tolist(), strict=True))
        if not cells:
            break
    return pd.concat(measured.values(), ignore_index=True)


def _cells(
    target: LatencyBackend,
    draft: LatencyBackend,
    text: list[int],
    plans: dict[tuple[float, int], Int[np.ndarray, "blocks rounds"]],
    rng: np.random.Generator,
) -> Iterator[dict[str, Any]]:
    """Blocks of every cell of ``plans``, the cells in a new order each time."""
    cells = list(plans)
    for block in range(len(plans[cells[0]])):
        for index in rng.permutation(len(cells)):
            alpha, draft_len = cells[index]
            plan = plans[alpha, draft_len][block].tolist()
            yield {"alpha": alpha, "draft_len": draft_len, "block": block} | measure_block(
                target, draft, text, plan, draft_len
            )


def measure_block(
    target: LatencyBackend, draft: LatencyBackend, text: list[int], plan: list[int], draft_len: int
) -> dict[str, float]:
    """Seconds and steps of one block: plain steps, the speculative blocks of ``plan``, probes, plain steps."""
    clock = target.clock()
    last = text[PROMPT - 1]
    verified = text[PROMPT - 1 : PROMPT + draft_len]
    before = plain_steps(target, text, PROMPT, BASELINE_STEPS)
    resume(target, text[: PROMPT - 1])
    resume(draft, text[: PROMPT - 1])
    run = replay(target, draft, text, PROMPT, plan, draft_len)
    verify_seconds = 0.0
    for _ in range(VERIFY_PROBES):
        target.trim(PROMPT - 1)
        started = clock()
        target.greedy(verified)
        verify_seconds += clock() - started
    draft.trim(PROMPT - 1)
    started = clock()
    for _ in range(DRAFT_PROBES):
        draft.greedy([last])
    draft_seconds = clock() - started
    after = plain_steps(target, text, PROMPT, BASELINE_STEPS)
    return {
        "plain_before_seconds": before,
        "plain_after_seconds": after,
        "plain_steps": 2 * BASELINE_STEPS,
        **{name: value for name, value in asdict(run).items() if name != "blocks"},
        "rounds": run.blocks,
        "verify_probe_seconds": verify_seconds,
        "verify_probes": VERIFY_PROBES,
        "draft_probe_seconds": draft_seconds,
        "draft_probes": DRAFT_PROBES,
    }
