"""The verdict on one option for the requests of a log, with its reason, its parts, and what its training costs and would gain."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from draftlab.core.stats import ENOUGH
from draftlab.serving import forecast
from draftlab.serving.costs import BlockCosts
from draftlab.serving.speedup import (
    at_length,
    break_even,
    ceiling,
    held_out,
    outcome,
    range_of,
    ratio,
    ratio_draws,
    speedup,
    too_few,
)
from draftlab.serving.verdict_format import (
    SEARCHES,
    AtLength,
    Ceiling,
    Forecast,
    Learning,
    Option,
    Outcome,
    Part,
    Range,
    decimals,
)
from draftlab.serving.verdict_under_load import best_by_batch

GAIN = 0.01
"""A gain in acceptance that is too small to be worth more requests."""
PARTS = 10
"""The number of parts of the stream whose acceptance is reported."""


def judge(name: str, rows: pd.DataFrame, costs: BlockCosts) -> Option:
    """The verdict on one option from its rows; its parts are thirds of the stream, or of the held-out requests where it learnt the stream."""
    every = rows[rows["split"] == "eval"]
    by_length = [
        AtLength(
            draft_len=int(str(length)),
            proposal=str(proposal),
            speedup=speedup(same, costs),
            threshold=float(str(threshold)),
        )
        for (proposal, length, threshold), same in every.groupby(["proposal", "draft_len", "threshold"])
    ]
    best = max(by_length, key=lambda at: at.speedup.estimate)
    replayed, stream = at_length(every, best), at_length(_stream(rows), best)
    verdict = outcome(best.speedup, replayed)
    own_costs = _own_costs(name, replayed, costs)
    longest = int(every["draft_len"].max())
    most = ceiling(at_length(every, best.model_copy(update={"draft_len": longest})), own_costs)
    tips = None if best.threshold else break_even(own_costs, _beside(replayed, own_costs), longest)
    alpha = ratio(replayed, "accepted", "visited")
    by_batch = best_by_batch(replayed, costs, longest) if _has_draft(replayed) and not best.threshold else {}
    return Option(
        name=name,
        verdict=verdict,
        reason=_reason(verdict, replayed, best.speedup, most, tips, alpha),
        requests=len(replayed),
        draft_len=best.draft_len,
        proposal=best.proposal,
        speedup=best.speedup,
        alpha=alpha,
        acceptance_length=ratio(replayed, "emitted", "blocks"),
        tips_at=tips,
        ceiling=most,
        by_length=by_length,
        over_time=_over_time(stream),
        thirds=_thirds(stream, costs),
        categories=_categories(replayed, costs),
        forecast=_forecast(stream) if name == "kept_learning" else None,
        by_batch={batch: length for batch, (length, _) in by_batch.items()},
        gain_by_batch={batch: gain for batch, (_, gain) in by_batch.items()},
        threshold=best.threshold,
    )


def _has_draft(rows: pd.DataFrame) -> bool:
    """Whether a draft model made a step, and not lookup alone."""
    return bool(rows["steps"].any())


def _own_costs(name: str, rows: pd.DataFrame, costs: BlockCosts) -> BlockCosts:
    """The costs of this option's blocks: those of the draft steps that it takes, and of the search in the loop."""
    if name.startswith(SEARCHES):
        costs = replace(costs, loop=costs.loop + costs.lookup)
    if not _has_draft(rows):
        return replace(costs, step=0 * costs.step, catch_up=0 * costs.catch_up)
    if name.startswith("lookup_first"):
        # The draft makes a step only for the tokens that lookup does not find.
        made = min(float(rows["steps"].sum() / rows["drafted"].sum()), 1.0)
        costs = replace(costs, step=made * costs.step)
    return costs


def _beside(rows: pd.DataFrame, costs: BlockCosts) -> float:
    """What each block with drafted tokens pays for changes between calls and for blocks without, in steps."""
    empty, changes = (float(rows[column].sum() / rows["blocks"].sum()) for column in ("empty", "changes"))
    column = int(rows["draft_len"].iloc[0]) - 1
    beside = changes * costs.change[0, column] + empty * costs.loop[0, column]
    return float(beside / max(1 - empty, 1e-9))


def _reason(
    verdict: Outcome, rows: pd.DataFrame, speedup: Range, most: Ceiling, tips: float | None, alpha: Range
) -> str:
    if few := too_few(rows):
        return few
    if verdict == "yes":
        return f"{speedup.show()} times as fast"
    has_draft = _has_draft(rows)
    if verdict == "no" and most.perfect <= 1:
        gain = f"{most.perfect:.{decimals(most.perfect)}f}"
        return f"no {'draft' if has_draft else 'lookup'} of this cost can help: a perfect one gives {gain}"
    if verdict == "not yet known":
        return f"{speedup.show()} includes 1: use more requests, or a quieter machine"
    if rows["threshold"].iloc[0]:  # what it drafts is accepted, but it drafts little
        drafted = float(rows["drafted"].sum() / rows["blocks"].sum())
        return f"it drafts {drafted:.2f} tokens a block, which save less than they cost: acceptance is {alpha.estimate:.2f}"
    what, it = ("this draft does not help, others could", "a draft") if has_draft else ("it finds too little", "it")
    wanted = f"; {it} would pay off from {tips:.2f}" if tips is not None else ""
    return f"{what}: acceptance is {alpha.estimate:.2f}{wanted}"


def _stream(rows: pd.DataFrame) -> pd.DataFrame:
    """The requests in the order of the log; only the held-out ones if the draft learnt from the others."""
    return rows[rows["split"] == ("train" if (rows["split"] == "train").any() else "eval")]


def _over_time(rows: pd.DataFrame) -> list[Range]:
    """Acceptance in consecutive equal parts of the stream."""
    parts = min(PARTS, len(rows) // 4)
    cuts = np.linspace(0, len(rows), parts + 1).astype(int) if parts > 1 else np.zeros(0, int)
    return [ratio(rows.iloc[start:end], "accepted", "visited") for start, end in itertools.pairwise(cuts)]


def _part(name: str, rows: pd.DataFrame, costs: BlockCosts) -> Part:
    gain = speedup(rows, costs)
    return Part(name=name, requests=len(rows), verdict=outcome(gain, rows), speedup=gain)


def _thirds(rows: pd.DataFrame, costs: BlockCosts) -> list[Part]:
    third = len(rows) // 3
    if third < 2:
        return []
    return [_part("first third", rows.iloc[:third], costs), _part("last third", rows.iloc[-third:], costs)]


def _categories(rows: pd.DataFrame, costs: BlockCosts) -> list[Part]:
    """Group the requests into a shorter and a longer half, and by language if the log has several."""
    groups = []
    for name, column in (("prompts", "prompt_tokens"), ("answers", "emitted")):
        median = float(rows[column].median())
        shorter, longer = rows[rows[column] <= median], rows[rows[column] > median]
        if len(shorter) and len(longer):
            groups.append((f"{name} of up to {median:g} tokens", shorter))
            groups.append((f"{name} of more than {median:g} tokens", longer))
    languages = list(rows.groupby("language")) if "language" in rows else []
    if len(languages) > 1:
        groups += [(str(name), group) for name, group in languages]
    return [_part(name, group, costs) for name, group in groups if len(group) >= 2]


def _forecast(rows: pd.DataFrame) -> Forecast:
    curve = forecast.fit(rows["accepted"].to_numpy(float), rows["visited"].to_numpy(float))
    if isinstance(curve, str):
        return Forecast(seen=len(rows), refused=curve)
    after = {n: curve.at(n) for n in (times * curve.seen for times in (2, 5, forecast.FURTHEST))}
    enough = curve.enough(GAIN)
    return Forecast(seen=curve.seen, after=after, enough=None if enough is None else round(enough))


def learning(rows: pd.DataFrame, distilled: Option, learnt: Mapping[str, int]) -> Learning:
    """The learning curve at the length of the ``distilled`` draft; ``learnt``: how many requests the draft of each option was distilled on."""
    every = rows[rows["split"] == "eval"]
    draws = {
        n: ratio_draws(at_length(every[every["option"] == option], distilled), "accepted", "visited")
        for option, n in sorted(learnt.items(), key=lambda known: known[1])
    }
    alpha = {n: range_of(drawn) for n, drawn in draws.items()}
    most = max(alpha)
    short = f"{most} requests are too few for a curve; {forecast.LEAST} are needed" if most < forecast.LEAST else ""
    if refused := short or too_few(held_out(rows, distilled)):
        return Learning(alpha=alpha, refused=refused)
    fewer = sorted(alpha)[-2]
    adds = forecast.twice(draws[fewer], draws[most], np.log2(most / fewer))
    return Learning(alpha=alpha, twice_adds=range_of(adds), twice=range_of(draws[most] + adds))


def payback(option: Option, untrained: float, tokens: float, facts: Mapping[str, Any], costs: BlockCosts) -> Option:
    """Add to a trained option the seconds and bytes of its updates, and the number of requests that pays them back.

    **Arguments:**
    - `untrained`: the speed-up of the best option that needs no training, with which it is compared
    - `tokens`: those of a request
    - `facts`: what the updates took
    """
    online = option.name == "kept_learning"
    seconds = float(facts["online" if online else "offline"]["seconds"])
    saved = tokens * costs.seconds * (1 / untrained - 1 / option.speedup.estimate)
    unknown = ""
    if option.requests < ENOUGH:
        unknown = f"not known: fewer than {ENOUGH} requests"
    elif saved > 0 and not costs.is_here:
        unknown = "not known: the update ran on this machine, the requests would run on the profile's"
    paid: dict[str, object] = {
        "update_seconds": seconds,
        "payback_requests": seconds / saved if saved > 0 and not unknown else None,
        "payback_unknown": unknown,
        "recorded_bytes": facts["recorded_bytes"],
        "sent_bytes": facts["draft_bytes"] * (facts["online"]["updates"] if online else 1),
    }
    return option.model_copy(update=paid)
