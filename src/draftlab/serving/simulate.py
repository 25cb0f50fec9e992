"""A continuous-batching server, step by step: vLLM's scheduler with chunked prompts, a limited cache and preemption.

Steps follow each other on one machine, so the only events are the ends of steps. A plain loop over them is exact.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int

from draftlab.errors import UserError
from draftlab.serving.acceptance import AcceptanceCurves
from draftlab.serving.profiles import Profile
from draftlab.serving.traces import Arrivals


@dataclass(frozen=True)
class Served:
    """The times of each request that fits the cache, in seconds, and what the server did.

    ``batch`` is the mean, over all blocks, of the number of requests that emit one in the same step; ``classes`` are the requests' classes of
    acceptance.
    """

    arrived: Float64[np.ndarray, " requests"]
    first: Float64[np.ndarray, " requests"]
    last: Float64[np.ndarray, " requests"]
    output: Int[np.ndarray, " requests"]
    steps: int
    preempted: int
    batch: float
    classes: Int[np.ndarray, " requests"]

    @property
    def whole(self) -> Float64[np.ndarray, " requests"]:
        return np.asarray(self.last - self.arrived)

    @property
    def to_first(self) -> Float64[np.ndarray, " requests"]:
        return np.asarray(self.first - self.arrived)

    @property
    def per_token(self) -> Float64[np.ndarray, " some"]:
        """Seconds per token after the first, of the requests that have one."""
        more = self.output > 1
        pace: Float64[np.ndarray, " some"] = (self.last - self.first)[more] / (self.output[more] - 1)
        return pace

    @property
    def seconds(self) -> float:
        return float(self.last.max() - self.arrived.min())


ID, CONTEXT, GOAL, LEFT, CLASS = range(5)
"""The rows of the table of running requests: number, tokens cached, tokens to read before decoding, tokens still to emit, acceptance class."""
MOST_AT_ONCE = 256
"""Steps without an event that are computed together at most."""


def fits_cache(arrivals: Arrivals, profile: Profile) -> Bool[np.ndarray, " requests"]:
    """Whether each request fits the cache alone."""
    return np.asarray(
        -(-(arrivals.prompt + arrivals.output) // profile.kv_block) <= profile.kv_tokens // profile.kv_block
    )


def serve(
    arrivals: Arrivals,
    profile: Profile,
    draft_len: int,
    acceptance: AcceptanceCurves | None,
    rng: np.random.Generator,
    share: float = 1.0,
) -> Served:
    """Serve all requests; with drafts, ``profile.draft`` (None: drafting is free, as a lookup in the prompt nearly is) proposes them.

    This follows vLLM's first-come scheduler: running requests first, then waiting ones while tokens, sequences and cache allow; if the cache is
    full, the youngest request is preempted and read again later. The target reads the drafted tokens together with the last one; the draft reads
    what the target reads, then takes a step for each further token (``Profile.drafting_ms``). Something is drafted for only a ``share`` of a
    request's steps: for the others, a lookup finds nothing.
    """
    count = len(arrivals.seconds)
    if not count:
        raise UserError("no requests", remedy="give a trace with at least one request")
    fits = fits_cache(arrivals, profile)
    if not fits.any():
        remedy = f"give shorter requests, or a profile with more kv_tokens than {profile.kv_tokens:,}"
        raise UserError("no request fits the cache", remedy=remedy)
    if acceptance and draft_len >= profile.max_tokens:
        what = f"a block of {draft_len} drafted tokens does not fit a step of {profile.max_tokens} tokens"
        raise UserError(what, remedy="give shorter draft lengths, or raise max_tokens of the profile")
    classes = np.zeros(count, dtype=np.int64) if arrivals.classes is None else arrivals.classes
    if acceptance and arrivals.classes is None:
        classes = acceptance.classes(count, rng)
    server = _Server(arrivals, profile, fits, classes)
    first, last = np.full(count, np.nan), np.full(count, np.nan)
    steps = decoded = weighted = 0
    while server.arrive():
        new, decoding, drafted, full = server.plan(draft_len if acceptance else 0)
        running = server.running
        active = decoding & (new > 0)
        batch = int(np.count_nonzero(active))
        ends = ~decoding & (running[CONTEXT] + new >= running[GOAL])  # prompts that are read to their end
        speculates, read = acceptance is not None, int(np.count_nonzero(ends))
        ms = _step_ms(profile, running[CONTEXT], new, decoding, active, drafted, read, share, speculates)
        at_once = 1 if full or batch < running.shape[1] else server.steps_alike(drafted)
        emitted = (active | ends).astype(np.int64)
        if at_once == 1:
            server.now += ms / 1e3
            if drafted and batch and acceptance is not None:
                emitted[active] += acceptance.draw(running[CLASS][active], drafted, rng)
        else:
            kinds = running[CLASS][None].repeat(at_once, axis=0).ravel()
            accepted = acceptance.draw(kinds, drafted, rng) if drafted and acceptance else np.zeros_like(kinds)
            each = 1 + accepted.reshape(at_once, batch)
            slope = profile.target.decode.per_cached
            if profile.draft is not None:
                slope += (1 if profile.parallel else drafted) * profile.draft.decode.per_cached
            grown = each.ravel().cumsum()[batch - 1 :: batch]  # of whole steps
            ticks = server.now + (ms + slope * np.concatenate([[0], grown[:-1]])).cumsum() / 1e3
            at_once = server.until_an_arrival(ticks)
            emitted, server.now = each[:at_once].sum(axis=0), float(ticks[at_once - 1])
        steps += at_once
        decoded += batch * at_once
        weighted += batch * batch * at_once
        emitted = np.minimum(emitted, running[LEFT])
        begun = running[ID, ends]
        first[begun] = np.where(np.isnan(first[begun]), server.now, first[begun])
        last[server.emit(emitted, np.where(decoding, emitted, new))] = server.now
    times = arrivals.seconds[fits], first[fits], last[fits]
    return Served(*times, arrivals.output[fits], steps, server.preempted, weighted / max(decoded, 1), classes[fits])


class _Server:
    """The requests at the moment ``now``: those ``waiting``, and the table of those ``running``, whose rows are ``ID`` to ``CLASS``."""

    def __init__(
        self,
        arrivals: Arrivals,
        profile: Profile,
        fits: Bool[np.ndarray, " requests"],
        classes: Int[np.ndarray, " requests"],
    ) -> None:
        self.arrivals, self.profile, self.fits, self.classes = arrivals, profile, fits, classes
        self.room, self.now = profile.kv_tokens // profile.kv_block, float(arrivals.seconds[0])
        self.emitted_so_far = np.zeros(len(fits), dtype=np.int64)
        self.waiting: deque[int] = deque()
        self.running = np.zeros((5, 0), dtype=np.int64)
        self.coming = self.preempted = 0

    def arrive(self) -> bool:
        """Let the requests wait that have come by now; if there is nothing else to do, go on to the next one. False if none is left."""
        arrived = self.arrivals.seconds
        while self.coming < len(arrived):
            if not self.waiting and not self.running.shape[1]:
                self.now = max(self.now, float(arrived[self.coming]))
            if arrived[self.coming] > self.now:
                break
            if self.fits[self.coming]:
                self.waiting.append(self.coming)
            self.coming += 1
        return bool(self.waiting) or self.running.shape[1] > 0

    def plan(self, draft_len: int) -> tuple[Int[np.ndarray, " running"], Bool[np.ndarray, " running"], int, bool]:
        """Let requests leave and join; the tokens that each running one then reads, which ones decode, how many tokens are drafted for each of
        these, and whether the cache was full."""
        decoding = self.running[CONTEXT] >= self.running[GOAL]
        drafted = draft_len if np.count_nonzero(decoding) else 0
        new = np.where(decoding, 1 + drafted, self.running[GOAL] - self.running[CONTEXT])
        budget = self.profile.max_tokens
        if new.sum() > budget:
            new = np.diff(np.minimum(np.concatenate([[0], new.cumsum()]), budget))
            new[decoding & (new < 1 + drafted)] = 0  # a block is verified whole
        # Nothing is kept beyond a request's last token.
        kept = np.where(decoding, np.minimum(new, self.running[LEFT]), new)
        stay, used = self._preempt(self._blocks(self.running[CONTEXT] + kept))
        full = stay < len(new)
        new, decoding = new[:stay], decoding[:stay]
        chunks = [] if full else self._admit(budget - int(new.sum()), used)
        if chunks:
            new = np.concatenate([new, np.array(chunks, dtype=np.int64)])
            decoding = np.concatenate([decoding, np.zeros(len(chunks), dtype=bool)])
        return new, decoding, drafted, full

    def _blocks(self, tokens: Int[np.ndarray, " running"]) -> Int[np.ndarray, " running"]:
        """How many blocks of the cache so many tokens take."""
        return np.asarray(-(-tokens // self.profile.kv_block))

    def _preempt(self, held: Int[np.ndarray, " running"]) -> tuple[int, int]:
        """Let the youngest request leave while the cache is too small for the blocks ``held``; how many stay, and their blocks."""
        stay, used = len(held), int(held.sum())
        while used > self.room:
            stay -= 1
            used -= int(held[stay])
            self.waiting.appendleft(int(self.running[ID, stay]))
        self.preempted += len(held) - stay
        self.running = self.running[:, :stay]
        return stay, used

    def _admit(self, budget: int, used: int) -> list[int]:
        """Let waiting requests join while tokens, sequences and cache allow; how many tokens each reads first."""
        chunks: list[int] = []
        joined: list[tuple[int, ...]] = []
        while self.waiting and budget > 0 and self.running.shape[1] + len(joined) < self.profile.max_sequences:
            request = self.waiting[0]
            emitted = int(self.emitted_so_far[request])
            goal = int(self.arrivals.prompt[request]) + emitted
            chunk = min(goal, budget)
            if used + -(-chunk // self.profile.kv_block) > self.room:
                break
            used += -(-chunk // self.profile.kv_block)
            budget -= chunk
            chunks.append(chunk)
            left = int(self.arrivals.output[request]) - emitted
            joined.append((self.waiting.popleft(), 0, goal, left, int(self.classes[request])))
        if joined:
            self.running = np.concatenate([self.running, np.array(joined, dtype=np.int64).T], axis=1)
        return chunks

    def steps_alike(self, drafted: int) -> int:
        """How many steps like the next one come before a request may leave or find the cache full."""
        at_once = min(MOST_AT_ONCE, int(self.running[LEFT].min() - 1) // (1 + drafted) + 1)
        grown = self._blocks(self.running[CONTEXT] + at_once * (1 + drafted))
        return 1 if grown.sum() > self.room else at_once

    def until_an_arrival(self, ticks: Float64[np.ndarray, " steps"]) -> int:
        """How many of the steps that end at ``ticks`` begin before the next request comes; if some wait, it waits behind them."""
        if self.waiting or self.coming == len(self.fits):
            return len(ticks)
        return min(len(ticks), int(np.searchsorted(ticks, self.arrivals.seconds[self.coming])) + 1)

    def emit(
        self, emitted: Int[np.ndarray, " running"], cached: Int[np.ndarray, " running"]
    ) -> Int[np.ndarray, " finished"]:
        """Add the tokens that each request emitted and those that it has in the cache now; returns the requests that are finished and leave."""
        self.running[CONTEXT] += cached
        self.running[LEFT] -= emitted
        self.emitted_so_far[self.running[ID]] += emitted
        finished = self.running[LEFT] <= 0
        done: Int[np.ndarray, " finished"] = self.running[ID, finished]
        if len(done):
            self.running = self.running[:, ~finished]
        return done


def _step_ms(
    profile: Profile,
    context: Int[np.ndarray, " running"],
    new: Int[np.ndarray, " running"],
    decoding: Bool[np.ndarray, " running"],
    active: Bool[np.ndarray, " running"],
    drafted: int,
    read_to_end: int,
    share: float,
    speculates: bool,
) -> float:
    """Milliseconds of a step in which each request reads ``new`` tokens after ``context`` and ``read_to_end`` prompts end; the ``active`` ones decode."""
    batch, tokens, cached = int(np.count_nonzero(active)), int(new.sum()), float(context[active].sum())
    chunk, pairs = 0, 0.0
    if batch < len(new):
        chunks, before = new[~decoding], context[~decoding]
        chunk, pairs = int(chunks.sum()), float((chunks * (before + chunks / 2)).sum())
    # A whole number of requests has nothing drafted: the one below or the one above the mean, each as often as the mean demands.
    idle, often = divmod(batch * (1 - share), 1) if drafted else (0.0, 0.0)
    ms = profile.overhead + (profile.per_block if drafted else 0.0)
    for nothing, weight in ((int(idle), 1 - often), (int(idle) + 1, often)):
        if weight:
            less = nothing * drafted
            logits = batch * (1 + drafted) + read_to_end - less
            ms += weight * profile.target.step(tokens - less, logits, batch, cached, chunk, pairs)
    if drafted:
        ms += profile.drafting_ms(tokens, batch, drafted, cached, chunk, pairs)
    elif speculates and profile.draft is not None and chunk:
        ms += profile.draft.step(chunk, 0, 0, 0.0, chunk, pairs)  # the draft reads prompts even if it drafts later
    return ms
