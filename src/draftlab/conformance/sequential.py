"""A sequential test of emitted tokens: stop at any time, with one stated probability of a false alarm."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from draftlab.conformance.tables import VerifierCase, reading, tables
from draftlab.core.sampling import Drafting, check_probs, draft_tokens
from draftlab.core.settings import SEEDS
from draftlab.errors import UserError

Sampler = Callable[[Tensor, Tensor, Tensor, Generator], Tensor]
"""``(target_probs[batch, vocab], draft_probs[batch, drafts, vocab], tokens[batch, drafts], generator) -> tokens[batch]``"""

PRIOR = 2.0
"""Pseudo-observations behind each bet: more of them make the test slower to bet that a token is too frequent or too rare."""

FIRST_BLOCK = 32


@dataclass(frozen=True)
class Budget:
    """How many samples to draw (per table), the probability that a test ever accuses a lossless verifier, and the seed."""

    max_samples: int = 20_000
    false_alarm: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_samples < 1 or not 0 < self.false_alarm < 1:
            raise UserError(
                f"max_samples is {self.max_samples} and false_alarm {self.false_alarm}",
                remedy="give at least 1 sample and a rate between 0 and 1",
            )
        if not 0 <= self.seed < SEEDS:
            raise UserError(f"seed is {self.seed}", remedy=f"give 0 to {SEEDS - 1}")


BUDGET = Budget()


@dataclass(frozen=True)
class Sampled:
    """``e_value``: wealth of bets against "each token follows its target distribution", which is 1 on average if all do; an alarm stops the test."""

    e_value: float
    samples: int
    false_alarm: float
    streams: int = 1

    @property
    def visible(self) -> float:
        """The smallest deviation, of one token's probability at every position, that most tests with so many samples detect; inf if none.

        A gambler who knew it would earn the divergence from the target, at least 2 deviation**2 a sample (Pinsker). Learning it costs about
        `LEARNING`, and the first block earns nothing because its odds are fixed.
        """
        bets = self.samples // self.streams - FIRST_BLOCK
        return math.sqrt(_stake(self.false_alarm) / (2 * bets)) if bets > 0 else math.inf

    @property
    def lossless(self) -> bool:
        """No alarm; if every token follows its distribution an alarm has at most the stated probability, at any stopping time (Ville)."""
        return self.e_value < 1 / self.false_alarm


LEARNING = 6.0
"""Nats of wealth that learning a deviation costs: measured, and a test checks the power that follows from it."""


def _stake(false_alarm: float) -> float:
    return math.log(3 / false_alarm) + LEARNING  # 3 gamblers share the wealth


def samples_needed(deviation: float, false_alarm: float) -> int:
    """How many samples of one stream most tests need to detect a ``deviation`` of one token's probability: see ``Sampled.visible``.

    >>> samples_needed(0.25, false_alarm=1e-3)
    145
    """
    return FIRST_BLOCK + math.ceil(_stake(false_alarm) / (2 * deviation**2))


@dataclass
class Evidence:
    """The wealth of one gambler per stream, who bets before each block that outcomes come as often as they did so far.

    Payoff of outcome y at distribution q: ``w(y) / sum_v q(v) w(v)`` with ``w = (observed + c) / (expected + c)``. Its mean under q is 1, so wealth
    is a martingale (an e-process) and ``P(wealth ever >= 1 / rate) <= rate``. An outcome of probability 0 pays infinitely.
    """

    observed: Float64[Tensor, "streams outcomes"]
    expected: Float64[Tensor, "streams outcomes"]
    log_wealth: Float64[Tensor, " streams"]

    @staticmethod
    def start(streams: int, outcomes: int) -> Evidence:
        zeros = torch.zeros(streams, outcomes, dtype=torch.float64)
        return Evidence(zeros, zeros.clone(), zeros[:, 0].clone())

    def update(
        self, probs: Float64[Tensor, "streams samples outcomes"], outcome: Int64[Tensor, "streams samples"]
    ) -> None:
        """Settle one block at odds fixed before it, then learn from it."""
        weight = (self.observed + PRIOR) / (self.expected + PRIOR)
        won = weight.gather(-1, outcome).log() - (probs @ weight[..., None])[..., 0].log()
        impossible = probs.gather(-1, outcome[..., None])[..., 0] <= 0
        self.log_wealth = self.log_wealth + won.masked_fill(impossible, math.inf).sum(-1)
        self.observed.scatter_add_(-1, outcome, torch.ones_like(won))
        self.expected += probs.sum(1)


class Gamblers:
    """Three gamblers per stream: on the token, on its rank in its distribution (powers of two), on whether the last token comes again."""

    def __init__(self, streams: int, vocab: int) -> None:
        sizes = (vocab, vocab.bit_length(), 2)
        self.evidence = [Evidence.start(streams, size) for size in sizes]
        self.last = torch.zeros(streams, 1, dtype=torch.int64)

    def update(self, probs: Float64[Tensor, "streams samples vocab"], tokens: Int64[Tensor, "streams samples"]) -> None:
        """Bet on one block of samples of each stream."""
        rank = probs.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
        bucket = (rank + 1).double().log2().floor().long()
        by_rank = torch.zeros(*probs.shape[:2], probs.shape[-1].bit_length(), dtype=torch.float64).scatter_add_(
            -1, bucket, probs
        )
        before = torch.cat([self.last, tokens[:, :-1]], -1)
        again = probs.gather(-1, before[..., None])
        self.evidence[0].update(probs, tokens)
        self.evidence[1].update(by_rank, bucket.gather(-1, tokens[..., None])[..., 0])
        self.evidence[2].update(torch.cat([1 - again, again], -1).clamp(0, 1), (tokens == before).long())
        self.last = tokens[:, -1:]

    def wealth(self) -> Float64[Tensor, " streams"]:
        """Mean wealth of a stream's gamblers: again a martingale that starts at 1."""
        return torch.stack([evidence.log_wealth.exp() for evidence in self.evidence]).mean(0)


def check_sampler(sample: Sampler, drafting: Drafting, num_drafts: int, budget: Budget = BUDGET) -> Sampled:
    """Draft and verify at every table until an alarm, or until each table has had the budget's samples."""
    cases = tables(drafting, num_drafts)
    wealth, done = 1.0, 0
    for reached, count in sampler_wealth(sample, drafting, cases, budget):
        wealth, done = float(reached), count * len(cases)
        if wealth >= 1 / budget.false_alarm:
            break
    return Sampled(wealth, done, budget.false_alarm, len(cases))


def sampler_wealth(
    sample: Sampler, drafting: Drafting, cases: list[VerifierCase], budget: Budget, runs: int = 1
) -> Iterator[tuple[Float64[Tensor, " runs"], int]]:
    """The mean wealth over the tables after each block, and the samples per table so far; several runs at once."""
    generator = torch.Generator().manual_seed(budget.seed)
    target = torch.stack([case.target_probs for case in cases]).repeat(runs, 1)
    draft = torch.stack([case.draft_probs for case in cases]).repeat(runs, 1, 1)
    streams, vocab = target.shape
    gamblers = Gamblers(streams, vocab)
    done = 0
    while done < budget.max_samples:
        count = min(_block(done), budget.max_samples - done)
        targets, drafts = target.repeat_interleave(count, 0), draft.repeat_interleave(count, 0)
        tokens = _as_tokens(
            reading(sample)(targets, drafts, draft_tokens(drafts, drafting, generator), generator), targets
        )
        gamblers.update(targets.view(streams, count, vocab), tokens.view(streams, count))
        done += count
        yield gamblers.wealth().view(runs, -1).mean(-1), done


def _as_tokens(value: object, targets: Float64[Tensor, "samples vocab"]) -> Int64[Tensor, " samples"]:
    tokens = torch.as_tensor(value)
    if tokens.shape != targets.shape[:1] or tokens.is_floating_point():
        raise UserError(
            f"the sampler returned {tokens.dtype} of shape {tuple(tokens.shape)}", remedy="return one token id per row"
        )
    if not bool(((tokens >= 0) & (tokens < targets.shape[1])).all()):
        raise UserError("the sampler left the vocabulary", remedy="return ids from 0 to vocab - 1")
    return tokens.long()


def _block(done: int) -> int:
    """The size of the next block. It grows with the number of samples, because fewer blocks are cheaper; odds are fixed within a block."""
    return max(FIRST_BLOCK, done // 4)


def check_samples(samples: Iterable[tuple[Tensor, int]], budget: Budget = BUDGET) -> Sampled:
    """Test a whole stream of (target distribution, emitted token): each token must follow its distribution given all before it. Stops at an alarm.

    Stop the stream at a number of tokens fixed beforehand, never where a block of drafts ends: that choice may depend on the tokens.
    """
    stream = iter(samples)
    gamblers: Gamblers | None = None
    done, wealth = 0, 1.0
    while wealth < 1 / budget.false_alarm and (block := list(itertools.islice(stream, _block(done)))):
        if len({len(distribution) for distribution, _ in block}) > 1 or (
            gamblers and len(block[0][0]) != gamblers.evidence[0].observed.shape[-1]
        ):
            raise UserError(
                f"target distributions of different sizes after sample {done}",
                remedy="give every sample the target's whole vocabulary",
            )
        probs = check_probs(torch.stack([distribution for distribution, _ in block]), "target_probs")
        tokens = torch.tensor([token for _, token in block])
        if not bool(((tokens >= 0) & (tokens < probs.shape[-1])).all()):
            raise UserError(
                f"a token outside the vocabulary after sample {done}", remedy="give ids from 0 to vocab - 1"
            )
        gamblers = gamblers or Gamblers(1, probs.shape[-1])
        gamblers.update(probs[None], tokens[None])
        done, wealth = done + len(block), float(gamblers.wealth())
    return Sampled(wealth, done, budget.false_alarm)
