"""Requests in the order in which they arrive, with what the target answered to each, and which class they belong to."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from draftlab.data.prompts import Prompt
from draftlab.engine.recording import TargetPass
from draftlab.errors import UserError


@dataclass(frozen=True)
class Traffic:
    """Recorded requests in order.

    ``group``: the class of each; ``route``: the class that a router named; ``segment``: the block of the stream that it stands in;
    ``trains``: whether a draft may learn from it; ``request``: its number, the same in every order of the same recorded passes
    (after ``in_bins`` that of the first of its bin).
    """

    answers: TargetPass
    group: list[str]
    route: list[str]
    segment: Int[np.ndarray, " requests"]
    trains: Bool[np.ndarray, " requests"]
    request: Int[np.ndarray, " requests"]

    def __len__(self) -> int:
        return len(self.group)

    def take(self, places: Sequence[int]) -> Traffic:
        """The requests at ``places``, in this order."""
        groups, routes = ([names[place] for place in places] for names in (self.group, self.route))
        rest = (values[list(places)] for values in (self.segment, self.trains, self.request))
        return Traffic(self.answers.take(places), groups, routes, *rest)

    def numbered(self, rows: pd.DataFrame, places: Sequence[int]) -> pd.DataFrame:
        """The counts of the requests at ``places`` with ``stream_index``, the place, and ``request_id``: seeds move the one, not the other.
        And with their ``group`` and ``segment``."""
        chosen = list(places)
        return rows.assign(
            stream_index=chosen,
            request_id=self.request[chosen],
            group=[self.group[place] for place in chosen],
            segment=self.segment[chosen],
        )

    def first(self, share: float, name: str = "") -> list[int]:
        """Places of the first ``share`` of each class's requests; of the class ``name`` alone if it is given."""
        classes = [name] if name else dict.fromkeys(self.group)
        own = {one: [place for place, group in enumerate(self.group) if group == one] for one in classes}
        chosen = [place for places in own.values() for place in places[: math.ceil(share * len(places))]]
        if not chosen:
            raise UserError(f"no request of class {name!r} was kept aside", remedy="set aside requests of each class")
        return sorted(chosen)

    def in_bins(self, size: int) -> Traffic:
        """The same requests; each ``size`` neighbours of one class go by the number of their first."""
        first = np.empty_like(self.request)
        for own in self._bins(size):
            first[own] = self.request[own[0]]
        return dataclasses.replace(self, request=first)

    def reordered(self, seed: int, bin_size: int = 1, in_time: bool = False) -> Traffic:
        """The same sequence of classes with each class's requests in another order; seed 0 leaves them as they are.

        At temperature 0 an online run has no other chance in it: this is what its seeds repeat. Neighbours of one bin stay together, so
        that a bin sums the same requests in every seed; ``in_time`` only they change places, and the stream's course in time stays.
        """
        if seed == 0:
            return self
        rng = np.random.default_rng(seed)
        places = np.arange(len(self))
        for _, bins in itertools.groupby(self._bins(bin_size), lambda own: self.group[own[0]]):
            own = list(bins)
            order = range(len(own)) if in_time else rng.permutation(len(own))
            places[np.concatenate(own)] = np.concatenate([rng.permutation(own[number]) for number in order])
        return dataclasses.replace(self.take(places.tolist()), segment=self.segment, trains=self.trains)

    def _bins(self, size: int) -> Iterator[Int[np.ndarray, " size"]]:
        """The places of every ``size`` consecutive requests of one class, class by class."""
        for name in dict.fromkeys(self.group):
            own = np.flatnonzero([group == name for group in self.group])
            yield from (own[start : start + size] for start in range(0, len(own), size))


def whole(answers: TargetPass, group: str) -> Traffic:
    """All recorded requests of one dataset, in their order; every one may train."""
    count = len(answers.answers)
    ones = np.ones(count, bool)
    return Traffic(answers, [group] * count, [group] * count, np.zeros(count, int), ones, np.arange(count))


def along(prompts: Sequence[Prompt], answers: TargetPass) -> Traffic:
    """The requests of a stream (``data.streams``) with their recorded answers, which number them."""
    known = {answer.id: number for number, answer in enumerate(answers.answers)}
    groups = [str(prompt.meta["group"]) for prompt in prompts]
    routes = [str(prompt.meta.get("route", group)) for prompt, group in zip(prompts, groups, strict=True)]
    segments = np.array([int(prompt.meta["segment"]) for prompt in prompts])
    trains = np.array([bool(prompt.meta["update"]) for prompt in prompts])
    numbers = np.array([known[prompt.id] for prompt in prompts], dtype=int)
    return Traffic(answers.take(numbers), groups, routes, segments, trains, numbers)


def binned(rows: pd.DataFrame, size: int) -> pd.DataFrame:
    """Sums over the requests of one bin (``Traffic.in_bins``: the same ones in every seed) that stand at ``size`` neighbouring places;
    ``record`` is the first of these places, ``requests`` how many they are."""
    if size == 1:
        return rows
    keys = [key for key in ("split", "after", "group", "segment") if key in rows]
    rows = rows.assign(stream_index=rows["stream_index"] // size * size, requests=1)
    return rows.groupby([*keys, "stream_index", "request_id"], sort=False).sum().reset_index()
