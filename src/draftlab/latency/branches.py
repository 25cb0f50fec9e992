"""Verifying K drafted branches in one call of llama.cpp, and what it costs against one branch (multi-draft)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float32

from draftlab.errors import UserError
from draftlab.latency.pair import describe, open_pair
from draftlab.models.llama_cpp import LlamaCpp

if TYPE_CHECKING:
    from draftlab.stages.latency_branches import Settings as LatencyBranches


def verify_branches(
    model: LlamaCpp, last: int, branches: Sequence[Sequence[int]]
) -> Float32[np.ndarray, "drafts tokens vocab"]:
    """Logits after ``last`` and after each token of each branch, from one call: branches share the cache and the root.

    Follow it with ``adopt(1 + index, [last, *accepted])`` to keep the start of one branch. Needs a shared cache
    with ``len(branches) + 1`` sequences; branches are equally long.
    """
    start, width = len(model.tokens), len(branches[0])
    members = range(1, len(branches) + 1)
    for member in members:
        model.branch(member)
    tokens = [last, *(token for branch in branches for token in branch)]
    positions = [start, *(start + 1 + index for _ in branches for index in range(width))]
    sequences = [tuple(members), *((member,) for member in members for _ in range(width))]
    logits = model.decode(tokens, positions, sequences)
    own = logits[1:].reshape(len(branches), width, -1)
    root = np.broadcast_to(logits[0], (len(branches), 1, logits.shape[-1]))
    return np.concatenate([root, own], axis=1)


def latency_branches(settings: LatencyBranches, target: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """One row per (num_drafts, block): seconds of a plain step, of one branch, and of all branches, interleaved."""
    most = max(settings.num_drafts)
    context = settings.context + 1 + most * settings.draft_len
    with open_pair(target, settings=settings, context_length=context, sequences=most + 1, shared=True) as (model,):
        if not isinstance(model, LlamaCpp):
            raise UserError("branches in one call need llama.cpp", remedy="set backend to llama_cpp")
        return measure_branches(model, settings), describe(model)


def measure_branches(model: LlamaCpp, settings: LatencyBranches) -> pd.DataFrame:
    """The rows of ``latency_branches`` for an open model."""
    rng, clock = np.random.default_rng(settings.seed), model.clock()
    model.trim(0)
    model.prefill(rng.integers(0, model.vocab_size, settings.context).tolist())
    rows = []
    for block in range(-1, settings.blocks):
        for drafts in rng.permutation(settings.num_drafts).tolist():
            branches = rng.integers(0, model.vocab_size, (drafts, settings.draft_len)).tolist()
            times = [clock()]
            for work in ("plain", "one", "all", "one", "plain"):
                if work == "all":
                    verify_branches(model, 0, branches).argmax(axis=-1)
                    model.adopt(1, [])
                else:
                    model.greedy([0] if work == "plain" else [0, *branches[0]])
                    model.trim(settings.context)
                times.append(clock())
            plain, one, every, one_again, plain_again = np.diff(times).tolist()
            row = {
                "num_drafts": drafts,
                "draft_len": settings.draft_len,
                "block": block,
                "plain_seconds": (plain + plain_again) / 2,
                "one_branch_seconds": (one + one_again) / 2,
                "branches_seconds": every,
            }
            if block >= 0:  # the first pass warms up
                rows.append(row)
    return pd.DataFrame(rows)
