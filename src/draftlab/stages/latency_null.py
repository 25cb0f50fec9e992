"""A contender compared with itself, many times: how often the comparison names a winner although there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import Target
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.models.backend import LatencyBackend

PROMPT = 64


class Settings(Engine):
    repeats: int = Field(gt=0)
    pairs: int = Field(gt=1)
    steps: int = Field(gt=0)


class Row:
    """One pair of equal contenders, in the order A B B A."""

    repeat: int = column("the comparison, from 0")
    pair: int = column("the pair of measurements in it, from 0")
    a_seconds: float = timing("the plain steps labelled A")
    b_seconds: float = timing("the same steps, labelled B")


class Derived:
    """What a comparison says of a repeat."""

    block: int = column("the comparison")
    winner: float = column(
        "whether the comparison of its pairs names a winner, though the two are the same", timed=True
    )
    measured: str = column("what was measured, in words")


MEASURES = {
    "noise": Measure("a_seconds", "b_seconds", "seconds of the first of two equal contenders over those of the second"),
    "winner": Measure("winner", None, "share of comparisons that name a winner"),
}


def run(settings: Settings, inputs: Target, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """``measure`` a target on the engine that is asked for."""
    from draftlab.latency.pair import describe, open_pair

    with open_pair(inputs.target, settings=settings, context_length=PROMPT + settings.steps) as (target,):
        return measure(target, settings), describe(target)


def measure(target: LatencyBackend, settings: Settings) -> pd.DataFrame:
    """One row per (repeat, pair): seconds of plain steps called A and of the same steps called B, in the order A B B A."""
    import numpy as np
    import pandas as pd

    from draftlab.latency.controlled import plain_steps

    text = np.random.default_rng(settings.seed).integers(0, target.vocab_size, PROMPT + settings.steps).tolist()
    plain_steps(target, text, PROMPT, settings.steps)
    rows = []
    for repeat in range(settings.repeats):
        for pair in range(settings.pairs):
            a, b, b_again, a_again = (plain_steps(target, text, PROMPT, settings.steps) for _ in range(4))
            rows.append({"repeat": repeat, "pair": pair, "a_seconds": a + a_again, "b_seconds": b + b_again})
    return pd.DataFrame(rows)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """A repeat is a block of pairs; ``winner`` says whether they, compared, name one of the two."""
    from draftlab.latency.comparison import compare

    named = {repeat: compare(own["a_seconds"], own["b_seconds"]).differs for repeat, own in rows.groupby("repeat")}
    winner = rows["repeat"].map(named).astype(float)
    return rows.assign(block=rows["repeat"], winner=winner, measured="the same plain steps, twice")


STAGE = stage_of(__name__, inputs=Target, exclusive=True, needs_gpu_build=True)
