"""``draftlab monitor``: whether the acceptance in production is still what the verdict promised."""

from __future__ import annotations

import http.client
import math
import sys
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from draftlab.core.stats import ENOUGH
from draftlab.errors import UserError
from draftlab.files.json_files import read_object
from draftlab.serving import prometheus, records
from draftlab.serving.counts import SpeculationCounts
from draftlab.serving.verdict_format import SEARCHES, Range

WINDOW = 100
"""Requests in a window; a draft is stale if the last window and the one before it are below the promise."""
BLOCKS = 1000
"""The fewest blocks for a judgement of counters that name no requests."""
STALE = 3
"""The exit code of a stale draft."""
YEAR = 366 * 24 * 3600
"""The most seconds between two readings of a server's counters; the system cannot wait for all numbers of seconds."""
Z = 1.96

Length = Annotated[float, Field(ge=1, allow_inf_nan=False)]


class Bounds(BaseModel):
    """The 95 % interval of a length."""

    model_config = ConfigDict(frozen=True)
    low: Length
    high: Length


class Promise(BaseModel):
    """The acceptance length (tokens per block with drafted tokens, the target's token included) that a verdict promises at a draft length.

    The bounds were measured on so many ``requests`` (0: unknown); those ``by_length`` are at the lengths that it has for other batches. Where there
    is a ``threshold``, a block may draft fewer tokens or none; so it may in the options that search texts.
    """

    model_config = ConfigDict(frozen=True)
    draft_len: Annotated[int, Field(ge=1)]
    acceptance_length: Bounds
    requests: Annotated[int, Field(ge=0)] = 0
    option: str = ""
    threshold: Annotated[float, Field(ge=0, lt=1)] = 0.0
    by_length: dict[Annotated[int, Field(ge=1)], Bounds] = {}

    @property
    def known(self) -> dict[int, Bounds]:
        """The bounds by draft length, the shortest first."""
        return dict(sorted((self.by_length | {self.draft_len: self.acceptance_length}).items()))

    def at(self, drafted: float) -> Bounds:
        """The bounds for blocks of ``known`` lengths, of ``drafted`` tokens on average (NaN, where the engine does not say: the promised length).

        Each further token adds less. So with the same mean, blocks accept most if their lengths are alike, and least if they are the shortest and
        the longest.
        """
        if math.isnan(drafted):
            return self.acceptance_length
        lengths, bounds = list(self.known), self.known.values()
        lows, highs = [each.low for each in bounds], [each.high for each in bounds]
        low = min(np.interp(drafted, lengths, lows), np.interp(drafted, [lengths[0], lengths[-1]], [lows[0], lows[-1]]))
        return Bounds(low=float(low), high=float(np.interp(drafted, lengths, highs)))


def read_promise(file: Path) -> Promise:
    """``{"draft_len": k, "acceptance_length": {"low": ..., "high": ...}}`` in a verdict's JSON, at its top or under ``monitor``."""
    verdict = read_object(file)
    inside = verdict.get("monitor", verdict)
    if inside is None:
        raise UserError(
            "the verdict recommends no draft, so it promises nothing",
            file=file,
            remedy="give one that recommends a draft",
        )
    try:
        promise = Promise.model_validate(inside)
    except ValidationError as error:
        raise UserError(
            f"no promise in it: {error.errors()[0]['msg']}",
            file=file,
            remedy='give the verdict.json of draftlab verdict; it has "draft_len" and "acceptance_length" with "low", "high"',
        ) from None
    if any(bounds.low > bounds.high for bounds in promise.known.values()):
        raise UserError("the promise's low is above its high", file=file, remedy="run draftlab verdict again")
    return promise


@dataclass
class Sums:
    """A ratio of sums over records that arrive one by one, and its interval, in constant memory."""

    records: int = 0
    requests: float = 0.0
    blocks: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    squares: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    within: float = 0.0

    def add(self, counts: SpeculationCounts) -> None:
        self.records += 1
        self.requests += counts.requests
        self.blocks += counts.drafts
        self.drafted += counts.drafted
        self.accepted += counts.accepted
        for i, product in enumerate((counts.accepted**2, counts.accepted * counts.drafts, counts.drafts**2)):
            self.squares[i] += product
        self.within += counts.drafts * _block_variance(counts)

    @property
    def few_totals(self) -> bool:
        """Whether these are few records that sum up many requests each, as a server's counters do (NaN: it does not say how many)."""
        return self.records < ENOUGH and self.requests != self.records

    @property
    def known(self) -> bool:
        if self.few_totals:
            return self.blocks >= BLOCKS and not self.requests < ENOUGH
        return self.records >= ENOUGH and self.blocks > 0

    @property
    def drafted_per_block(self) -> float:
        """Tokens drafted for a block, on average; NaN if the engine does not say."""
        return self.drafted / self.blocks

    def is_below(self, promise: Promise) -> bool:
        """Whether the whole interval of the length is below the promise."""
        return self.length(promise).high < promise.at(self.drafted_per_block).low

    def length(self, promise: Promise | None = None) -> Range:
        """``1 + accepted / blocks``, and its 95 % interval: over records from ``sum (a - r b)^2``; few totals count blocks as independent.

        Blocks of one request are alike, so the interval of few totals is at least as wide as the ``promise`` would be over so many requests.
        """
        rate = self.accepted / self.blocks
        if self.few_totals:
            spread = math.sqrt(self.within) / self.blocks
            if promise is not None and self.requests > 0:  # NaN is not
                width = promise.acceptance_length.high - promise.acceptance_length.low
                spread = max(spread, width / (2 * Z) * math.sqrt(promise.requests / self.requests))
        else:
            n = self.records
            residual = self.squares[0] - 2 * rate * self.squares[1] + rate**2 * self.squares[2]
            spread = math.sqrt(max(residual, 0.0) * n / max(n - 1, 1)) / self.blocks
        return Range(estimate=1 + rate, low=1 + rate - Z * spread, high=1 + rate + Z * spread)


def _block_variance(counts: SpeculationCounts) -> float:
    """The variance of a block's accepted tokens: from the histogram, or else the largest possible for its mean and draft length."""
    mean = counts.accepted / counts.drafts
    if counts.histogram is not None and sum(counts.histogram) > 0:
        return sum(n * (i - mean) ** 2 for i, n in enumerate(counts.histogram)) / sum(counts.histogram)
    longest = counts.drafted / counts.drafts if counts.drafted > 0 else mean * 2 + 1
    return max(mean * (longest - mean), 0.0)


@dataclass(frozen=True)
class Status:
    """``state`` is ``as promised``, ``better``, ``falling`` (one window below), ``stale``, ``recovered`` or ``not yet known``."""

    state: str
    text: str


def judge(rows: Iterable[SpeculationCounts | None], promise: Promise) -> Status:
    """Judge records in their order of arrival, in constant memory."""
    everything, window = Sums(), Sums()
    recent: deque[tuple[int, SpeculationCounts]] = deque(maxlen=2 * WINDOW)
    number = silent = windows_below = begun = since = 0
    once_stale = ""
    for number, counts in enumerate(rows, 1):
        if counts is None or not counts.drafts > 0:
            silent += counts is None or counts.requests == 1  # an idle server's counters are not broken
            continue
        _check_counts_blocks(counts, promise)
        begun = begun if window.records else number
        everything.add(counts)
        window.add(counts)
        recent.append((number, counts))
        if window.records == WINDOW:
            since = since if windows_below else begun
            windows_below = windows_below + 1 if window.is_below(promise) else 0
            if windows_below >= 2:
                once_stale = f"; requests {since} to {number} were below"
            window = Sums()
    kind = "row that is" if silent == 1 else "rows that are"
    left_out = f"; {silent} {kind} broken or without speculation left out" if silent else ""
    if not everything.known:
        requests = "" if math.isnan(everything.requests) else f"{everything.requests:g} requests with "
        return Status(
            "not yet known",
            f"not yet known: {requests}{everything.blocks:g} blocks "
            f"({ENOUGH} requests are needed, or {BLOCKS} blocks of counters){left_out}",
        )
    _check_draft_len(everything, promise)
    windowed = everything.records >= 2 * WINDOW
    before, last = everything, everything
    where = "" if math.isnan(everything.requests) else f" ({everything.requests:g} requests)"
    if windowed:
        before, last = Sums(), Sums()
        for place, (_, counts) in enumerate(recent):
            (before if place < WINDOW else last).add(counts)
        where = f" (requests {recent[WINDOW][0]} to {recent[-1][0]} of {number})"
    now, promised = last.length(promise), promise.at(last.drafted_per_block)
    text = f"{now.estimate:.2f} tokens a step [{now.low:.2f}, {now.high:.2f}], "
    text += f"promised {promised.low:.2f} to {promised.high:.2f}{_of_length(last, promise)}{where}{left_out}"
    if last.is_below(promise) and before.is_below(promise):
        begin = f" since request {since if windows_below else recent[0][0]}" if windowed else ""
        return Status("stale", f"stale{begin}: {text}")
    state = "better" if now.low > promised.high else "falling" if now.high < promised.low else "as promised"
    if once_stale and state != "falling":
        return Status("recovered", f"recovered: {text}{once_stale}")
    return Status(state, f"{state}: {text}")


def _check_counts_blocks(counts: SpeculationCounts, promise: Promise) -> None:
    """Refuse records that do not count the blocks of the promise, those with drafted tokens, apart from the others."""
    counts_all = counts.engine == "llama.cpp" or (counts.engine == "tensorrt-llm" and math.isnan(counts.drafted))
    if counts_all and counts.requests == 1 and (promise.threshold or promise.option in SEARCHES):
        what = "timings" if counts.engine == "llama.cpp" else "responses"
        raise UserError(
            f"{counts.engine}'s {what} do not tell in how many steps nothing was drafted", remedy="monitor its /metrics"
        )


def _is_fixed(promise: Promise) -> bool:
    """Whether each block of the promise drafts as many tokens as there is time for."""
    return not promise.threshold and not promise.option.startswith(SEARCHES)


def _check_draft_len(everything: Sums, promise: Promise) -> None:
    """Refuse records of draft lengths that the promise does not know; where blocks may end early, they say nothing about it."""
    drafted, known = everything.drafted_per_block, list(promise.known)
    if _is_fixed(promise) and not 0.75 * known[0] <= drafted <= 1.05 * known[-1] and not math.isnan(drafted):
        raise UserError(
            f"production drafts {drafted:.2f} tokens a block, but the verdict is for {promise.draft_len}",
            remedy="serve with the verdict's length, or ask for a verdict at this length",
        )


def _of_length(sums: Sums, promise: Promise) -> str:
    """How many tokens production drafts, in words, if the verdict's length is another, as with lengths by batch."""
    drafted = sums.drafted_per_block
    is_another = _is_fixed(promise) and abs(drafted / promise.draft_len - 1) > 0.05  # NaN is not
    return f" for {drafted:.2f} drafted tokens a block (the verdict's length: {promise.draft_len})" * is_another


def watch(source: str, seconds: float, model: str = "") -> Iterator[SpeculationCounts | None]:
    """The records of a file, or of a server's /metrics: since its start, or over ``seconds`` from now.

    Of a page with the counters of several models, those of ``model``.

    **Raises:** ``UserError`` for a file without any record of speculation.
    """
    if not source.startswith(("http://", "https://")):
        if seconds:
            raise UserError("--over is for a server's /metrics", remedy="leave it out for a file")
        if not Path(source).exists():
            raise UserError("no such file", file=source, remedy="check the path, or begin an address with http://")
        found = False
        for counts in records.read(Path(source), model):
            found = found or counts is not None
            yield counts
        if not found:
            remedy = "give the records of an engine that drafts (docs/serving.md)"
            raise UserError("no record of speculation in it", file=source, remedy=remedy)
        return
    counters = prometheus.read(_fetch(source), source, model)
    record = prometheus.total(counters, source)  # a page that says nothing is refused before the wait
    if seconds:
        time.sleep(seconds)
        counters = prometheus.since(counters, prometheus.read(_fetch(source), source, model), source)
        record = prometheus.total(counters, source)
    yield record


def _fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return str(answer.read(50_000_000).decode("utf-8", "replace"))
    except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
        raise UserError(
            f"no answer: {error}", file=url, remedy="check the address, it usually ends in /metrics"
        ) from None


def monitor(source: tyro.conf.Positional[str], *, verdict: Path, over: float = 0.0, model: str = "") -> None:
    """Check that the acceptance in production still matches the verdict; exit code 3 if not.

    **Arguments:**
    - `source`: a file or URL with an engine's records, or with Prometheus text
    - `verdict`: the verdict.json that draftlab verdict wrote
    - `over`: at a URL, count from now on for this many seconds; 0: since the server's start
    - `model`: the model of the verdict, if the Prometheus text has counters of several
    """
    if not 0 <= over <= YEAR:
        raise UserError(f"--over is {over:g} seconds", remedy="give 0 to a year")
    report = judge(watch(source, over, model), read_promise(verdict))
    print(report.text)
    if report.state == "stale":
        sys.exit(STALE)
