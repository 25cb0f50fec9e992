"""What verifying several drafted branches in one call costs, compared with one branch (multi-draft)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct
from draftlab.errors import UserError
from draftlab.latency.settings import Engine
from draftlab.models.llama_branches import TEXT, Branches
from draftlab.progress import progress
from draftlab.stages._inputs import Target
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.models.llama_cpp import LlamaCpp


class Settings(Engine):
    num_drafts: Distinct[Count] = Field(min_length=1, description="numbers of branches that one call verifies")
    draft_len: int = Field(gt=0, description="tokens of each branch")
    context: int = Field(gt=0, default=128, description="tokens before the branches")
    blocks: int = Field(gt=0, description="interleaved measurements of each number of branches")


class Row:
    """One block, in which plain steps, one branch and all branches take turns."""

    num_drafts: int = column("branches that one call verifies", "branches")
    draft_len: int = column("tokens of each branch", "tokens")
    block: int = column("the block of interleaved work, from 0")
    plain_seconds: float = timing("a plain step of the target")
    one_branch_seconds: float = timing("verifying one branch")
    branches_seconds: float = timing("verifying all branches in one call")


MEASURES = {
    "branch_ratio": Measure(
        "branches_seconds",
        "one_branch_seconds",
        "seconds of verifying all branches in one call over those of one branch",
    ),
}


def run(settings: Settings, inputs: Target, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """``measure`` a target in llama.cpp."""
    from draftlab.latency.pair import describe, open_pair
    from draftlab.models.llama_cpp import LlamaCpp

    most = max(settings.num_drafts)
    context = settings.context + 1 + most * settings.draft_len
    opened = open_pair(inputs.target, settings=settings, context_length=context, sequences=most + 1, shared=True)
    with opened as (target,):
        if not isinstance(target, LlamaCpp):
            raise UserError("branches in one call need llama.cpp", remedy="set backend to llama_cpp")
        return measure(target, settings), describe(target)


def measure(target: LlamaCpp, settings: Settings) -> pd.DataFrame:
    """One row per (num_drafts, block): seconds of a plain step, of one branch, and of all branches, interleaved.

    Each is timed after ``UNTIMED`` calls of its own shape, as a server repeats them.
    """
    import numpy as np
    import pandas as pd

    from draftlab.latency.controlled import UNTIMED
    from draftlab.models.backend import argmax

    rng, clock = np.random.default_rng(settings.seed), target.clock()
    target.trim(0)
    target.prefill(rng.integers(0, target.vocab_size, settings.context).tolist())
    rows = []
    for block in progress(range(-1, settings.blocks), "blocks"):
        for drafts in rng.permutation(settings.num_drafts).tolist():
            branches = rng.integers(0, target.vocab_size, (drafts, settings.draft_len)).tolist()
            times = list[float]()
            for work in ("plain", "one", "all", "one", "plain"):
                started = 0.0
                for _ in range(UNTIMED + 1):
                    started = clock()
                    if work == "all":
                        tree = Branches(target)
                        argmax(tree.read(*side_by_side(0, branches)))
                        tree.keep()
                    else:
                        target.greedy([0] if work == "plain" else [0, *branches[0]])
                        target.trim(settings.context)
                times.append(clock() - started)
            plain, one, together, one_again, plain_again = times
            row = {
                "num_drafts": drafts,
                "draft_len": settings.draft_len,
                "block": block,
                "plain_seconds": (plain + plain_again) / 2,
                "one_branch_seconds": (one + one_again) / 2,
                "branches_seconds": together,
            }
            if block >= 0:  # the first pass warms up
                rows.append(row)
    return pd.DataFrame(rows)


def side_by_side(last: int, branches: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """The tokens of branches that share only the known token ``last``, and their parents, as ``Branches.read`` takes them."""
    parents = [TEXT]
    for branch in branches:
        parents += [0, *range(len(parents), len(parents) + len(branch) - 1)]
    return [last, *(token for branch in branches for token in branch)], parents


STAGE = stage_of(__name__, inputs=Target, exclusive=True, needs_gpu_build=True)
