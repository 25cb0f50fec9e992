"""Batches of held-out requests, one after the other. A killed job goes on after the last one that it finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from draftlab.files.atomic import atomic_path
from draftlab.progress import progress
from draftlab.stages._stage import Bench

if TYPE_CHECKING:
    import pandas as pd
    from torch import Generator

    from draftlab.engine.held_out import Request, Work


def by_batch(
    work: Work,
    bench: Bench,
    generators: Sequence[Generator],
    rows_of_batch: Callable[[int, str, Sequence[Request]], pd.DataFrame],
) -> pd.DataFrame:
    """The rows of every batch: of ``rows_of_batch(number, dataset, requests)``.

    Finished batches are kept in ``bench.parts`` with the states of the ``generators`` after them, so that a job that was killed makes the draws
    of later batches as if it had not been.
    """
    import pandas as pd
    from safetensors.torch import load_file, save_file

    def draw(number: int, dataset: str, batch: Sequence[Request]) -> pd.DataFrame:
        rows = rows_of_batch(number, dataset, batch)
        if states := bench.part(f"{number}.safetensors"):  # before the table: where that is, these are
            with atomic_path(states) as temporary:
                save_file({f"{place:04}": one.get_state() for place, one in enumerate(generators)}, temporary)
        return rows

    frames = []
    for number, (dataset, batch) in enumerate(progress(work.batches, "batches")):
        frames.append(bench.rows(str(number), partial(draw, number, dataset, batch)))
        if states := bench.part(f"{number}.safetensors"):
            for place, state in load_file(states).items():
                generators[int(place)].set_state(state)
    return pd.concat(frames, ignore_index=True)
