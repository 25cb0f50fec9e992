"""Whether a draft speeds up the requests of a log: a verdict on each option, with its reason, on parts of the log, and under load."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from draftlab.core.stats import ENOUGH
from draftlab.errors import UserError
from draftlab.serving import forecast, traces
from draftlab.serving.acceptance import alpha_of_length, from_alpha
from draftlab.serving.costs import BlockCosts
from draftlab.serving.load import CONTEXTS, Goal, best_lengths, fitting, sweep
from draftlab.serving.profiles import Profile
from draftlab.serving.speedup import (
    around,
    around_mean,
    break_even,
    ceiling,
    conversations,
    drawn_again,
    mean_context,
    outcome,
    range_of,
    ratio,
    ratio_draws,
    speedup,
    too_few,
)
from draftlab.serving.verdict_format import (
    NAMES,
    AtLength,
    AtLoad,
    Baseline,
    Ceiling,
    Forecast,
    Judged,
    Learning,
    Option,
    Outcome,
    Part,
    Range,
    Verdict,
    decimals,
    per_second,
)

SHARES = (0.25, 0.5, 1.0, 2.0)
"""The loads to simulate, as multiples of the given load."""
ARRIVALS = 200
"""The number of requests of a simulation without a trace."""
GAIN = 0.01
"""A gain in acceptance that is too small to be worth more requests."""
PARTS = 10
"""The number of parts of the stream whose acceptance is reported."""
LOADS = 6
"""The number of simulations of one load, each with other arrivals and requests."""
UNTRAINED = ("lookup", "as_it_comes")
"""The options that need no training."""


def judge(name: str, rows: pd.DataFrame, costs: BlockCosts) -> Option:
    """The verdict on one option from its rows; its parts are thirds of the stream, or of the held-out requests where it learnt the stream."""
    held_out = rows[rows["split"] == "eval"]
    by_length = [
        AtLength(
            draft_len=int(str(length)),
            proposal=str(proposal),
            speedup=speedup(same, costs),
            threshold=float(str(threshold)),
        )
        for (proposal, length, threshold), same in held_out.groupby(["proposal", "draft_len", "threshold"])
    ]
    best = max(by_length, key=lambda at: at.speedup.estimate)
    replayed, stream = _at(held_out, best), _at(_stream(rows), best)
    has_draft = bool(replayed["steps"].any())
    verdict = outcome(best.speedup, replayed)
    model_costs = costs if has_draft else replace(costs, step=0 * costs.step, catch_up=0 * costs.catch_up)
    if name.startswith("lookup"):
        model_costs = replace(model_costs, loop=costs.loop + costs.lookup)
    if name.startswith("lookup_first") and has_draft:
        # The draft makes a step only for the tokens that lookup does not find.
        made = min(float(replayed["steps"].sum() / replayed["drafted"].sum()), 1.0)
        model_costs = replace(model_costs, step=made * costs.step)
    longest = best.model_copy(update={"draft_len": held_out["draft_len"].max()})
    most = ceiling(_at(held_out, longest), model_costs)
    empty, changes = (float(replayed[column].sum() / replayed["blocks"].sum()) for column in ("empty", "changes"))
    length = best.draft_len - 1
    beside = changes * costs.change[0, length] + empty * model_costs.loop[0, length]
    tips = None if best.threshold else break_even(model_costs, float(beside / max(1 - empty, 1e-9)))
    alpha = ratio(replayed, "accepted", "visited")
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
        by_batch=_by_batch(replayed, costs) if has_draft and not best.threshold else {},
        threshold=best.threshold,
    )


def _at(rows: pd.DataFrame, at: AtLength | Option) -> pd.DataFrame:
    """The rows of one draft length, proposal and threshold."""
    same = (rows["proposal"] == at.proposal) & (rows["threshold"] == at.threshold)
    return rows[same & (rows["draft_len"] == at.draft_len)].sort_values("request_id")


def _replayed(rows: pd.DataFrame, option: Option) -> pd.DataFrame:
    """The held-out requests of an option, at its best length."""
    return _at(rows[(rows["split"] == "eval") & (rows["option"] == option.name)], option)


def _reason(
    verdict: Outcome, rows: pd.DataFrame, speedup: Range, most: Ceiling, tips: float | None, alpha: Range
) -> str:
    if few := too_few(rows):
        return few
    if verdict == "yes":
        return f"{speedup.show()} times as fast"
    has_draft = bool(rows["steps"].any())
    if verdict == "no" and most.perfect <= 1:
        gain = f"{most.perfect:.{decimals(most.perfect)}f}"
        return f"no {'draft' if has_draft else 'lookup'} of this cost can help: a perfect one gives {gain}"
    if verdict == "not yet known":
        return f"{speedup.show()} includes 1: use more requests, or a quieter machine"
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


def _by_batch(rows: pd.DataFrame, costs: BlockCosts) -> dict[int, int]:
    """The draft length that emits most tokens a second by batch (0: none), as ``load.best_lengths``, at the context of these requests."""
    context = mean_context(rows)
    nearest = min(CONTEXTS, key=lambda known: abs(known - context))
    alpha = min(float(rows["accepted"].sum() / rows["visited"].sum()), 1.0)
    lengths = best_lengths(_profile_of(rows, costs), from_alpha(alpha))
    lengths = lengths[lengths["context"] == nearest]
    return {int(batch): int(k) for batch, k in zip(lengths["batch"], lengths["best_draft_len"], strict=True)}


def _profile_of(rows: pd.DataFrame, costs: BlockCosts) -> Profile:
    """The hardware with these requests' draft, which makes every step of a block there, and with what their blocks cost beyond the models' calls.

    Where lookup saves the draft some steps, all of its work is as much cheaper instead.
    """
    taken = float(rows["steps"].sum() / (rows["blocks"] * rows["draft_len"]).sum())
    draft = costs.profile.draft.scaled(taken) if taken and costs.profile.draft else None
    column = int(rows["draft_len"].iloc[0]) - 1
    beyond = sum(float(rows[count].sum()) * cost[0, column] for count, cost in around(rows, costs))
    per_block = 1e3 * costs.seconds * beyond / float(rows["blocks"].sum())
    return costs.profile.model_copy(update={"draft": draft, "per_block": per_block})


def _forecast(rows: pd.DataFrame) -> Forecast:
    curve = forecast.fit(rows["accepted"].to_numpy(float), rows["visited"].to_numpy(float))
    if isinstance(curve, str):
        return Forecast(seen=len(rows), refused=curve)
    after = {n: curve.at(n) for n in (times * curve.seen for times in (2, 5, forecast.FURTHEST))}
    ranges = {n: Range(estimate=alpha, low=low, high=high) for n, (alpha, low, high) in after.items()}
    enough = curve.enough(GAIN)
    return Forecast(seen=curve.seen, after=ranges, enough=None if enough is None else round(enough))


def learning(rows: pd.DataFrame, distilled: Option, learnt: Mapping[str, int]) -> Learning:
    """The learning curve at the length of the ``distilled`` draft; ``learnt``: how many requests the draft of each option was distilled on."""
    held_out = rows[rows["split"] == "eval"]
    draws = {
        n: ratio_draws(_at(held_out[held_out["option"] == option], distilled), "accepted", "visited")
        for option, n in sorted(learnt.items(), key=lambda known: known[1])
    }
    alpha = {n: range_of(drawn) for n, drawn in draws.items()}
    most = max(alpha)
    short = f"{most} requests are too few for a curve; {forecast.LEAST} are needed" if most < forecast.LEAST else ""
    if refused := short or too_few(_at(held_out[held_out["option"] == "distilled"], distilled)):
        return Learning(alpha=alpha, refused=refused)
    fewer = sorted(alpha)[-2]
    adds = forecast.twice(draws[fewer], draws[most], np.log2(most / fewer))
    return Learning(alpha=alpha, twice_adds=range_of(adds))


ELSEWHERE = "not known: the update ran on this machine, the requests would run on the profile's"


def payback(options: Sequence[Option], rows: pd.DataFrame, facts: Mapping[str, Any], costs: BlockCosts) -> list[Option]:
    """Add to each trained option the seconds and bytes of its updates, and the number of requests that pays them back compared with the best
    untrained one."""
    held_out = rows[(rows["split"] == "eval") & (rows["option"] == rows["option"].iloc[0])]
    tokens = float(held_out["emitted"].mean())
    untrained = max([1.0, *(option.speedup.estimate for option in options if option.name in UNTRAINED)])
    result = []
    for option in options:
        if option.name not in UNTRAINED:
            online = option.name == "kept_learning"
            seconds = float(facts["online" if online else "offline"]["seconds"])
            sent = facts["draft_bytes"] * (facts["online"]["updates"] if online else 1)
            saved = tokens * costs.seconds * (1 / untrained - 1 / option.speedup.estimate)
            unknown = "" if costs.is_here or saved <= 0 else ELSEWHERE
            unknown = unknown if option.requests >= ENOUGH else f"not known: fewer than {ENOUGH} requests"
            requests = seconds / saved if saved > 0 and not unknown else None
            paid: dict[str, object] = {
                "update_seconds": seconds,
                "payback_requests": requests,
                "payback_unknown": unknown,
            }
            paid |= {"recorded_bytes": facts["recorded_bytes"], "sent_bytes": sent}
            option = option.model_copy(update=paid)
        result.append(option)
    return result


def under_load(
    rows: pd.DataFrame,
    option: Option,
    costs: BlockCosts,
    rate: float | None,
    trace: traces.Arrivals | None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[AtLoad]:
    """The simulated server at and around the given load, for requests drawn from the log: each with its lengths and its acceptance in replay.

    An answer has ``answer_tokens``, which may be more than were recorded; without that column, those that were.
    With a trace, which has lengths of its own, acceptance is drawn from the log in proportion to its tokens.
    """
    replayed = _replayed(rows, option)
    block_lengths = (replayed["emitted"] / replayed["blocks"]).clip(1, option.draft_len + 1)
    alphas = np.array([alpha_of_length(length, option.draft_len) for length in block_lengths])
    share = 1 - float(replayed["empty"].sum() / replayed["blocks"].sum())
    profile = _profile_of(replayed, costs)
    prompts = replayed["prompt_tokens"].to_numpy(int)
    outputs = replayed.get("answer_tokens", replayed["emitted"]).to_numpy().astype(int)
    count = len(replayed)
    requests = fitting(trace or traces.Arrivals(np.zeros(count), prompts, outputs, {}), profile)
    rates = [(rate or (trace.rate if trace else 1.0)) * times for times in SHARES]

    def simulate(draft_lens: Sequence[int], seed: int) -> pd.DataFrame:
        """The speed-up of each draft length (rows) at each rate (columns)."""
        progress(f"simulating {NAMES[option.name]} under load, {seed + 1} of at most {LOADS}")
        rng = np.random.default_rng(seed)
        log = drawn_again(replayed, rng) if seed else np.arange(count)
        acceptance = replace(from_alpha(alphas[log].tolist()), tokens=outputs[log].astype(float))
        own = traces.Arrivals(np.zeros(len(log)), prompts[log], outputs[log], {}, np.arange(len(log)))
        arrivals = requests if trace else traces.poisson(fitting(own, profile), ARRIVALS, 1.0, rng)
        table = sweep(arrivals, rates, profile, acceptance, Goal(), seed=seed, draft_lens=draft_lens, share=share)
        return table.pivot_table(index="draft_len", columns="rate", values="speedup")

    # With more requests in a step longer drafts only pay less than at one request.
    gains = simulate(range(option.draft_len + 1), 0)
    best = {float(str(at)): int(str(gains[at].idxmax())) for at in gains}
    repeats = [simulate(sorted({*best.values()}), seed) for seed in range(1, LOADS) if any(best.values())]
    loads = []
    for at, length in best.items():
        draws = [float(table[at].loc[length]) for table in (gains, *repeats)]
        loads.append(
            AtLoad(
                rate=at,
                draft_len=length,
                speedup=around_mean(np.array(draws)),
                by_length={int(str(k)): float(gain) for k, gain in gains[at].items()},
                left_out=dict(requests.left_out),
            )
        )
    return loads


def _promised_length(replayed: pd.DataFrame) -> Range:
    """``1 + accepted / blocks`` as engines count it: to them, a block for which nothing was drafted is none."""
    blocks = replayed["blocks"] - replayed["empty"]
    return ratio(replayed.assign(tokens=replayed["accepted"] + blocks, drafting=blocks), "tokens", "drafting")


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
    """The verdict on all options for a log; the sentence names the best one."""
    held_out = rows[rows["split"] == "eval"].drop_duplicates("request_id")
    if held_out.empty:
        raise UserError("no request was held out", remedy="give a log of at least two usable requests")
    options = [judge(name, rows[rows["option"] == name], costs) for name in NAMES if (rows["option"] == name).any()]
    options = payback(options, rows, facts, costs)
    options = [
        o.model_copy(update={"learning": learning(rows, o, facts["learnt"])}) if o.name == "distilled" else o
        for o in options
    ]
    ranked = sorted(options, key=lambda option: -option.speedup.estimate)
    good = [option for option in ranked if option.verdict == "yes"]
    load = {}
    if (rate or trace) and not too_few(held_out):
        # The simulated server drafts as many tokens in every block.
        fixed_length = [option for option in ranked if not option.threshold]
        load = {option.name: under_load(rows, option, costs, rate, trace, progress) for option in fixed_length[:2]}
    under, load_sentence = _under_load(*_best_at_load(load)[SHARES.index(1)]) if load else (None, "")
    if load and cut and not trace:
        load_sentence += f" (answers cut at {cut_at} tokens are as long as in the log, if those are longer; --answer-tokens sets the limit)"
    overall: Outcome = "yes" if good else "no" if all(o.verdict == "no" for o in options) else "not yet known"
    top = next(option for option in ranked if option.verdict == overall)
    baseline = Baseline(
        option=top.name,
        draft_len=top.draft_len,
        acceptance_length=_promised_length(_replayed(rows, top)),
        alpha=top.alpha,
        threshold=top.threshold,
    )
    return Verdict(
        **judged.model_dump(),
        requests=options[0].requests,
        conversations=conversations(held_out),
        left_out=dict(left_out),
        cut=cut,
        cut_at=cut_at,
        costs=costs.source,
        parameters=facts.get("parameters", {}),
        step_seconds=costs.seconds,
        cost_ratio={n + 1: float(c) for n, c in enumerate(costs.step[0])},
        verify_ratio={n + 1: float(v) for n, v in enumerate(costs.verify[0])},
        verdict=overall,
        sentence=_sentence(overall, top, is_best=top is ranked[0]) + (", one request at a time" if load else ""),
        best=top.name if good else None,
        options=options,
        load=load,
        load_verdict=under,
        load_sentence=load_sentence,
        monitor=baseline if good else None,
    )


def _sentence(overall: Outcome, top: Option, is_best: bool) -> str:
    name = NAMES[top.name]
    if overall == "yes":
        tokens = f"{top.draft_len} token{'s' if top.draft_len > 1 else ''}"
        length = f"up to {tokens} per block (confidence {top.threshold:g})" if top.threshold else f"{tokens} at once"
        return f"Yes: {name}, {length}, makes this traffic {top.speedup.show()} times as fast"
    if overall == "no":
        return f"No: the best option, {name}, is {top.speedup.show()} times as fast as no draft ({top.reason})"
    return f"Not yet known: {name} {'is the best so far' if is_best else 'may help'} ({top.reason})"


def _under_load(name: str, at: AtLoad) -> tuple[Outcome, str]:
    """The verdict at the given load on the fastest option there, and a sentence."""
    where, gain = (
        f"under a load of {per_second(at.rate)}/s",
        f"{NAMES[name]} makes requests {at.speedup.show()} times as fast",
    )
    if not at.draft_len or at.speedup.high < 1:
        return "no", f"No: {where} requests are fastest without a draft"
    if at.speedup.low > 1:
        return "yes", f"Yes: {where} {gain}, with {at.draft_len} drafted at once"
    return "not yet known", f"Not yet known: {where} {gain}"


def lines(verdict: Verdict) -> list[str]:
    """Lines for a terminal: the answer, each option, the answer under load, what was left out, and what was measured."""
    options = [
        f"{NAMES[option.name]} {option.verdict}" + (f" {option.speedup.show()}" if option.requests >= ENOUGH else "")
        for option in verdict.options
    ]
    load = _best_at_load(verdict.load)
    fastest = [
        f"{per_second(at.rate)}/s {f'{NAMES[name]} {at.speedup.show()}' if at.draft_len and at.speedup.estimate > 1 else 'no draft'}"
        for name, at in load
    ]
    fastest += [f"left out: {count} {why}" for _, at in load[:1] for why, count in at.left_out.items()]
    simulated = [verdict.load_sentence, "Fastest under load: " + "; ".join(fastest)] if load else []
    temperature = f" at {verdict.sampled}" if verdict.temperature else ""
    where = f"One request at a time, {verdict.measured_on}{temperature}; costs {verdict.costs}{verdict.cut_off}"
    left_out = ", ".join(f"{count} {why}" for why, count in verdict.left_out.items())
    return [verdict.sentence, "; ".join(options), *simulated, *([f"Left out: {left_out}"] if left_out else []), where]


def _best_at_load(load: Mapping[str, Sequence[AtLoad]]) -> list[tuple[str, AtLoad]]:
    """For each rate, the option that gains most."""
    loads = [(name, at) for name, loads in load.items() for at in loads]
    by_rate = itertools.groupby(sorted(loads, key=lambda load: load[1].rate), key=lambda load: load[1].rate)
    return [max(group, key=lambda load: load[1].speedup.estimate) for _, group in by_rate]
