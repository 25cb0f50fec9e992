"""A continuous-batching server, step by step: vLLM's scheduler with chunked prompts, a limited cache and preemption.

Steps follow each other on one machine, so the events are the ends of steps: a plain loop is exact, and faster than a general simulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int

from draftlab.errors import UserError
from draftlab.serving.acceptance import Acceptance
from draftlab.serving.profiles import Profile
from draftlab.serving.traces import Arrivals

DraftLength = Callable[[int, float], int]
"""(requests that decode, mean tokens before them) -> how many tokens to draft."""


def fixed(draft_len: int) -> DraftLength:
    """The same length always."""
    return lambda batch, context: draft_len


@dataclass(frozen=True)
class Served:
    """The times of each request, in seconds, and what the server did. ``batch`` is the number of requests in the step that emitted a block;
    ``refused`` are the requests that would not fit the cache even alone."""

    arrived: Float64[np.ndarray, " requests"]
    first: Float64[np.ndarray, " requests"]
    last: Float64[np.ndarray, " requests"]
    output: Int[np.ndarray, " requests"]
    steps: int
    preempted: int
    batch: float
    refused: int

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


# The columns of the admitted requests, in order of admission: tokens cached, tokens to read before decoding, tokens still to emit.
ID, CTX, GOAL, LEFT, KIND = range(5)
ALIKE = 256
"""Steps without an event that are reckoned together at most."""


def serve(
    arrivals: Arrivals,
    profile: Profile,
    draft_len: DraftLength,
    acceptance: Acceptance | None,
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
    fits = -(-(prompts + outputs) // block) <= room
    kinds = acceptance.classes(count, rng) if acceptance else np.zeros(count, dtype=np.int64)
    first, last = np.full(count, np.nan), np.full(count, np.nan)
    done = np.zeros(count, dtype=np.int64)
    waiting: deque[int] = deque()
    running = np.zeros((5, 0), dtype=np.int64)
    now, coming, steps, preempted, decoded, weighted = float(arrived[0]), 0, 0, 0, 0, 0
    target, drafter = profile.target, profile.draft
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
        prefilling = running[CTX] < running[GOAL]
        decoding = ~prefilling
        batch = int(decoding.sum())
        drafted = draft_len(batch, float(running[CTX][decoding].mean())) if batch and acceptance else 0
        new = np.where(decoding, 1 + drafted, running[GOAL] - running[CTX])
        budget = profile.max_tokens
        if new.sum() > budget:
            new = np.diff(np.minimum(np.concatenate([[0], new.cumsum()]), budget))
            new[decoding & (new < 1 + drafted)] = 0  # a block is verified whole
        full = False
        held = -(-(running[CTX] + new) // block)
        used = int(held.sum())
        while used > room:
            victim = running[ID, -1]
            used -= int(held[-1])
            waiting.appendleft(int(victim))
            running, new, decoding, held = running[:, :-1], new[:-1], decoding[:-1], held[:-1]
            preempted, full = preempted + 1, True
        budget -= int(new.sum())
        admitted: list[tuple[int, int, int]] = []
        while waiting and not full and budget > 0 and running.shape[1] + len(admitted) < profile.max_sequences:
            request = waiting[0]
            goal = int(prompts[request] + done[request])
            chunk = min(goal, budget)
            if used + -(-chunk // block) > room:
                break
            used += -(-chunk // block)
            budget -= chunk
            waiting.popleft()
            admitted.append((request, goal, chunk))
        if admitted:
            ids, goals, chunks = (np.array(part, dtype=np.int64) for part in zip(*admitted, strict=True))
            joined = np.stack([ids, np.zeros_like(ids), goals, outputs[ids] - done[ids], kinds[ids]])
            running = np.concatenate([running, joined], axis=1)
            new = np.concatenate([new, chunks])
            decoding = np.concatenate([decoding, np.zeros(len(ids), dtype=bool)])
        # What the step costs, and as many like it as come before somebody leaves, comes, or finds the cache full.
        active = decoding & (new > 0)
        batch = int(active.sum())
        chunks, before = new[~decoding], running[CTX][~decoding]
        chunk = int(chunks.sum())
        cached = float(running[CTX][active].sum())
        pairs = float((chunks * (before + chunks / 2)).sum())
        ends = ~decoding & (running[CTX] + new >= running[GOAL])
        asked = int(ends.sum())
        tokens = int(new.sum())
        # A whole number of requests has nothing drafted: the one below or the one above the mean, each as often as the mean demands.
        idle, often = divmod(batch * (1 - share), 1) if drafted else (0.0, 0.0)
        cost = profile.overhead
        for nothing, weight in ((int(idle), 1 - often), (int(idle) + 1, often)):
            if weight:
                less = nothing * drafted
                read, logits = tokens - less, batch * (1 + drafted) + asked - less
                cost += weight * target.step(read, logits, batch, cached, chunk, pairs)
        if drafted and drafter is not None:
            cost += drafter.step(tokens, batch, batch, cached, chunk, pairs)
            cost += (drafted - 1) * drafter.step(batch, batch, batch, cached)
        elif acceptance and drafter is not None and chunk:
            cost += drafter.step(chunk, 0, 0, 0.0, chunk, pairs)  # the draft reads prompts even if it drafts later
        alike = 1
        if batch == running.shape[1] and not full:
            alike = min(ALIKE, int(running[LEFT].min() - 1) // (1 + drafted) + 1)
            if alike > 1 and (-(-(running[CTX] + alike * (1 + drafted)) // block)).sum() > room:
                alike = 1
        emitted = np.where(active | ends, 1, 0)
        if alike == 1:
            now += cost / 1e3
            if drafted and batch and acceptance is not None:
                emitted[active] += acceptance.draw(running[KIND][active], drafted, rng)
        else:
            kinds_now = np.broadcast_to(running[KIND], (alike, batch)).ravel()
            drawn = acceptance.draw(kinds_now, drafted, rng) if drafted and acceptance else np.zeros_like(kinds_now)
            each = 1 + drawn.reshape(alike, batch)
            slope = target.decode.per_cached + (drafted * drafter.decode.per_cached if drafter is not None else 0.0)
            grown = each.sum(axis=1).cumsum()
            ticks = now + (cost + slope * np.concatenate([[0], grown[:-1]])).cumsum() / 1e3
            if not waiting and coming < count:  # with somebody waiting, who comes now waits behind them
                alike = min(alike, int(np.searchsorted(ticks, arrived[coming])) + 1)
            emitted, now = each[:alike].sum(axis=0), float(ticks[alike - 1])
        steps += alike
        emitted = np.minimum(emitted, running[LEFT])
        decoded += batch * alike
        weighted += batch * batch * alike
        running[CTX] += np.where(decoding, emitted, new)
        running[LEFT] -= emitted
        ids = running[ID]
        done[ids] += emitted
        fresh = ids[ends]
        first[fresh] = np.where(np.isnan(first[fresh]), now, first[fresh])
        over = running[LEFT] <= 0
        if over.any():
            last[ids[over]] = now
            running = running[:, ~over]
    return Served(
        arrived[fits],
        first[fits],
        last[fits],
        outputs[fits],
        steps,
        preempted,
        batch=weighted / max(decoded, 1),
        refused=int((~fits).sum()),
    )
