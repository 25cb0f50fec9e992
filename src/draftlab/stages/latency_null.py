"""A contender compared with itself, many times: the smallest difference that a comparison reveals, and how often it names a winner although there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.latency.settings import Engine
from draftlab.progress import progress
from draftlab.stages._inputs import Target
from draftlab.stages._stage import Bench, Facts, column, columns_of, stage_of, timing

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.models.backend import LatencyBackend

PROMPT = 64
COMPARED = (3, 5, 10, 20, 40)


class Settings(Engine):
    repeats: int = Field(gt=0, description="how often the pairs are measured, one set after the other")
    pairs: int = Field(gt=1, description="pairs of measurements in a set; a pair is A B B A of the same steps")
    steps: int = Field(gt=0, description="plain steps of the target in each of the four parts of a pair")


class Row:
    """One pair of equal contenders, in the order A B B A."""

    repeat: int = column("the comparison, from 0")
    pair: int = column("the pair of measurements in it, from 0")
    a_seconds: float = timing("the plain steps labelled A")
    b_seconds: float = timing("the same steps, labelled B")


class Derived:
    """Comparisons of several pairs. Each pair takes part in one comparison of each size."""

    compared: int = column("pairs in a comparison")
    block: int = column("the comparison")
    visible: float = column("the smallest difference that the comparison reveals", "%", timed=True)
    winner: float = column(
        "whether the comparison of its pairs names a winner, though the two are the same", timed=True
    )


MEASURES = {
    "noise": Measure("a_seconds", "b_seconds", "seconds of the first of two equal contenders over those of the second"),
    "visible": Measure("visible", None, "smallest difference that a comparison reveals", "%"),
    "winner": Measure("winner", None, "share of comparisons that name a winner"),
}


def run(settings: Settings, inputs: Target, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """``measure`` a target on the chosen engine."""
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
    for repeat in progress(range(settings.repeats), "repeats"):
        for pair in range(settings.pairs):
            a, b, b_again, a_again = (plain_steps(target, text, PROMPT, settings.steps) for _ in range(4))
            rows.append({"repeat": repeat, "pair": pair, "a_seconds": a + a_again, "b_seconds": b + b_again})
    return pd.DataFrame(rows)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """The pairs in the order of their measurement, once for each size of a comparison (``COMPARED``).

    A comparison reveals a difference if 1 is outside the interval of its ratio. The smallest such difference is half the interval's width.
    A size has at least two comparisons. Pairs that are left over are dropped. Columns that no ``Row`` declares are axes of an experiment:
    the pairs of each of their values are compared apart.
    """
    import pandas as pd

    from draftlab.latency.comparison import compare

    if axes := [str(name) for name in rows if name not in columns_of(Row)]:
        cells = (cell for _, cell in rows.groupby(axes, observed=True, dropna=False, sort=False))
        apart = (derive(cell[[*columns_of(Row)]]).assign(**cell[axes].iloc[0]) for cell in cells)
        return pd.concat(apart, ignore_index=True)
    rows = rows.sort_values(["repeat", "pair"], ignore_index=True)
    sizes = [size for size in COMPARED if 2 * size <= len(rows)] or [len(rows)]
    parts = []
    for size in sizes:
        for block in range(len(rows) // size):
            pairs = rows.iloc[block * size : (block + 1) * size]
            ratio = compare(pairs["a_seconds"], pairs["b_seconds"])
            visible = 100 * ((ratio.high / ratio.low) ** 0.5 - 1)
            parts.append(pairs.assign(compared=size, block=block, visible=visible, winner=float(ratio.differs)))
    return pd.concat(parts, ignore_index=True)


STAGE = stage_of(__name__, inputs=Target, exclusive=True, needs_gpu_build=True)
