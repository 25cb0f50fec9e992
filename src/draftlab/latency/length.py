"""Speed-up at a set acceptance against the length of the answer (OSD, Table 8)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from draftlab.core.theory import expected_block_length
from draftlab.errors import UserError
from draftlab.latency.controlled import plain_steps, replay, schedule
from draftlab.latency.loop import resume
from draftlab.latency.pair import describe, open_pair
from draftlab.models.backend import LatencyBackend

if TYPE_CHECKING:
    from draftlab.stages.latency_length import Settings as LatencyLength

STEPS = 4


def latency_length(settings: LatencyLength, target: Path, draft: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """``measure_length`` of a pair in llama.cpp, and the run's description."""
    room = settings.rounds * (settings.draft_len + 1) + settings.draft_len
    context = settings.prefix + max(settings.length) + room
    with open_pair(target, draft, settings=settings, context_length=context) as (big, small):
        return measure_length(big, small, settings), describe(big, small)


def measure_length(target: LatencyBackend, draft: LatencyBackend, settings: LatencyLength) -> pd.DataFrame:
    """One row per (alpha, segment, block): the cost of plain and of speculative tokens in the middle of a segment.

    The lengths cut the answer into segments; cost grows about linearly with the context, so a segment is measured at its
    middle instead of decoding all of it. The text is random: what is decoded does not change what it costs.
    """
    ends = sorted(settings.length)
    if len(set(ends)) < len(ends) or ends[0] < 1:
        raise UserError(f"length is {settings.length}", remedy="give different lengths of at least 1")
    rng = np.random.default_rng(settings.seed)
    text = rng.integers(0, target.vocab_size, min(target.context_length, draft.context_length)).tolist()
    rows = []
    for begin, end in itertools.pairwise([0, *ends]):
        middle = settings.prefix + (begin + end) // 2
        total = (settings.blocks + 1) * settings.rounds
        plans = {a: schedule(a, settings.draft_len, total, rng).reshape(-1, settings.rounds) for a in settings.alpha}
        for block in range(-1, settings.blocks):
            for alpha in rng.permutation(settings.alpha).tolist():
                # What is decoded lies around the middle, as long as it is: a long run would measure a longer context.
                advance = settings.rounds * expected_block_length(alpha, settings.draft_len)
                start = max(1, middle - round(advance / 2))
                before = plain_steps(target, text, middle, STEPS)
                resume(target, text[: start - 1])
                resume(draft, text[: start - 1])
                run = replay(target, draft, text, start, plans[alpha][block], settings.draft_len)
                row = {
                    "alpha": alpha,
                    "draft_len": settings.draft_len,
                    "begin": begin,
                    "end": end,
                    "block": block,
                    "plain_before_seconds": before,
                    "plain_after_seconds": plain_steps(target, text, middle, STEPS),
                    "plain_steps": 2 * STEPS,
                    "seconds": run.seconds,
                    "rounds": run.blocks,
                }
                if block >= 0:  # the first pass warms up
                    rows.append(row)
    return pd.DataFrame(rows)
