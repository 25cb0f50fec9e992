"""The same requests by every contender on one engine: no speculation, and speculation with each draft (OSD, Table 3)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from draftlab.engine.answers import Answer
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.latency.cost import calibrate, cost_model
from draftlab.latency.loop import DraftLength, Generation, adaptive, decode, fixed, speculate
from draftlab.latency.pair import describe, open_pair
from draftlab.models.backend import LatencyBackend

if TYPE_CHECKING:
    from draftlab.stages.latency_requests import Settings as LatencyRequests

PLAIN, AGAIN = "none", "none_again"
"""No speculation, twice: what differs between the two is noise."""

LONGEST = 10
CALIBRATION_BLOCKS = 5
CALIBRATION_CONTEXT = 64


def latency_requests(
    settings: LatencyRequests, target: Path, drafts: Mapping[str, Path], answers: Path
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Decode the first requests of ``answers`` with every contender in llama.cpp, and describe the run."""
    taken = {PLAIN, AGAIN, *(f"{name}_adaptive" for name in drafts if settings.adaptive)}
    if clash := sorted(taken & set(drafts)):
        raise UserError(f"a draft is named {clash[0]!r}, as a contender of its own is", remedy="give it another name")
    requests = list(itertools.islice(read_jsonl(answers, Answer), settings.requests))
    if not requests:
        raise UserError("no requests", file=answers, remedy="record answers first")
    longest = max(len(request.prompt_ids) for request in requests) + settings.max_new_tokens
    context = max(longest, CALIBRATION_CONTEXT) + LONGEST
    with open_pair(target, *drafts.values(), settings=settings, context_length=context) as (big, *small):
        contenders: dict[str, tuple[LatencyBackend, DraftLength]] = {}
        for name, draft in zip(drafts, small, strict=True):
            contenders[name] = draft, fixed(settings.draft_len)
            if settings.adaptive:
                contenders[f"{name}_adaptive"] = draft, calibrated_length(big, draft)
        rows = measure_requests(big, contenders, requests, settings)
        return rows.assign(**settings.model_dump(include={"dataset", "draft_len", "temperature"})), describe(
            big, *small
        )


def calibrated_length(target: LatencyBackend, draft: LatencyBackend) -> DraftLength:
    """A draft length that follows the acceptance, from a short calibration of this pair."""
    model = cost_model(calibrate(target, draft, [CALIBRATION_CONTEXT], [1], range(2, LONGEST + 1), CALIBRATION_BLOCKS))
    return adaptive(model.cost_ratio, model.by_draft_len)


def measure_requests(
    target: LatencyBackend,
    contenders: Mapping[str, tuple[LatencyBackend, DraftLength]],
    requests: Sequence[Answer],
    settings: LatencyRequests,
) -> pd.DataFrame:
    """One row per request and contender; a prompt is computed once, outside the measured time.

    A request has as many new tokens as its recorded answer, so that all contenders do the same work; ``same_text`` says
    whether they wrote the same, as they must at temperature 0. The contenders take turns, in reversed order for every other request.
    """

    def run(name: str, number: int, prompt: list[int], length: int) -> Generation:
        rng = np.random.default_rng([settings.seed, number])
        if name in (PLAIN, AGAIN):
            return decode(target, prompt, length, temperature=settings.temperature, rng=rng)
        draft, draft_len = contenders[name]
        return speculate(target, draft, prompt, length, draft_len, temperature=settings.temperature, rng=rng)

    names = [PLAIN, *contenders, AGAIN]
    rows = []
    for number, request in enumerate([requests[0], *requests]):  # the first request once more, as warm-up
        length = min(len(request.answer_ids), settings.max_new_tokens)
        found = {name: run(name, number, request.prompt_ids, length) for name in names[:: 1 if number % 2 else -1]}
        for name, written in found.items():
            row = {
                "request": request.id,
                "contender": name,
                "tokens": len(written.tokens),
                "seconds": written.seconds,
                "blocks": len(written.blocks),
                "drafted": sum(block.drafted for block in written.blocks),
                "visited": sum(min(block.accepted + 1, block.drafted) for block in written.blocks),
                "accepted": sum(block.accepted for block in written.blocks),
                "draft_seconds": sum(block.draft_seconds for block in written.blocks),
                "verify_seconds": sum(block.verify_seconds for block in written.blocks),
                "same_text": written.tokens == found[PLAIN].tokens,
            }
            if number:
                rows.append(row)
    return pd.DataFrame(rows)
