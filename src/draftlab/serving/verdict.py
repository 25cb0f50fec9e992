"""Whether a draft speeds up the requests of a log: replayed blocks at measured costs, with an interval, a reason and an upper bound.

``speed-up = sum of tokens / (sum over calls of v(tokens read) + steps of the draft c + what a draft that catches up and calls of changing
size cost more + time between the models' calls)``, all sums over requests, in steps of plain decoding.
The interval is for an equal number of future requests: it resamples the requests of the log, draws future requests from those, and at the same
time draws the costs from one of the moments at which they were probed.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float64

from draftlab.core.settings import Template
from draftlab.core.stats import ENOUGH
from draftlab.core.theory import expected_block_length
from draftlab.errors import UserError
from draftlab.serving import traces
from draftlab.serving.acceptance import alpha_of_length, from_alpha
from draftlab.serving.costs import DRAWS, LONGEST, BlockCosts
from draftlab.serving.load import CONTEXTS, Goal, best_lengths, sweep
from draftlab.serving.verdict_format import (
    NAMES,
    Answer,
    At,
    AtLoad,
    Ceiling,
    Forecast,
    Option,
    Part,
    Promise,
    Range,
    Verdict,
)

if TYPE_CHECKING:
    import pandas as pd

SHARES = (0.25, 0.5, 1.0, 2.0)
"""The loads to simulate, as multiples of the given load."""
ARRIVALS = 200
"""The number of requests of a simulation without a trace."""
GAIN = 0.01
"""A gain in acceptance that is too small to be worth more requests."""
PARTS = 10
"""The number of parts of the stream whose acceptance is reported."""
LOADS = 6
"""The number of simulations of one load, each with its own arrivals and requests."""


@dataclass(frozen=True)
class Asked:
    """What to judge."""

    traffic: Path
    """Prompts, with or without answers."""
    target: str
    """A model folder, a GGUF file or a hub id."""
    draft: tuple[str, ...] = ()
    """The same; several are judged one after the other. Without one, a draft is made from the target's first layers."""
    hardware: str | None = None
    """A profile (as for draftlab load) to use instead of measuring on this machine."""
    load: str | None = None
    """Requests per second, such as 4/s."""
    trace: Path | None = None
    """A file with the arrivals of requests."""
    temperature: int = 0
    """Of the answers: 0 or 1."""
    template: Template | None = None
    """The chat template for prompts to the target; by default its tokenizer's own."""
    scale: str = "traffic"
    """Sizes of the run: a file of workflow/scales."""
    cores: int = 0
    """Cores for the workflow; 0: all."""


def _weights(requests: int, to_come: int = 0, seed: int = 0) -> Float64[np.ndarray, "draws requests"]:
    """How often each request counts in each resample; the first row counts each once.

    With ``to_come``, that many future requests are drawn from each resample.
    """
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(requests, np.full(requests, 1 / requests), DRAWS)
    if to_come:
        drawn = rng.multinomial(to_come, drawn / requests)
    return np.vstack([np.ones(requests), drawn])


def _range(draws: Float64[np.ndarray, " draws"]) -> Range:
    low, high = np.quantile(draws[1:], [0.025, 0.975])
    return Range(estimate=float(draws[0]), low=float(low), high=float(high))


def speedup(rows: pd.DataFrame, costs: BlockCosts, to_come: int = 0) -> Range:
    """The speed-up on ``to_come`` future requests (0: as many as ``rows``) like those of ``rows``, which are all of one option, proposal and length."""
    place = int(rows["draft_len"].iloc[0]) - 1
    full = (rows["blocks"] - rows["empty"]).to_numpy()
    mean = np.divide(rows["drafted"].to_numpy(), full, out=np.zeros(len(rows)), where=full > 1e-9)
    below = np.floor(mean).astype(int).clip(0, LONGEST)
    share = mean - below
    calls = np.zeros((len(rows), LONGEST + 2))  # by tokens read, less one
    request = np.arange(len(rows))
    calls[request, 0] += rows["empty"]
    calls[request, below] += full * (1 - share)
    calls[request, below + 1] += full * share
    weights = _weights(len(rows), to_come or len(rows))
    seconds = (weights @ calls[:, :-1] * costs.verify).sum(axis=1)
    counted = [("steps", costs.step), ("whole", costs.catch_up), ("changes", costs.change), ("blocks", costs.loop)]
    if str(rows["option"].iloc[0]).startswith("lookup"):
        counted.append(("blocks", costs.lookup))
    for name, each in counted:
        seconds = seconds + weights @ rows[name].to_numpy() * each[:, place]
    return _range(weights @ rows["emitted"].to_numpy() / seconds)


def _ratio(rows: pd.DataFrame, above: str, below: str) -> Range:
    weights = _weights(len(rows))
    return _range((weights @ rows[above].to_numpy()) / np.maximum(weights @ rows[below].to_numpy(), 1e-12))


def answer(found: Range, requests: int) -> Answer:
    """``yes`` above 1, ``no`` below it; ``not yet known`` if the interval includes 1 or there are too few requests."""
    if requests < ENOUGH or found.low <= 1 <= found.high:
        return "not yet known"
    return "yes" if found.low > 1 else "no"


def ceiling(rows: pd.DataFrame, costs: BlockCosts) -> Ceiling:
    """The best possible speed-up at these costs, and with more drafts from this distribution."""
    lengths = range(1, LONGEST + 1)
    alphas = {}
    for drafts in (2, 4):
        known = rows[rows[f"optimum_{drafts}"].notna()]
        if len(known):
            alphas[drafts] = min(float(known[f"optimum_{drafts}"].sum() / known["emitted"].sum()), 1.0)
    at_most = {k: max(expected_block_length(a, n) / costs.block(n, a**n) for n in lengths) for k, a in alphas.items()}
    return Ceiling(perfect=max((n + 1) / costs.block(n, 1.0) for n in lengths), optimum_alpha=alphas, optimum=at_most)


def tips_at(costs: BlockCosts) -> float | None:
    """The smallest acceptance at which a draft of this cost pays off at some length; None if there is none."""
    blocks = {n: costs.block(n) for n in range(1, LONGEST + 1)}
    found = [alpha_of_length(max(block, 1.0), n) for n, block in blocks.items() if block <= n + 1]
    return min(found) if found else None


def judge(name: str, rows: pd.DataFrame, costs: BlockCosts) -> Option:
    """The verdict on one option from its rows; its parts are thirds of the stream, or of the held-out requests where it learnt the stream."""
    held_out = rows[rows["split"] == "eval"]
    by_length = []
    for (proposal, length, threshold), own in held_out.groupby(["proposal", "draft_len", "threshold"]):
        found = speedup(own, costs)
        at = At(draft_len=int(str(length)), proposal=str(proposal), speedup=found, threshold=float(str(threshold)))
        by_length.append(at)
    best = max(by_length, key=lambda at: at.speedup.estimate)
    own = _at(held_out, best)
    requests, found = len(own), best.speedup
    verdict = answer(found, requests)
    free = costs if own["steps"].any() else _without_steps(costs)
    most, tips = ceiling(_at(held_out, best, longest=True), free), None if best.threshold else tips_at(free)
    alpha = _ratio(own, "accepted", "visited")
    return Option(
        name=name,
        verdict=verdict,
        reason=_reason(verdict, requests, found, most, tips, alpha),
        requests=requests,
        draft_len=best.draft_len,
        proposal=best.proposal,
        speedup=found,
        alpha=alpha,
        acceptance_length=_ratio(own, "emitted", "blocks"),
        tips_at=tips,
        ceiling=most,
        by_length=by_length,
        over_time=_over_time(_at(_stream(rows), best)),
        thirds=_thirds(_at(_stream(rows), best), costs),
        categories=_categories(own, costs),
        forecast=_forecast(_at(_stream(rows), best)) if name == "kept_learning" else None,
        by_batch=_by_batch(own, costs) if own["steps"].any() and not best.threshold else {},
        threshold=best.threshold,
    )


def _at(rows: pd.DataFrame, best: At, longest: bool = False) -> pd.DataFrame:
    draft_len = rows["draft_len"].max() if longest else best.draft_len
    same = (rows["proposal"] == best.proposal) & (rows["threshold"] == best.threshold)
    return rows[same & (rows["draft_len"] == draft_len)].sort_values("request_id")


def _without_steps(costs: BlockCosts) -> BlockCosts:
    return replace(costs, step=np.zeros_like(costs.step), catch_up=np.zeros_like(costs.catch_up))


def _reason(verdict: Answer, requests: int, found: Range, most: Ceiling, tips: float | None, alpha: Range) -> str:
    if requests < ENOUGH:
        return f"{requests} usable requests; {ENOUGH} are needed"
    if verdict == "yes":
        return f"{found.show()} times as fast"
    if most.perfect <= 1:
        return f"no draft of this cost can help: a perfect one gives {most.perfect:.2f}"
    if verdict == "not yet known":
        return f"{found.show()} includes 1: use more requests, or a quieter machine"
    if most.optimum and max(most.optimum.values()) <= 1:
        return f"no number of drafts like this one can help: four at their optimum give at most {max(most.optimum.values()):.2f}"
    wanted = f"; a draft would pay off from {tips:.2f}" if tips is not None else ""
    return f"this draft does not help, others could: acceptance is {alpha.estimate:.2f}{wanted}"


def _stream(rows: pd.DataFrame) -> pd.DataFrame:
    """The requests in the order of the log; only the held-out ones if the draft learnt from the others."""
    return rows[rows["split"] == ("train" if (rows["split"] == "train").any() else "eval")]


def _over_time(rows: pd.DataFrame) -> list[Range]:
    """Acceptance in consecutive equal parts of the stream."""
    parts = min(PARTS, len(rows) // 4)
    cuts = np.linspace(0, len(rows), parts + 1).astype(int) if parts > 1 else np.zeros(0, int)
    return [_ratio(rows.iloc[begin:end], "accepted", "visited") for begin, end in itertools.pairwise(cuts)]


def _thirds(rows: pd.DataFrame, costs: BlockCosts) -> list[Part]:
    third = len(rows) // 3
    if third < 2:
        return []
    return [_part("first third", rows.iloc[:third], costs), _part("last third", rows.iloc[-third:], costs)]


def _by_batch(rows: pd.DataFrame, costs: BlockCosts) -> dict[int, int]:
    """The draft length that emits most tokens a second by batch (0: none), as ``load.best_lengths``, at the context of these requests."""
    context = float((rows["prompt_tokens"] + rows["emitted"] / 2).mean())
    near = min(CONTEXTS, key=lambda known: abs(known - context))
    found = best_lengths(costs.profile, from_alpha(min(float(rows["accepted"].sum() / rows["visited"].sum()), 1.0)))
    found = found[found["context"] == near]
    return {int(batch): int(k) for batch, k in zip(found["batch"], found["best_draft_len"], strict=True)}


def _forecast(rows: pd.DataFrame) -> Forecast:
    from draftlab.serving import forecast

    curve = forecast.fit(rows["accepted"].to_numpy(float), rows["visited"].to_numpy(float))
    if isinstance(curve, str):
        return Forecast(seen=len(rows), refused=curve)
    after = {n: curve.at(n) for n in (times * curve.seen for times in (2, 5, forecast.FURTHEST))}
    ranges = {n: Range(estimate=alpha, low=low, high=high) for n, (alpha, low, high) in after.items()}
    enough = curve.enough(GAIN)
    return Forecast(seen=curve.seen, after=ranges, enough=None if enough is None else round(enough))


def _part(name: str, rows: pd.DataFrame, costs: BlockCosts) -> Part:
    found = speedup(rows, costs)
    return Part(name=name, requests=len(rows), verdict=answer(found, len(rows)), speedup=found)


def _categories(rows: pd.DataFrame, costs: BlockCosts) -> list[Part]:
    """Group the requests into a shorter and a longer half, and by language if the log has several."""
    found = []
    for name, column in (("prompts", "prompt_tokens"), ("answers", "emitted")):
        middle = float(rows[column].median())
        sides = (("of up to", rows[column] <= middle), ("of more than", rows[column] > middle))
        if all(own.any() for _, own in sides):
            found += [(f"{name} {words} {middle:g} tokens", rows[own]) for words, own in sides]
    if "language" in rows:
        languages = list(rows.groupby("language"))
        found += [(str(name), own) for name, own in languages if len(languages) > 1]
    return [_part(name, own, costs) for name, own in found if len(own) >= 2]


def payback(options: Sequence[Option], rows: pd.DataFrame, facts: Mapping[str, Any], costs: BlockCosts) -> list[Option]:
    """Add to each trained option the seconds of its updates, and the number of requests that pays them back compared with the best untrained one."""
    trained = [name for name in NAMES if name not in ("lookup", "as_it_comes")]
    spent = {name: facts["online" if name == "kept_learning" else "offline"] for name in trained}
    held_out = rows[(rows["split"] == "eval") & (rows["option"] == rows["option"].iloc[0])]
    tokens = float(held_out["emitted"].mean())
    free = max([1.0, *(own.speedup.estimate for own in options if own.name not in spent)])
    found = []
    for own in options:
        if own.name not in spent or costs.seconds is None:
            found.append(own)
            continue
        seconds = float(spent[own.name]["seconds"])
        saved = tokens * costs.seconds * (1 / free - 1 / own.speedup.estimate)
        back = seconds / saved if saved > 0 and own.requests >= ENOUGH else None
        found.append(own.model_copy(update={"update_seconds": seconds, "payback_requests": back}))
    return found


def under_load(
    rows: pd.DataFrame, option: Option, costs: BlockCosts, rate: float | None, trace: traces.Arrivals | None
) -> list[AtLoad]:
    """The simulated server at and around the given load; each request has the acceptance that it had in replay."""
    own = _at(rows[(rows["split"] == "eval") & (rows["option"] == option.name)], option_at(option))
    lengths = (own["emitted"] / own["blocks"]).clip(1, option.draft_len + 1)
    alphas = np.array([alpha_of_length(length, option.draft_len) for length in lengths])
    share = 1 - float(own["empty"].sum() / own["blocks"].sum())
    profile = costs.profile if own["steps"].any() else costs.profile.model_copy(update={"draft": None})
    prompts, outputs = own["prompt_tokens"].to_numpy(int), own["emitted"].to_numpy().astype(int)
    rates = [(rate or (trace.rate if trace else 1.0)) * times for times in SHARES]

    def simulate(draft_lens: Sequence[int], seed: int) -> pd.DataFrame:
        rng = np.random.default_rng(seed)
        drawn = rng.choice(alphas, len(alphas)) if seed else alphas
        arrivals = trace or traces.poisson(
            traces.Arrivals(np.zeros(len(own)), prompts, outputs, {}), ARRIVALS, 1.0, rng
        )
        acceptance = from_alpha(drawn.tolist())
        return sweep(arrivals, rates, profile, acceptance, Goal(), seed=seed, draft_lens=draft_lens, share=share)

    # With more requests in a step longer drafts only pay less than at one request.
    gains = simulate(range(option.draft_len + 1), 0).pivot_table(index="draft_len", columns="rate", values="speedup")
    best = {float(str(at)): int(str(gains[at].idxmax())) for at in gains}
    lengths_again = sorted(set(best.values()) - {0})
    again = [simulate(lengths_again, seed) for seed in range(1, LOADS) if lengths_again]
    found = []
    for at, length in best.items():
        others = [
            t.loc[(t["rate"] == at) & (t["draft_len"] == length), "speedup"].iloc[0] if length else 1.0 for t in again
        ]
        draws = [float(gains[at].loc[length]), *others]
        own_range = _range(np.array([np.mean(draws), *draws]))
        found.append(
            AtLoad(
                rate=at,
                draft_len=length,
                speedup=own_range,
                by_length={int(str(k)): float(gain) for k, gain in gains[at].items()},
            )
        )
    return found


def option_at(option: Option) -> At:
    """The length and proposal that an option was judged at."""
    return At(draft_len=option.draft_len, proposal=option.proposal, speedup=option.speedup, threshold=option.threshold)


def decide(
    rows: pd.DataFrame,
    costs: BlockCosts,
    facts: Mapping[str, Any],
    *,
    log: str,
    target: str,
    draft: str,
    temperature: float,
    left_out: Mapping[str, int],
    cut: int = 0,
    rate: float | None = None,
    trace: traces.Arrivals | None = None,
) -> Verdict:
    """The verdict on all options for a log; the sentence names the best one."""
    options = [judge(name, rows[rows["option"] == name], costs) for name in NAMES if (rows["option"] == name).any()]
    if not options or not options[0].requests:
        raise UserError("no request was held out", remedy="give a log of at least two usable requests")
    options = payback(options, rows, facts, costs)
    ranked = sorted(options, key=lambda own: -own.speedup.estimate)
    good = [own for own in ranked if own.verdict == "yes"]
    load = {}
    if (rate or trace) and options[0].requests >= ENOUGH:
        fixed = [
            own for own in ranked if not own.threshold
        ]  # the simulated server drafts as many tokens in every block
        load = {own.name: under_load(rows, own, costs, rate, trace) for own in fixed[:2]}
    overall: Answer = "yes" if good else "no" if all(own.verdict == "no" for own in options) else "not yet known"
    top = good[0] if good else ranked[0]
    return Verdict(
        log=log,
        target=target,
        draft=draft,
        temperature=temperature,
        requests=options[0].requests,
        left_out=dict(left_out),
        cut=cut,
        costs=costs.source,
        step_seconds=costs.seconds,
        cost_ratio={n + 1: float(c) for n, c in enumerate(costs.step[0])},
        verify_ratio={n + 1: float(v) for n, v in enumerate(costs.verify[0])},
        verdict=overall,
        sentence=_sentence(overall, top),
        best=top.name if good else None,
        options=options,
        load=load,
        monitor=Promise(
            option=top.name,
            draft_len=top.draft_len,
            acceptance_length=top.acceptance_length,
            alpha=top.alpha,
            threshold=top.threshold,
        )
        if good
        else None,
    )


def _sentence(overall: Answer, top: Option) -> str:
    name = NAMES[top.name]
    if overall == "yes":
        tokens = f"{top.draft_len} token{'s' if top.draft_len > 1 else ''}"
        length = f"up to {tokens} per block (confidence {top.threshold:g})" if top.threshold else f"{tokens} at once"
        return f"Yes: {name}, {length}, makes this traffic {top.speedup.show()} times as fast"
    if overall == "no":
        return f"No: the best option, {name}, is {top.speedup.show()} times as fast as no draft ({top.reason})"
    return f"Not yet known: {name} is the best so far ({top.reason})"


def lines(found: Verdict) -> list[str]:
    """Three lines for a terminal: the answer, each option, and the load or what was measured."""
    options = [
        f"{NAMES[own.name]} {own.verdict}" + (f" {own.speedup.show()}" if own.requests >= ENOUGH else "")
        for own in found.options
    ]
    fastest = [
        f"{at.rate:.3g}/s {NAMES[name] + f' {at.speedup.show()}' if name else 'no draft'}"
        for name, at in best_at_load(found)
    ]
    where = f"One request at a time, {found.requests} held-out requests; costs {found.costs}"
    return [found.sentence, "; ".join(options), "Fastest under load: " + "; ".join(fastest) if fastest else where]


def best_at_load(found: Verdict) -> list[tuple[str, AtLoad]]:
    """For each rate, the option that gains most, and its gain; '' if none gains."""
    every = [(name, at) for name, loads in found.load.items() for at in loads]
    rates = sorted({at.rate for _, at in every})
    best = [max(((n, at) for n, at in every if at.rate == r), key=lambda o: o[1].speedup.estimate) for r in rates]
    return [(name if at.draft_len else "", at) for name, at in best]
