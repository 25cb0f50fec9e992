"""The speed-up of drafting on the requests of a log: replayed blocks at measured costs, with an interval and upper bounds.

``speed-up = sum of tokens / (sum over calls of v(tokens read) + steps of the draft c + what a draft that catches up and calls of changing
size cost more + time between the models' calls)``, all sums over requests, in steps of plain decoding.
The interval is for an equal number of future requests: it resamples the conversations of the log, draws future ones from those, and at the same
time draws the costs from one of the moments at which they were probed.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from draftlab.core.stats import ENOUGH, quantile
from draftlab.core.theory import expected_block_length
from draftlab.serving.costs import DRAWS, LONGEST, BlockCosts
from draftlab.serving.verdict_format import SEARCHES, AtLength, Ceiling, Option, Outcome, Range

CONVERSATIONS = 10
"""The fewest conversations from which an interval is drawn."""


def at_length(rows: pd.DataFrame, at: AtLength | Option) -> pd.DataFrame:
    """The rows of one draft length, proposal and threshold, in the order of the requests."""
    same = (rows["proposal"] == at.proposal) & (rows["threshold"] == at.threshold)
    return rows[same & (rows["draft_len"] == at.draft_len)].sort_values("request_id")


def held_out(rows: pd.DataFrame, option: Option) -> pd.DataFrame:
    """The held-out requests of an option, at its best length."""
    return at_length(rows[(rows["split"] == "eval") & (rows["option"] == option.name)], option)


def _weights(rows: pd.DataFrame, future: int = 0) -> Float64[np.ndarray, "draws requests"]:
    """How often each request counts in each resample; the first row counts each once.

    With ``future``, about that many future requests are drawn from each resample. Requests of one ``conversation`` are drawn together, if
    there is such a column. The fewer are drawn, the more a resample varies: so many are drawn that intervals are as wide as by Student's quantile.
    """
    return _weights_of(_conversation(rows).tobytes(), future)


@lru_cache(maxsize=8)  # every option and draft length is measured on the same requests
def _weights_of(conversations: bytes, future: int) -> Float64[np.ndarray, "draws requests"]:
    """``_weights`` of requests by the numbers of their conversations (int64)."""
    rng = np.random.default_rng(0)
    unit = np.frombuffer(conversations, dtype=np.int64)
    units = int(unit.max()) + 1
    fewer = max(1, round(units * (quantile(1) / quantile(1, units - 1)) ** 2))
    drawn = rng.multinomial(fewer, np.full(units, 1 / units), DRAWS)
    if future:
        drawn = rng.multinomial(max(1, round(future * fewer / len(unit))), drawn / fewer)
    weights = np.vstack([np.ones(len(unit)), drawn[:, unit]])
    weights.flags.writeable = False
    return weights


def _conversation(rows: pd.DataFrame) -> Int64[np.ndarray, " requests"]:
    """The number of each request's conversation, from 0."""
    own = pd.Series(np.arange(len(rows)), rows.index)
    return np.unique(rows.get("conversation", own), return_inverse=True)[1]


def conversations(rows: pd.DataFrame) -> int:
    """The number of conversations that these requests belong to."""
    return int(_conversation(rows).max(initial=-1)) + 1


def resampled(rows: pd.DataFrame, rng: np.random.Generator) -> Int64[np.ndarray, " drawn"]:
    """Which requests a resample has, by their places in ``rows``: those of as many conversations, drawn with replacement."""
    unit = _conversation(rows)
    units = int(unit.max()) + 1
    return np.concatenate([np.flatnonzero(unit == drawn) for drawn in rng.choice(units, units)])


def range_of(draws: Float64[np.ndarray, " draws"]) -> Range:
    """The first draw is the estimate, and the others give its 95 % interval."""
    low, high = np.quantile(draws[1:], [0.025, 0.975])
    return Range(estimate=float(draws[0]), low=float(low), high=float(high))


def range_of_few(draws: Float64[np.ndarray, " draws"]) -> Range:
    """The mean of a few draws, and the 95 % interval of a further one by Student's quantile: the quantiles of six draws are too close."""
    mean, count = float(draws.mean()), len(draws)
    if count < 2:
        return Range(estimate=mean, low=mean, high=mean)
    margin = float(quantile(1, count - 1) * draws.std() * np.sqrt(1 + 1 / count))
    return Range(estimate=mean, low=max(mean - margin, 0.0), high=mean + margin)


def speedup(rows: pd.DataFrame, costs: BlockCosts, future: int = 0) -> Range:
    """The speed-up on ``future`` requests (0: as many as ``rows``) like the ones in ``rows``, all of one option, proposal and draft length."""
    column = int(rows["draft_len"].iloc[0]) - 1
    # How many calls read 1, 2, ... tokens: a mean between two whole numbers is a mixture of both.
    drafting = (rows["blocks"] - rows["empty"]).to_numpy()
    mean = np.divide(rows["drafted"].to_numpy(), drafting, out=np.zeros(len(rows)), where=drafting > 1e-9)
    below = np.floor(mean).astype(int).clip(0, LONGEST)
    share = mean - below
    calls = np.zeros((len(rows), LONGEST + 2))
    request = np.arange(len(rows))
    calls[request, 0] += rows["empty"]
    calls[request, below] += drafting * (1 - share)
    calls[request, below + 1] += drafting * share
    weights = _weights(rows, future or len(rows))
    seconds = (weights @ calls[:, :-1] * costs.verify).sum(axis=1)
    for count, cost in [("steps", costs.step), *other_costs(rows, costs)]:
        seconds = seconds + weights @ rows[count].to_numpy() * cost[:, column]
    return range_of(weights @ rows["emitted"].to_numpy() / seconds)


def other_costs(rows: pd.DataFrame, costs: BlockCosts) -> list[tuple[str, Float64[np.ndarray, "draws lengths"]]]:
    """What blocks cost beyond the draft's steps and the target's calls: the columns that count it, each with its cost."""
    terms = [("whole", costs.catch_up), ("changes", costs.change), ("blocks", costs.loop)]
    searches = str(rows["option"].iloc[0]).startswith(SEARCHES)
    return [*terms, ("blocks", costs.lookup)] if searches else terms


def mean_context(rows: pd.DataFrame) -> float:
    """The tokens before a decoded token, on average over requests."""
    return float((rows["prompt_tokens"] + rows["emitted"] / 2).mean())


def ratio(rows: pd.DataFrame, above: str, below: str) -> Range:
    """The ratio of two sums over requests."""
    return range_of(ratio_draws(rows, above, below))


def ratio_draws(rows: pd.DataFrame, above: str, below: str) -> Float64[np.ndarray, " draws"]:
    """The ratio of two sums over requests, first over all of them and then over resamples; the same ones for all rows of the same requests."""
    weights = _weights(rows)
    return np.asarray((weights @ rows[above].to_numpy()) / np.maximum(weights @ rows[below].to_numpy(), 1e-12))


def outcome(speedup: Range, rows: pd.DataFrame) -> Outcome:
    """``yes`` above 1, ``no`` below it; ``not yet known`` if the interval includes 1, or for too few requests or conversations (``too_few``)."""
    if too_few(rows) or speedup.low <= 1 <= speedup.high:
        return "not yet known"
    return "yes" if speedup.low > 1 else "no"


def too_few(rows: pd.DataFrame) -> str:
    """Why these requests are too few for a verdict; empty if they are enough."""
    if len(rows) < ENOUGH:
        return f"{len(rows)} held-out request{'s' * (len(rows) != 1)}; {ENOUGH} are needed"
    count = conversations(rows)
    if count < CONVERSATIONS:
        return f"requests of {count} conversation{'s' * (count != 1)}; {CONVERSATIONS} are needed"
    return ""


def ceiling(rows: pd.DataFrame, costs: BlockCosts) -> Ceiling:
    """The best possible speed-up at these costs with at most as many tokens as ``rows`` draft, and an estimate of it with more drafts from this
    distribution: as if positions were alike."""
    lengths = range(1, int(rows["draft_len"].iloc[0]) + 1)
    alphas = {}
    for drafts in (2, 4):
        known = rows[rows[f"optimum_{drafts}"].notna()]
        if len(known):
            alphas[drafts] = min(float(known[f"optimum_{drafts}"].sum() / known["emitted"].sum()), 1.0)
    optimum = {k: max(expected_block_length(a, n) / costs.block(n, a**n) for n in lengths) for k, a in alphas.items()}
    return Ceiling(perfect=max((n + 1) / costs.block(n, 1.0) for n in lengths), optimum_alpha=alphas, optimum=optimum)


def break_even(costs: BlockCosts, beside: float = 0.0, longest: int = LONGEST) -> float | None:
    """The smallest acceptance, to 0.001, at which a draft of this cost pays off at some length up to ``longest``; None if there is none.

    ``beside``: what each block with drafted tokens pays for changes between calls and for blocks without, in steps.
    """
    lengths = range(1, longest + 1)
    alphas = (n / 1000 for n in range(1001))
    pays = (a for a in alphas if any(expected_block_length(a, n) >= costs.block(n, a**n) + beside for n in lengths))
    return next(pays, None)
