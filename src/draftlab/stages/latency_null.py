"""The same contender against itself, many times: how often a comparison sees a winner where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import Target, locate_target, reads_pair
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(Engine):
    """The same contender against itself, many times: how often the comparison sees a winner where there is none."""

    repeats: int = Field(gt=0)
    pairs: int = Field(gt=1)
    steps: int = Field(gt=0)


class Row:
    """One row of the table."""

    repeat: int = column("")
    pair: int = column("")
    a_seconds: float = timing("")
    b_seconds: float = timing("")


MEASURES = {
    "noise": Measure("a_seconds", "b_seconds", "seconds of the first of two equal contenders over those of the second"),
    "winner": Measure("winner", None, "share of comparisons that name a winner"),
}


def run(settings: Settings, inputs: Target, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.latency.noise import latency_null

    return latency_null(settings, inputs.target)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """A repeat is a block of pairs of equal measurements; ``winner``: whether its pairs, compared, name one of the two, which are the same."""

    from draftlab.latency.comparison import compare

    named = {repeat: compare(own["a_seconds"], own["b_seconds"]).differs for repeat, own in rows.groupby("repeat")}
    winner = rows["repeat"].map(named).astype(float)
    return rows.assign(block=rows["repeat"], winner=winner, measured="the same plain steps, twice")


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Target,
    locate=locate_target,
    reads=reads_pair,
    derive=derive,
    exclusive=True,
    needs_gpu_build=True,
)
