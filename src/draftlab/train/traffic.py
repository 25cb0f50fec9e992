"""Recorded requests in the order in which they arrive, with their classes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
from jaxtyping import Bool, Int

from draftlab.data.prompts import Prompt
from draftlab.engine.recording import TargetPass
from draftlab.errors import UserError


@dataclass(frozen=True)
class Traffic:
    """Recorded requests in order.

    Of each request: ``group``, its class; ``route``, the class that a router chose; ``segment``, its block of the stream; ``trains``,
    whether a draft may learn from it; ``request``, its number, the same in every order of the recorded passes (after ``in_bins`` the number
    of the first request in its bin).
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
        """Add to the counts of the requests at ``places`` their ``stream_index`` (the place, which depends on the seed), ``request_id``,
        ``group`` and ``segment``."""
        chosen = list(places)
        return rows.assign(
            stream_index=chosen,
            request_id=self.request[chosen],
            group=[self.group[place] for place in chosen],
            segment=self.segment[chosen],
        )

    def first(self, share: float, name: str = "") -> list[int]:
        """Places of the first ``share`` of each class's requests, or of the class ``name`` alone."""
        chosen: list[int] = []
        for group in [name] if name else dict.fromkeys(self.group):
            places = self._places(group).tolist()
            chosen += places[: part_of(len(places), share)]
        if not chosen:
            raise UserError(f"no request of class {name!r} was kept aside", remedy="set aside requests of each class")
        return sorted(chosen)

    def in_bins(self, size: int) -> Traffic:
        """The same requests, where each ``size`` neighbours of one class have the number of the first of them."""
        first = np.empty_like(self.request)
        for group in dict.fromkeys(self.group):
            for places in self._bins(size, group):
                first[places] = self.request[places[0]]
        return dataclasses.replace(self, request=first)

    def reordered(self, seed: int, bin_size: int = 1, in_time: bool = False) -> Traffic:
        """The same sequence of classes with each class's requests in another order; seed 0 keeps the order.

        At temperature 0 the order is the only thing that the seeds of an online run change. Neighbours of one bin stay together, so that a
        bin sums the same requests in every seed. With ``in_time``, requests change places only within their bin, and the stream keeps its
        course in time.
        """
        if seed == 0:
            return self
        rng = np.random.default_rng(seed)
        order = np.arange(len(self))
        for group in dict.fromkeys(self.group):
            bins = list(self._bins(bin_size, group))
            numbers = range(len(bins)) if in_time else rng.permutation(len(bins))
            order[np.concatenate(bins)] = np.concatenate([rng.permutation(bins[number]) for number in numbers])
        return dataclasses.replace(self.take(order.tolist()), segment=self.segment, trains=self.trains)

    def _places(self, group: str) -> Int[np.ndarray, " places"]:
        """The places of the requests of a class."""
        return np.flatnonzero([one == group for one in self.group])

    def _bins(self, size: int, group: str) -> Iterator[Int[np.ndarray, " size"]]:
        """The places of every ``size`` consecutive requests of a class."""
        places = self._places(group)
        return (places[start : start + size] for start in range(0, len(places), size))


def part_of(count: int, share: float) -> int:
    """The number of requests in this share of ``count``, rounded up; the share is the decimal number as written, because 0.07 * 100 > 7.

    >>> part_of(100, 0.07)
    7
    """
    return math.ceil(Fraction(str(share)) * count)


def whole(answers: TargetPass, group: str) -> Traffic:
    """All recorded requests of one dataset, in their order; a draft may learn from each."""
    count = len(answers.answers)
    groups, segments, trains = [group] * count, np.zeros(count, int), np.ones(count, bool)
    return Traffic(answers, groups, groups, segments, trains, np.arange(count))


def along(prompts: Sequence[Prompt], answers: TargetPass) -> Traffic:
    """The requests of a stream (``data.streams``), with the numbers of their recorded answers."""
    number_of = {answer.id: number for number, answer in enumerate(answers.answers)}
    groups = [str(prompt.meta["group"]) for prompt in prompts]
    routes = [str(prompt.meta.get("route", group)) for prompt, group in zip(prompts, groups, strict=True)]
    segments = np.array([int(prompt.meta["segment"]) for prompt in prompts])
    trains = np.array([bool(prompt.meta["update"]) for prompt in prompts])
    numbers = np.array([number_of[prompt.id] for prompt in prompts], dtype=int)
    return Traffic(answers.take(numbers), groups, routes, segments, trains, numbers)


def binned(rows: pd.DataFrame, size: int) -> pd.DataFrame:
    """Sums over requests of one bin (``Traffic.in_bins``) at ``size`` neighbouring places, the same requests in every seed.

    ``stream_index`` becomes the first of these places; ``requests`` is the number of requests.
    """
    if size == 1:
        return rows
    keys = [key for key in ("split", "after", "group", "segment") if key in rows]
    rows = rows.assign(stream_index=rows["stream_index"] // size * size, requests=1)
    return rows.groupby([*keys, "stream_index", "request_id"], sort=False).sum().reset_index()
