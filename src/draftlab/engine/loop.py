"""The one speculative loop: propose, read, verify, settle.

A draft proposes tokens, the target reads them all in one forward pass, and a verifier accepts the first few and adds one token. The text
follows the target's distribution exactly; at temperature 0 it is the target's greedy text.

A ``DecodingPair`` implements the four verbs. Those in this folder decode batches in torch: ``BatchedPair``, ``ParallelPair``, ``MedusaPair``,
``EaglePair`` and ``DFlashPair``. Those in ``latency`` decode one request on an engine: ``RequestPair``, ``SuffixPair`` and ``TreePair``, and ``ScheduledPair`` at an
acceptance that is set. The loop yields a ``Step`` for each block; traces, observers and clocks wrap the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

Proposal = TypeVar("Proposal")
Reading = TypeVar("Reading")


class Verification(NamedTuple):
    """What a verifier decided for each request.

    ``drafted``: the tokens of the chosen sequence, number ``path`` of the proposed ones; ``accepted``: how many of them are kept;
    ``token``: the token that follows. ``overlap`` and ``overlap_repo`` are the terms of alpha at each drafted position, where the pair measures them.
    """

    drafted: list[list[int]]
    path: list[int]
    accepted: list[int]
    token: list[int]
    overlap: Sequence[list[float]] = ()
    overlap_repo: Sequence[list[float]] = ()


class DecodingPair(Protocol[Proposal, Reading]):
    """A target and its drafts, with the caches of the requests under way."""

    def propose(self, left: Sequence[int]) -> Proposal:
        """Draft tokens for each request, which may get ``left`` more tokens."""
        ...

    def read(self, proposal: Proposal) -> Reading:
        """Let the target read the proposal, in one forward pass."""
        ...

    def verify(self, proposal: Proposal, reading: Reading) -> Verification:
        """Decide what is accepted."""
        ...

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        """Keep the accepted tokens in the caches, crop the rest, and continue with the requests at ``kept``."""
        ...


class Step(NamedTuple, Generic[Reading]):
    """One block: the requests it served, how many tokens each could get, the tokens ``emitted``, with the verification and logits behind them."""

    rows: list[int]
    left: list[int]
    emitted: list[list[int]]
    verification: Verification
    reading: Reading


def steps(
    pair: DecodingPair[Proposal, Reading], requests: int, max_new_tokens: int, eos_ids: Collection[int]
) -> Iterator[Step[Reading]]:
    """Decode ``requests`` requests block by block, each to its first end-of-text token or ``max_new_tokens``."""
    rows, left = list(range(requests)), [max_new_tokens] * requests
    while rows:
        proposal = pair.propose(left)
        reading = pair.read(proposal)
        verification = pair.verify(proposal, reading)
        blocks = zip(verification.drafted, verification.accepted, verification.token, left, strict=True)
        emitted = [_cut([*drafted[:accepted], token][:most], eos_ids) for drafted, accepted, token, most in blocks]
        after = [most - len(new) for most, new in zip(left, emitted, strict=True)]
        kept = close_gaps([more > 0 and new[-1] not in eos_ids for more, new in zip(after, emitted, strict=True)])
        pair.settle(verification, kept)
        yield Step(rows, left, emitted, verification, reading)
        rows, left = [rows[place] for place in kept], [after[place] for place in kept]


def _cut(tokens: list[int], eos_ids: Collection[int]) -> list[int]:
    """``tokens`` up to the first end-of-text token."""
    for place, token in enumerate(tokens, 1):
        if token in eos_ids:
            return tokens[:place]
    return tokens


def agreed(tokens: Iterable[int], others: Iterable[int]) -> int:
    """How many of their first tokens are the same, up to the first that differs."""
    count = 0
    for a, b in zip(tokens, others, strict=False):
        if a != b:
            break
        count += 1
    return count


def close_gaps(keep: Sequence[bool]) -> list[int]:
    """The places to keep, in an order that moves as few as possible: places at the end fill the gaps."""
    count = sum(keep)
    if count == len(keep):
        return list(range(count))
    movers = (place for place in range(count, len(keep)) if keep[place])
    return [place if keep[place] else next(movers) for place in range(count)]


class Timed(Generic[Proposal, Reading]):
    """A pair with timed verbs: ``laps`` holds, for each block, the clock before it and after each of the four verbs."""

    def __init__(self, pair: DecodingPair[Proposal, Reading], clock: Callable[[], float]) -> None:
        self.pair, self.clock = pair, clock
        self.laps: list[list[float]] = []

    def propose(self, left: Sequence[int]) -> Proposal:
        self.laps.append([self.clock()])
        proposal = self.pair.propose(left)
        self.laps[-1].append(self.clock())
        return proposal

    def read(self, proposal: Proposal) -> Reading:
        reading = self.pair.read(proposal)
        self.laps[-1].append(self.clock())
        return reading

    def verify(self, proposal: Proposal, reading: Reading) -> Verification:
        verification = self.pair.verify(proposal, reading)
        self.laps[-1].append(self.clock())
        return verification

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        self.pair.settle(verification, kept)
        self.laps[-1].append(self.clock())
