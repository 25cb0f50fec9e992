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

    ``batch`` is the mean, over all blocks, of the number of requests that emit one in the same step.
    """

    arrived: Float64[np.ndarray, " requests"]
    first: Float64[np.ndarray, " requests"]
    last: Float64[np.ndarray, " requests"]
    output: Int[np.ndarray, " requests"]
    steps: int
    preempted: int
    batch: float

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


def fit(arrivals: Arrivals, profile: Profile) -> Bool[np.ndarray, " requests"]:
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
    what the target reads, then takes a step for each further token. Something is drafted for only a ``share`` of a request's steps: for the
    others, a lookup finds nothing.
    """
    arrived, prompts, outputs = arrivals.seconds, arrivals.prompt, arrivals.output
    count, block, room = len(arrived), profile.kv_block, profile.kv_tokens // profile.kv_block
    if not count:
        raise UserError("no requests", remedy="give a trace with at least one request")
    fits = fit(arrivals, profile)
    if not fits.any():
        remedy = f"give shorter requests, or a profile with more kv_tokens than {profile.kv_tokens:,}"
        raise UserError("no request fits the cache", remedy=remedy)
    if acceptance and draft_len >= profile.max_tokens:
        what = f"a block of {draft_len} drafted tokens does not fit a step of {profile.max_tokens} tokens"
        raise UserError(what, remedy="give shorter draft lengths, or raise max_tokens of the profile")
    classes = np.zeros(count, dtype=np.int64) if arrivals.classes is None else arrivals.classes
    if acceptance and arrivals.classes is None:
        classes = acceptance.classes(count, rng)
    first, last = np.full(count, np.nan), np.full(count, np.nan)
    emitted_so_far = np.zeros(count, dtype=np.int64)
    waiting: deque[int] = deque()
    running = np.zeros((5, 0), dtype=np.int64)
    now, coming, steps, preempted, decoded, weighted = float(arrived[0]), 0, 0, 0, 0, 0
    while coming < count or waiting or running.shape[1]:
        if not waiting and not running.shape[1]:
            now = max(now, float(arrived[coming]))
        while coming < count and arrived[coming] <= now:
            if fits[coming]:
                waiting.append(coming)
            coming += 1
        if not waiting and not running.shape[1]:
            continue
        # What each running request reads in this step.
        decoding = running[CONTEXT] >= running[GOAL]
        drafted = draft_len if decoding.any() and acceptance else 0
        new = np.where(decoding, 1 + drafted, running[GOAL] - running[CONTEXT])
        budget = profile.max_tokens
        if new.sum() > budget:
            new = np.diff(np.minimum(np.concatenate([[0], new.cumsum()]), budget))
            new[decoding & (new < 1 + drafted)] = 0  # a block is verified whole
        # While the cache is too small, the youngest request leaves it.
        full = False
        kept = np.where(decoding, np.minimum(new, running[LEFT]), new)  # nothing is kept beyond a request's last token
        held = -(-(running[CONTEXT] + kept) // block)
        used = int(held.sum())
        while used > room:
            used -= int(held[-1])
            waiting.appendleft(int(running[ID, -1]))
            running, new, decoding, held = running[:, :-1], new[:-1], decoding[:-1], held[:-1]
            preempted, full = preempted + 1, True
        # Waiting requests join while tokens, sequences and cache allow.
        budget -= int(new.sum())
        admitted: list[tuple[int, int, int]] = []
        while waiting and not full and budget > 0 and running.shape[1] + len(admitted) < profile.max_sequences:
            request = waiting[0]
            goal = int(prompts[request] + emitted_so_far[request])
            chunk = min(goal, budget)
            if used + -(-chunk // block) > room:
                break
            used += -(-chunk // block)
            budget -= chunk
            waiting.popleft()
            admitted.append((request, goal, chunk))
        if admitted:
            ids, goals, chunks = (np.array(part, dtype=np.int64) for part in zip(*admitted, strict=True))
            joined = np.stack([ids, np.zeros_like(ids), goals, outputs[ids] - emitted_so_far[ids], classes[ids]])
            running = np.concatenate([running, joined], axis=1)
            new = np.concatenate([new, chunks])
            decoding = np.concatenate([decoding, np.zeros(len(ids), dtype=bool)])
        active = decoding & (new > 0)
        batch = int(active.sum())
        ends = ~decoding & (running[CONTEXT] + new >= running[GOAL])  # prompts that are read to their end
        ms = _step_ms(profile, running[CONTEXT], new, decoding, drafted, int(ends.sum()), share, acceptance is not None)
        # As many steps like this one as come before a request leaves, comes, or finds the cache full.
        at_once = 1
        if batch == running.shape[1] and not full:
            at_once = min(MOST_AT_ONCE, int(running[LEFT].min() - 1) // (1 + drafted) + 1)
            if at_once > 1 and (-(-(running[CONTEXT] + at_once * (1 + drafted)) // block)).sum() > room:
                at_once = 1
        emitted = np.where(active | ends, 1, 0)
        if at_once == 1:
            now += ms / 1e3
            if drafted and batch and acceptance is not None:
                emitted[active] += acceptance.draw(running[CLASS][active], drafted, rng)
        else:
            kinds = np.broadcast_to(running[CLASS], (at_once, batch)).ravel()
            accepted = acceptance.draw(kinds, drafted, rng) if drafted and acceptance else np.zeros_like(kinds)
            each = 1 + accepted.reshape(at_once, batch)
            slope = profile.target.decode.per_cached
            slope += drafted * profile.draft.decode.per_cached if profile.draft is not None else 0.0
            grown = each.sum(axis=1).cumsum()
            ticks = now + (ms + slope * np.concatenate([[0], grown[:-1]])).cumsum() / 1e3
            if not waiting and coming < count:  # if some wait, a new request waits behind them
                at_once = min(at_once, int(np.searchsorted(ticks, arrived[coming])) + 1)
            emitted, now = each[:at_once].sum(axis=0), float(ticks[at_once - 1])
        steps += at_once
        emitted = np.minimum(emitted, running[LEFT])
        decoded += batch * at_once
        weighted += batch * batch * at_once
        running[CONTEXT] += np.where(decoding, emitted, new)
        running[LEFT] -= emitted
        ids = running[ID]
        emitted_so_far[ids] += emitted
        begun = ids[ends]
        first[begun] = np.where(np.isnan(first[begun]), now, first[begun])
        finished = running[LEFT] <= 0
        if finished.any():
            last[ids[finished]] = now
            running = running[:, ~finished]
    mean_batch = weighted / max(decoded, 1)
    return Served(arrived[fits], first[fits], last[fits], outputs[fits], steps, preempted, mean_batch)


def _step_ms(
    profile: Profile,
    context: Int[np.ndarray, " running"],
    new: Int[np.ndarray, " running"],
    decoding: Bool[np.ndarray, " running"],
    drafted: int,
    read_to_end: int,
    share: float,
    speculates: bool,
) -> float:
    """Milliseconds of a step in which each request reads ``new`` tokens after ``context`` and ``read_to_end`` prompts end."""
    active = decoding & (new > 0)
    batch, tokens, cached = int(active.sum()), int(new.sum()), float(context[active].sum())
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
    draft = profile.draft
    if drafted and draft is not None:
        ms += draft.step(tokens, batch, batch, cached, chunk, pairs)
        ms += (drafted - 1) * draft.step(batch, batch, batch, cached)
    elif speculates and draft is not None and chunk:
        ms += draft.step(chunk, 0, 0, 0.0, chunk, pairs)  # the draft reads prompts even if it drafts later
    return ms
