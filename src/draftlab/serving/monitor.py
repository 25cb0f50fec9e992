"""``draftlab monitor``: whether the acceptance in production is still what the verdict promised."""

from __future__ import annotations

import math
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tyro
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftlab.core.stats import ENOUGH
from draftlab.errors import UserError
from draftlab.files.json_files import read_object
from draftlab.serving import records
from draftlab.serving.records import Seen

WINDOW = 100
"""Requests that are judged together; two windows in a row below the promise make a draft stale."""
BLOCKS = 1000
"""Blocks below which counters that name no requests say nothing."""
STALE = 3
"""The exit code of a stale draft."""
Z = 1.96

Length = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class Promise(BaseModel):
    """The acceptance length (tokens per step of the target, its own included) that a verdict promises at a draft length."""

    model_config = ConfigDict(frozen=True)
    draft_len: Annotated[int, Field(ge=1)]
    low: Length
    high: Length


def read_promise(file: Path) -> Promise:
    """``{"draft_len": k, "acceptance_length": {"low": ..., "high": ...}}`` in a verdict's JSON, at its top or under ``monitor``."""
    found = read_object(file)
    inside = found.get("monitor", found)
    if inside is None:
        raise UserError(
            "the verdict was not yes, so it promises nothing", file=file, remedy="give one that recommends a draft"
        )
    length = inside.get("acceptance_length", {}) if isinstance(inside, dict) else {}
    try:
        promise = Promise(draft_len=inside["draft_len"], low=length["low"], high=length["high"])
    except (ValidationError, KeyError, TypeError) as error:
        what = error.errors()[0]["msg"] if isinstance(error, ValidationError) else f"no {error}"
        raise UserError(
            f"no promise in it: {what}",
            file=file,
            remedy='it needs "draft_len" and "acceptance_length" with "low", "high"',
        ) from None
    if promise.low > promise.high:
        raise UserError("the promise's low is above its high", file=file, remedy="run draftlab verdict again")
    return promise


@dataclass
class Sums:
    """A ratio of sums over requests that arrive one by one, and its interval: five numbers, however many requests."""

    requests: float = 0.0
    blocks: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    squares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    single: Seen | None = None

    def add(self, seen: Seen) -> None:
        self.requests += 1
        self.blocks += seen.drafts
        self.drafted += seen.drafted
        self.accepted += seen.accepted
        for i, product in enumerate((seen.accepted**2, seen.accepted * seen.drafts, seen.drafts**2)):
            self.squares[i] += product
        self.single = seen

    @property
    def counters(self) -> bool:
        """Whether one row holds the sums of many requests."""
        return self.requests == 1 and self.single is not None and self.single.requests != 1

    @property
    def known(self) -> bool:
        if self.counters and self.single is not None:
            count = self.single.requests
            return self.blocks >= BLOCKS and (math.isnan(count) or count >= ENOUGH)
        return self.requests >= ENOUGH and self.blocks > 0

    def length(self) -> tuple[float, float, float]:
        """``1 + accepted / blocks``, and its 95 % interval: by requests ``sum (a - r b)^2``; of mere counters, blocks count as independent."""
        rate = self.accepted / self.blocks
        if self.counters and self.single is not None:
            spread = math.sqrt(_block_variance(self.single) / self.blocks)
        else:
            n = self.requests
            left = self.squares[0] - 2 * rate * self.squares[1] + rate**2 * self.squares[2]
            spread = math.sqrt(max(left, 0.0) * n / max(n - 1, 1)) / self.blocks
        return 1 + rate, 1 + rate - Z * spread, 1 + rate + Z * spread


def _block_variance(seen: Seen) -> float:
    """The variance of a block's accepted tokens: from the histogram, or else the largest possible for its mean and draft length."""
    mean = seen.accepted / seen.drafts
    if seen.histogram is not None and sum(seen.histogram) > 0:
        total = sum(seen.histogram)
        return sum(count * (i - mean) ** 2 for i, count in enumerate(seen.histogram)) / total
    longest = seen.drafted / seen.drafts if seen.drafted > 0 else mean * 2 + 1
    return max(mean * (longest - mean), 0.0)


@dataclass(frozen=True)
class Report:
    """What was seen: ``state`` is ``as promised``, ``better``, ``falling`` (one window below), ``stale`` or ``not yet known``; ``since`` counts
    requests."""

    state: str
    text: str
    since: int | None = None


def judge(rows: Iterable[Seen | None], promise: Promise) -> Report:
    """Judge records in their order of arrival, in constant memory."""
    everything, window, below = Sums(), Sums(), 0
    silent, start, since, last = 0, 1, None, Sums()
    for seen in rows:
        if seen is None or not seen.drafts > 0:
            silent += 1
            continue
        everything.add(seen)
        window.add(seen)
        if window.requests == WINDOW:
            fell = window.length()[2] < promise.low
            if fell and not below:
                since = start
            below = below + 1 if fell else 0
            last, window, start = window, Sums(), int(everything.requests) + 1
    left_out = f"; {silent} rows without speculation left out" if silent else ""
    if not everything.known:
        return Report(
            "not yet known",
            f"not yet known: {everything.requests:g} requests with {everything.blocks:g} blocks "
            f"({ENOUGH} requests are needed, or {BLOCKS} blocks of counters){left_out}",
        )
    drafted = everything.drafted / everything.blocks
    if drafted > promise.draft_len * 1.05 or drafted < promise.draft_len * 0.75:
        raise UserError(
            f"production drafts {drafted:.2f} tokens a block, but the verdict is for {promise.draft_len}",
            remedy="serve with the verdict's length, or ask for a verdict at this length",
        )
    windows = everything.requests >= 2 * WINDOW
    middle, low, high = (last if windows else everything).length()
    seen_text = f"{middle:.2f} tokens a step [{low:.2f}, {high:.2f}], promised {promise.low:.2f} to {promise.high:.2f}"
    where = f" (the last {WINDOW} of {everything.requests:g} requests)" if windows else ""
    if (windows and below >= 2) or (not windows and high < promise.low):
        when = f" since request {since}" if windows else ""
        return Report("stale", f"stale{when}: {seen_text}{where}{left_out}", since if windows else 1)
    state = "better" if low > promise.high else "falling" if high < promise.low else "as promised"
    return Report(state, f"{state}: {seen_text}{where}{left_out}")


def watch(source: str, seconds: float) -> Iterator[Seen | None]:
    """The records of a file, or of a server's /metrics: since its start, or over ``seconds`` from now."""
    if not source.startswith(("http://", "https://")):
        yield from records.read(Path(source))
        return
    first = next(records.from_prometheus(_fetch(source), source))
    if not seconds:
        yield first
        return
    time.sleep(seconds)
    yield difference(first, next(records.from_prometheus(_fetch(source), source)), source)


def difference(before: Seen, after: Seen, source: str) -> Seen:
    """What was counted between two moments; a counter that fell means that the server was restarted."""
    if after.drafts < before.drafts:
        raise UserError("the counters fell: the server was restarted", file=source, remedy="run again")
    counts = None
    if before.histogram is not None and after.histogram is not None and len(before.histogram) == len(after.histogram):
        counts = tuple(b - a for a, b in zip(before.histogram, after.histogram, strict=True))
    return Seen(
        after.engine,
        after.drafts - before.drafts,
        after.drafted - before.drafted,
        after.accepted - before.accepted,
        after.requests - before.requests,
        counts,
    )


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            found: Any = answer.read(50_000_000)
            return str(found.decode("utf-8", "replace"))
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise UserError(
            f"no answer: {error}", file=url, remedy="check the address, it usually ends in /metrics"
        ) from None


def monitor(source: tyro.conf.Positional[str], *, verdict: Path, over: float = 0.0) -> None:
    """Check that the acceptance in SOURCE still matches the verdict; exit code 3 if not.

    SOURCE is a file or URL with an engine's records or Prometheus text. OVER: at a URL, count from now on for this many seconds; 0: since the
    server's start.
    """
    report = judge(watch(source, over), read_promise(verdict))
    print(report.text)
    if report.state == "stale":
        sys.exit(STALE)
