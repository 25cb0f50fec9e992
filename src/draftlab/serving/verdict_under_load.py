"""The verdict under load: an option in a simulated server that serves many requests at once, and its draft length for each batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int

from draftlab.serving import traces
from draftlab.serving.acceptance import alphas_of_blocks, from_alpha
from draftlab.serving.costs import BlockCosts
from draftlab.serving.profiles import Profile
from draftlab.serving.speedup import held_out, mean_context, other_costs, range_of_few, resampled
from draftlab.serving.sweep import CONTEXTS, Goal, best_lengths, capacity, sweep, that_fit
from draftlab.serving.verdict_format import NAMES, AtLoad, Option, Outcome, Range, per_second

SHARES = (0.25, 0.5, 1.0, 2.0)
"""The loads to simulate, as multiples of the given load."""
ARRIVALS = 200
"""The number of requests of a simulation without a trace."""
OF_A_TRACE = 1000
"""The most requests of a trace that are simulated: all loads and lengths together take about 0.1 s for each."""
FULL = 4
"""How often all places of the server are filled, to see how many requests a second it can serve."""
LOADS = 6
"""The number of simulations of one load, each with other arrivals and requests."""


def under_load(
    rows: pd.DataFrame,
    option: Option,
    costs: BlockCosts,
    rate: float,
    trace: traces.Arrivals | None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[AtLoad]:
    """The simulated server at and around a load of ``rate``, for requests drawn from the log: each with its lengths and its acceptance in replay.

    An answer has ``answer_tokens``, which may be more than were recorded; without that column, those that were.
    With a trace, which has lengths of its own, acceptance is drawn from the log in proportion to its tokens. Only its first ``OF_A_TRACE``
    requests are simulated.
    """
    replayed = held_out(rows, option)
    alphas, shares = _acceptance_by_length(rows, option)
    profile = _profile_of(replayed, costs)
    prompts = replayed["prompt_tokens"].to_numpy(int)
    outputs = replayed.get("answer_tokens", replayed["emitted"]).to_numpy().astype(int)
    every = np.arange(len(replayed))
    rates = [rate * times for times in SHARES]

    def logged(chosen: Int[np.ndarray, " some"]) -> traces.Arrivals:
        """The chosen requests of the log that fit the cache, each with its own acceptance, all at once."""
        seconds, own = np.zeros(len(chosen)), np.arange(len(chosen))
        return that_fit(traces.Arrivals(seconds, prompts[chosen], outputs[chosen], {}, own), profile)

    from_trace = that_fit(_first_of(trace), profile) if trace else None

    def simulate(draft_lens: Sequence[int], seed: int) -> pd.DataFrame:
        """The speed-up of each draft length (rows) at each rate (columns)."""
        progress(f"simulating {NAMES[option.name]} under load, {seed + 1} of at most {LOADS}")
        rng = np.random.default_rng(seed)
        chosen = resampled(replayed, rng) if seed else every
        arrivals = from_trace or traces.poisson(logged(chosen), ARRIVALS, 1.0, rng)
        tables = []
        for k in draft_lens:
            acceptance = replace(from_alpha(alphas[k][chosen].tolist()), tokens=outputs[chosen].astype(float))
            at_k = sweep(arrivals, rates, profile, acceptance, Goal(), seed=seed, draft_lens=[k], share=shares[k])
            tables.append(at_k)
        table = pd.concat(tables)  # the server without drafts is in each
        return table.pivot_table(index="draft_len", columns="rate", values="speedup")

    # With more requests in a step longer drafts only pay less than at one request.
    gains = simulate(range(1, option.draft_len + 1), 0)
    best = {float(str(at)): int(str(gains[at].idxmax())) for at in gains}
    drafting = sorted({*best.values()} - {0})
    repeats = [simulate(drafting, seed) for seed in range(1, LOADS) if drafting]
    left_out = dict((from_trace or logged(every)).left_out)
    full = from_trace or logged(np.resize(every, max(len(every), FULL * profile.max_sequences)))
    most = capacity(full, profile)
    return [
        AtLoad(
            rate=at,
            draft_len=length,
            speedup=range_of_few(np.array([float(table[at].loc[length]) for table in (gains, *repeats)])),
            by_length={int(str(k)): float(gain) for k, gain in gains[at].items()},
            left_out=left_out,
            overloaded=at > most,
        )
        for at, length in best.items()
    ]


def _first_of(trace: traces.Arrivals) -> traces.Arrivals:
    """The first ``OF_A_TRACE`` requests of a trace; the others are counted as left out."""
    beyond = len(trace.seconds) - OF_A_TRACE
    if beyond <= 0:
        return trace
    left_out = {**trace.left_out, f"after the first {OF_A_TRACE:,} of the trace": beyond}
    return replace(trace.take(np.arange(OF_A_TRACE)), left_out=left_out)


def _acceptance_by_length(
    rows: pd.DataFrame, option: Option
) -> tuple[Float64[np.ndarray, "lengths requests"], Float64[np.ndarray, " lengths"]]:
    """For draft lengths from 0 to the option's: the alpha of each request, and the share of blocks for which something was drafted.

    Lookup finds long runs or nothing, so one alpha would not do for all lengths. Those that were not replayed lie between their neighbours.
    """
    known = sorted({int(k) for k in rows.loc[rows["option"] == option.name, "draft_len"] if k <= option.draft_len})
    alphas, shares = [], []
    for k in known:
        replayed = held_out(rows, option.model_copy(update={"draft_len": k}))
        emitted = replayed["emitted"].to_numpy().astype(int)
        alphas.append(alphas_of_blocks(replayed["blocks"].to_numpy(), emitted, k))
        shares.append(1 - float(replayed["empty"].sum() / replayed["blocks"].sum()))
    lengths = np.arange(option.draft_len + 1)
    by_request = [np.interp(lengths, known, own) for own in np.stack(alphas, axis=1)]
    return np.stack(by_request, axis=1), np.interp(lengths, known, shares)


def best_at_load(load: Mapping[str, Sequence[AtLoad]]) -> list[tuple[str, AtLoad]]:
    """For each rate, the option that gains most."""
    loads = [(name, at) for name, loads in load.items() for at in loads]
    by_rate = itertools.groupby(sorted(loads, key=lambda load: load[1].rate), key=lambda load: load[1].rate)
    return [max(group, key=lambda load: load[1].speedup.estimate) for _, group in by_rate]


def outcome_at_load(name: str, at: AtLoad) -> tuple[Outcome, str]:
    """The verdict at a load on the option that is fastest there, and a sentence."""
    where = f"under a load of {per_second(at.rate)}/s"
    where += ", more than the server takes without a draft," if at.overloaded else ""
    gain = f"{NAMES[name]} makes requests {at.speedup.show()} times as fast"
    if not at.draft_len or at.speedup.high < 1:
        return "no", f"No: {where} requests are fastest without a draft"
    if at.speedup.low > 1:
        return "yes", f"Yes: {where} {gain}, with {at.draft_len} drafted at once"
    return "not yet known", f"Not yet known: {where} {gain}"


def best_by_batch(rows: pd.DataFrame, costs: BlockCosts, longest: int) -> dict[int, tuple[int, Range]]:
    """By batch, the draft length up to ``longest`` that emits most tokens a second (0: none) and its speed-up, with an interval over requests.

    As in ``sweep.best_lengths``, at the context of these requests; each has the acceptance at which its answer takes as many blocks as in replay.
    """
    context = mean_context(rows)
    nearest = min(CONTEXTS, key=lambda known: abs(known - context))
    emitted = rows["emitted"].to_numpy()
    alphas = alphas_of_blocks(rows["blocks"].to_numpy(), emitted.astype(int), int(rows["draft_len"].iloc[0]))
    acceptance = replace(from_alpha(alphas.tolist()), tokens=emitted.astype(float), requests=len(rows))
    lengths = best_lengths(_profile_of(rows, costs), acceptance, range(longest + 1))
    return {
        int(row["batch"]): (
            int(row["best_draft_len"]),
            Range(estimate=row["speedup"], low=row["speedup_low"], high=row["speedup_high"]),
        )
        for row in lengths[lengths["context"] == nearest].to_dict("records")
    }


def _profile_of(rows: pd.DataFrame, costs: BlockCosts) -> Profile:
    """The hardware with these requests' draft, which makes every step of a block there, and with what their blocks cost beyond the models' calls.

    Where lookup saves the draft some steps, all of its work is as much cheaper instead.
    """
    taken = float(rows["steps"].sum() / (rows["blocks"] * rows["draft_len"]).sum())
    draft = costs.profile.draft.scaled(taken) if taken and costs.profile.draft else None
    column = int(rows["draft_len"].iloc[0]) - 1
    beyond = sum(float(rows[count].sum()) * cost[0, column] for count, cost in other_costs(rows, costs))
    per_block = 1e3 * costs.seconds * beyond / float(rows["blocks"].sum())
    return costs.profile.model_copy(update={"draft": draft, "per_block": per_block})
