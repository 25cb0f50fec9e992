"""Streams: the order in which requests arrive.

A stream consists of groups: datasets, or the requests of one language, topic or length. A row is a ``Prompt`` with
``meta["group"]``, ``meta["segment"]`` (the block of the stream) and ``meta["update"]`` (whether it may train the draft).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Literal

from pydantic import FiniteFloat

from draftlab.core.settings import NonNegativeInt, Settings
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Kind = Literal["concatenated", "linear", "shuffled", "two_mix", "recurring", "iid", "by_time"]
GroupBy = Literal["dataset", "language", "topic", "length"]
LENGTHS = 8
ALL = "all together"
"""The label of a table's row that pools all others; no class of requests has this name."""


class Stream(Settings):
    """The settings of a stream.

    ``concatenated``: one group after the other, an abrupt shift (OSD, Fig. 4). ``linear``: the groups' shares move in
    straight lines through ``knots`` (Fig. 11; two groups: 1 - t and t). ``shuffled``: all rows in random order (Fig. 6).
    ``two_mix``: shuffled, and only the group in ``gates`` trains the draft (Fig. 9). ``recurring``: blocks of ``period`` rows
    of each group in turn. ``iid``: each row from a group drawn with ``weights``. ``by_time``: as the requests arrived.

    ``group_by`` ``length`` divides the requests into eighths by length of text: drift within one task.
    ``groups`` picks and orders the groups (none: all, in order of appearance). Each has ``per_group`` rows (0: all) after
    ``skip`` rows that are left out. A group with fewer rows stops the run, unless ``fewer`` is set: then it stays short, or is
    left out if it is empty. ``knots`` and ``weights`` are shares in the order of the groups, the knots one after the other.
    Without knots, each group is alone in turn; of three or more, the first and the last are alone for half a turn at the ends,
    so that all groups last equally long. Without weights, the groups' sizes are used. ``gates`` are (rows so far, group):
    until this number of rows, only this group updates.
    """

    kind: Kind
    group_by: GroupBy = "dataset"
    groups: tuple[str, ...] = ()
    per_group: NonNegativeInt = 0
    fewer: bool = False
    skip: NonNegativeInt = 0
    period: int = 100
    knots: tuple[float, ...] = ()
    weights: tuple[FiniteFloat, ...] = ()
    gates: tuple[tuple[int, str], ...] = ()
    seed: int = 0

    def aside(self, count: int) -> Stream:
        """A stream of the next ``count`` rows of each group, in random order."""
        return self._of_groups("shuffled", self.skip + self.per_group, count)

    def held_out(self) -> Stream:
        """A stream of all rows of the same groups, one group after the other."""
        return self._of_groups("concatenated", 0, 0)

    def _of_groups(self, kind: Kind, skip: int, count: int) -> Stream:
        changes = {"kind": kind, "skip": skip, "per_group": count, "knots": (), "weights": (), "gates": ()}
        return self.model_copy(update=changes)


def arrange(prompts: Iterable[Prompt], stream: Stream) -> list[Prompt]:
    """The requests in the order of the stream. When a group runs out, the others take over its share."""
    import numpy as np  # here: the Snakefile imports this module and does not wait for it

    groups = _grouped(prompts, stream)
    rng = Random(f"{stream.seed}/stream")
    match stream.kind:
        case "concatenated":
            order = [(index, name) for index, name in enumerate(groups) for _ in groups[name]]
        case "recurring":
            order = list(_recurring(groups, stream.period))
        case "linear":
            count = len(groups)
            knots = _shares(groups, stream.knots or tuple(np.eye(count).ravel().tolist()))
            half_ends = not stream.knots and count > 2
            places = (np.arange(count) + 0.5) / count if half_ends else np.linspace(0, 1, len(knots))
            order = list(_draw_groups(groups, knots, places, rng))
        case "iid":
            sizes = tuple(float(len(rows)) for rows in groups.values())
            order = list(_draw_groups(groups, _shares(groups, stream.weights or sizes), np.zeros(1), rng))
        case "shuffled" | "two_mix":
            order = [(0, name) for name in groups for _ in groups[name]]
            rng.shuffle(order)
        case "by_time":
            return _by_time(groups)
    remaining = {name: iter(rows) for name, rows in groups.items()}
    gates = _gates(groups, stream)
    return [
        _mark(next(remaining[name]), name, segment, _updates(gates, position, name))
        for position, (segment, name) in enumerate(order)
    ]


def _grouped(prompts: Iterable[Prompt], stream: Stream) -> dict[str, list[Prompt]]:
    prompts = list(prompts)
    if not prompts:
        remedy = "give prompts, and answers to them if those are asked for"
        raise UserError("there are no requests to arrange", remedy=remedy)
    groups = _by_length(prompts) if stream.group_by == "length" else _by_class(prompts, stream.group_by)
    if ALL in groups:
        what = f"a {stream.group_by} is called {ALL!r}, as the row of a table that pools all others"
        raise UserError(what, remedy="give it another name in the requests")
    missing = [name for name in stream.groups if name not in groups]
    lack = f"no request has {stream.group_by} {', '.join(missing) or 'at all'}"
    if not groups:
        raise UserError(lack, remedy="classify the requests first: draftlab data classify")
    if missing and not (stream.fewer and len(missing) < len(stream.groups)):
        raise UserError(lack, remedy=f"use one of {', '.join(groups)}")
    if missing:
        print(f"{lack}: left out", flush=True)
    names = [name for name in stream.groups if name in groups] or tuple(groups)
    chosen = {name: groups[name][stream.skip :][: stream.per_group or None] for name in names}
    least = 1 if stream.fewer else max(1, stream.per_group)
    if short := [f"{name} has {len(groups[name])}" for name in names if len(chosen[name]) < least]:
        after = f" after {stream.skip} that are skipped" if stream.skip else ""
        what = f"the stream needs {least} requests of each {stream.group_by}{after}, but {', '.join(short)}"
        go_on = "lower per_group, or go on with fewer (stream: {fewer: true})"
        otherwise = "or lower skip or per_group" if stream.fewer else go_on
        raise UserError(what, remedy=f"fetch more rows (raw_rows of the scale), {otherwise}")
    return chosen


def _by_class(prompts: Iterable[Prompt], group_by: GroupBy) -> dict[str, list[Prompt]]:
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        if (name := _class(prompt, group_by)) is not None:
            groups.setdefault(name, []).append(prompt)
    return groups


def _by_length(prompts: Sequence[Prompt]) -> dict[str, list[Prompt]]:
    """Divide the requests into eighths by length of text, shortest first, each in order of arrival."""
    ranked = sorted(range(len(prompts)), key=lambda index: len(prompts[index].text))
    eighths: dict[str, list[int]] = {}
    for rank, index in enumerate(ranked):
        eighths.setdefault(f"length {rank * LENGTHS // len(prompts) + 1}", []).append(index)
    return {name: [prompts[index] for index in sorted(indices)] for name, indices in eighths.items()}


def _recurring(groups: Mapping[str, Sequence[Prompt]], period: int) -> Iterator[tuple[int, str]]:
    if period < 1:
        raise UserError(f"period is {period}", remedy="use 1 or more rows per block")
    left = {name: len(rows) for name, rows in groups.items()}
    segment = 0
    while any(left.values()):
        for name in groups:
            count = min(period, left[name])
            left[name] -= count
            yield from ((segment, name) for _ in range(count))
            segment += count > 0


def _shares(groups: Mapping[str, object], flat: Sequence[float]) -> list[Sequence[float]]:
    """Divide a flat list into shares with one value per group."""
    count = len(groups)
    shares = [flat[at : at + count] for at in range(0, len(flat), count)]
    if any(len(share) != count or min(share) < 0 or sum(share) <= 0 for share in shares):
        raise UserError(f"shares {list(flat)} for {count} groups", remedy="give each group one share of 0 or more")
    return shares


def _draw_groups(
    groups: Mapping[str, Sequence[Prompt]], knots: Sequence[Sequence[float]], places: NDArray[np.float64], rng: Random
) -> Iterator[tuple[int, str]]:
    """Draw the segment and group of every row. The shares change linearly between the knots, at ``places`` from 0 to 1."""
    import numpy as np

    names = list(groups)
    left = [len(groups[name]) for name in names]
    times = np.linspace(0, 1, sum(left))
    shares = np.stack([np.interp(times, places, column) for column in zip(*knots, strict=True)], axis=1)
    segments = np.clip(np.searchsorted(places, times, "right") - 1, 0, max(len(knots) - 2, 0))
    for segment, row_shares in zip(segments.tolist(), shares.tolist(), strict=True):
        weights = [share * (count > 0) for share, count in zip(row_shares, left, strict=True)]
        index = rng.choices(range(len(names)), weights if sum(weights) > 0 else left)[0]
        left[index] -= 1
        yield segment, names[index]


def _by_time(groups: Mapping[str, Sequence[Prompt]]) -> list[Prompt]:
    rows = [(name, prompt) for name, prompts in groups.items() for prompt in prompts]
    if any("time" not in prompt.meta for _, prompt in rows):
        raise UserError("a request has no time", remedy="use another kind of stream")
    rows.sort(key=lambda row: row[1].meta["time"])
    return [_mark(prompt, name, 0, True) for name, prompt in rows]


def _gates(groups: Mapping[str, object], stream: Stream) -> Sequence[tuple[int, str]]:
    if (stream.kind == "two_mix") != bool(stream.gates):
        raise UserError("gates belong to two_mix", remedy="give gates with two_mix, and only with it")
    unknown = [name for _, name in stream.gates if name not in groups]
    if unknown:
        raise UserError(f"a gate names {', '.join(unknown)}", remedy=f"use one of {', '.join(groups)}")
    return stream.gates


def _updates(gates: Sequence[tuple[int, str]], position: int, name: str) -> bool:
    """Whether a row may train the draft: without gates always, after the last gate never, else if its group has the next gate."""
    return not gates or next((gate == name for until, gate in gates if position < until), False)


def _mark(prompt: Prompt, group: str, segment: int, update: bool) -> Prompt:
    return replace(prompt, meta=prompt.meta | {"group": group, "segment": segment, "update": update})


def shares_over_time(prompts: Iterable[Prompt], group_by: GroupBy, slices: int) -> list[dict[str, float | str | int]]:
    """Count each class in equal slices of time (OSD, Figs. 2 and 10): rows of ``slice, group, count, total``."""
    rows = [(p.meta["time"], name) for p in prompts if "time" in p.meta and (name := _class(p, group_by)) is not None]
    if not rows:
        raise UserError(f"no request has a time and a {group_by}", remedy="use a dataset that has them: arena")
    first, last = min(rows)[0], max(rows)[0]
    width = (last - first) / slices or 1.0
    counts = Counter((min(int((time - first) / width), slices - 1), name) for time, name in rows)
    names = sorted({name for _, name in rows})
    totals = Counter(index for index, _ in counts.elements())
    return [
        {"slice": index, "group": name, "count": counts[index, name], "total": totals[index]}
        for index, name in itertools.product(range(slices), names)
    ]


def _class(prompt: Prompt, group_by: GroupBy) -> str | None:
    return prompt.dataset if group_by == "dataset" else prompt.meta.get(group_by)
