"""Whether a draft speeds up the requests of a log: the verdict on all options together, and under load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from draftlab.core.stats import ENOUGH
from draftlab.errors import UserError
from draftlab.serving import traces
from draftlab.serving.costs import BlockCosts
from draftlab.serving.speedup import conversations, held_out, ratio, too_few
from draftlab.serving.verdict_format import (
    NAMES,
    SEARCHES,
    Judged,
    MonitorPromise,
    Option,
    Outcome,
    Range,
    Verdict,
    per_second,
)
from draftlab.serving.verdict_on_option import judge, learning, payback
from draftlab.serving.verdict_under_load import SHARES, best_at_load, outcome_at_load, under_load

UNTRAINED = ("lookup", "suffix", "suffix_confident", "as_it_comes")
"""The options that need no training."""


def decide(
    rows: pd.DataFrame,
    costs: BlockCosts,
    facts: Mapping[str, Any],
    judged: Judged,
    *,
    left_out: Mapping[str, int],
    cut: int = 0,
    cut_at: int = 0,
    rate: float | None = None,
    trace: traces.Arrivals | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Verdict:
    """The verdict on all options for a log; the sentence names the best one.

    **Arguments:**
    - `rows`: the table of the stage `replay_log`, if known with a `language`, a `conversation` and `answer_tokens` for each request
    - `facts`: what that stage says of its run, with `recorded_bytes` and `draft_bytes`
    - `judged`: the log, the models and the sampling
    - `left_out`: how many requests of the log were not used, by reason
    - `cut`, `cut_at`: how many held-out answers reached the limit, and how many tokens that is
    - `rate`, `trace`: the load, in requests a second, and when requests arrive; without both, there is no verdict under load

    **Raises:** `UserError` if no request was held out.
    """
    requests = rows[rows["split"] == "eval"].drop_duplicates("request_id")
    if requests.empty:
        raise UserError("no request was held out", remedy="give a log of at least two usable requests")
    options, longest = _options(rows, costs, facts), int(rows["draft_len"].max())
    ranked = sorted(options, key=lambda option: -option.speedup.estimate)
    good = [option for option in ranked if option.verdict == "yes"]
    load = {}
    rate = rate or (trace.rate if trace else None)
    if rate and not too_few(requests):
        # The simulated server drafts as many tokens in every block; suffix decoding drafts no more than its pattern has.
        fixed_length = [option for option in ranked if not (option.threshold or option.name.startswith("suffix"))]
        load = {
            option.name: under_load(rows, option, costs_of(option.name, costs, facts), rate, trace, progress)
            for option in fixed_length[:2]
        }
    load_verdict, load_sentence = outcome_at_load(*best_at_load(load)[SHARES.index(1)]) if load else (None, "")
    if load and cut and not trace:
        load_sentence += f" (answers cut at {cut_at} tokens are as long as in the log, if those are longer; --answer-tokens sets the limit)"
    if load and trace and trace.repeated >= traces.REPEATED:
        load_sentence += f" (prompts are read whole, though {trace.repeated:.0%} of their tokens repeat the beginning of an earlier one)"
    overall: Outcome = "yes" if good else "no" if all(o.verdict == "no" for o in options) else "not yet known"
    top = next(option for option in ranked if option.verdict == overall)
    promise = MonitorPromise(
        option=top.name,
        draft_len=top.draft_len,
        acceptance_length=_promised_length(held_out(rows, top)),
        requests=top.requests,
        alpha=top.alpha,
        threshold=top.threshold,
        by_length={
            at.draft_len: _promised_length(held_out(rows, top.model_copy(update={"draft_len": at.draft_len})))
            for at in top.by_length
            if at.draft_len in top.by_batch.values() and at.draft_len != top.draft_len
            if (at.proposal, at.threshold) == (top.proposal, top.threshold)
        },
    )
    return Verdict(
        **judged.model_dump(),
        requests=options[0].requests,
        conversations=conversations(requests),
        left_out=dict(left_out),
        cut=cut,
        cut_at=cut_at,
        costs=costs.source,
        costs_vary=costs.is_here,
        parameters=facts.get("parameters", {}),
        step_seconds=costs.seconds,
        cost_ratio={n + 1: float(c) for n, c in enumerate(costs.step[0, :longest])},
        verify_ratio={n + 1: float(v) for n, v in enumerate(costs.verify[0, : longest + 1])},
        verdict=overall,
        sentence=_sentence(overall, top, is_best=top is ranked[0]) + (", one request at a time" if load else ""),
        best=top.name if good else None,
        options=options,
        load=load,
        load_verdict=load_verdict,
        load_sentence=load_sentence,
        monitor=promise if good else None,
    )


def _options(rows: pd.DataFrame, costs: BlockCosts, facts: Mapping[str, Any]) -> list[Option]:
    """The verdict on each option; one that is trained is compared with the best that is not, and has its learning curve if it was distilled."""
    names = [name for name in NAMES if (rows["option"] == name).any()]
    options = [judge(name, rows[rows["option"] == name], costs_of(name, costs, facts)) for name in names]
    untrained = max([1.0, *(option.speedup.estimate for option in options if option.name in UNTRAINED)])
    first = rows[(rows["split"] == "eval") & (rows["option"] == rows["option"].iloc[0])]
    # An answer that was cut would save over its whole length.
    tokens = float(first.get("answer_tokens", first["emitted"]).mean())
    options = [o if o.name in UNTRAINED else payback(o, untrained, tokens, facts, costs) for o in options]
    return [
        o.model_copy(update={"learning": learning(rows, o, facts["learnt"])}) if o.name == "distilled" else o
        for o in options
    ]


def costs_of(name: str, costs: BlockCosts, facts: Mapping[str, Any]) -> BlockCosts:
    """The costs of an option: suffix decoding searches longer than a lookup. An engine of a profile searches while its device computes."""
    if not name.startswith("suffix") or not costs.is_here:
        return costs
    return replace(costs, lookup=np.full_like(costs.lookup, facts["search_seconds"] / costs.seconds))


def _promised_length(replayed: pd.DataFrame) -> Range:
    """``1 + accepted / blocks`` as engines count it: to them, a block for which nothing was drafted is none."""
    blocks = replayed["blocks"] - replayed["empty"]
    return ratio(replayed.assign(tokens=replayed["accepted"] + blocks, drafting=blocks), "tokens", "drafting")


def _sentence(overall: Outcome, top: Option, is_best: bool) -> str:
    name = NAMES[top.name]
    if overall == "yes":
        tokens = f"{top.draft_len} token{'s' if top.draft_len > 1 else ''}"
        length = f"{tokens} at once"
        if top.threshold or top.name in SEARCHES:
            length = f"up to {tokens} per block" + (f" (confidence {top.threshold:g})" if top.threshold else "")
        return f"Yes: {name}, {length}, makes this traffic {top.speedup.show()} times as fast"
    if overall == "no":
        return f"No: the best option, {name}, is {top.speedup.show()} times as fast as no draft ({top.reason})"
    return f"Not yet known: {name} {'is the best so far' if is_best else 'may help'} ({top.reason})"


def lines(verdict: Verdict) -> list[str]:
    """Lines for a terminal: the answer, each option, the answer under load, what was left out, and what was measured."""
    names = max(len(NAMES[option.name]) for option in verdict.options)
    verdicts = max(len(option.verdict) for option in verdict.options)
    options = [
        f"  {NAMES[option.name]:{names}}  {option.verdict:{verdicts}}  {option.speedup.show()}"
        if option.requests >= ENOUGH
        else f"  {NAMES[option.name]:{names}}  {option.verdict}"
        for option in verdict.options
    ]
    load = best_at_load(verdict.load)
    fastest = []
    for name, at in load:
        gains = at.draft_len and at.speedup.estimate > 1
        text = f"{per_second(at.rate)}/s " + (f"{NAMES[name]} {at.speedup.show()}" if gains else "no draft")
        fastest.append(text + (" (overloaded without a draft)" if at.overloaded else ""))
    fastest += [f"left out: {count} {why}" for _, at in load[:1] for why, count in at.left_out.items()]
    simulated = [verdict.load_sentence, "Fastest under load: " + "; ".join(fastest)] if load else []
    temperature = f" at {verdict.sampled}" if verdict.temperature else ""
    where = f"One request at a time, {verdict.measured_on}{temperature}; costs {verdict.costs}{verdict.cut_off}"
    left_out = ", ".join(f"{count} {why}" for why, count in verdict.left_out.items())
    return [verdict.sentence, *options, *simulated, *([f"Left out: {left_out}"] if left_out else []), where]
