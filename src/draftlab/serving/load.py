"""``draftlab load``: how speculation changes latency and throughput as the load grows, for each draft length."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from draftlab.core.settings import Flat
from draftlab.core.stats import ENOUGH
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path, write_text
from draftlab.files.json_files import write_json
from draftlab.serving import profiles, records, traces
from draftlab.serving.acceptance import EXTRAPOLATED, LONGEST, AcceptanceCurves, from_alpha
from draftlab.serving.profiles import Profile
from draftlab.serving.sweep import CONTEXTS, DRAFT_LENS, Goal, best_lengths, capacity, crossing, sweep, that_fit
from draftlab.serving.verdict_format import Range, per_second

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def summary(table: pd.DataFrame, lengths: pd.DataFrame, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a sweep for other programs: facts, the best length by rate, crossings, the best by batch and context.

    A speed-up has its 95 % interval. That of a crossing has the rates up to which a length pays off by either end of the speed-up's.
    """
    known = float(table["requests"].min()) >= ENOUGH
    best = table.loc[table.groupby("rate")["speedup"].idxmax()]
    waits = table[table["draft_len"] == 0].set_index("rate")["to_first_mean"]
    hopes = table[table["draft_len"] > 0].groupby("rate")["speedup_high"].max().reindex(best["rate"], fill_value=0.0)
    by_rate = [
        {
            "rate": row["rate"],
            "draft_len": int(row["draft_len"]),
            **{name: row[name] for name in SPEEDUP},
            "pays_off": "yes" if row["speedup_low"] > 1 else "not yet known" if hopes[row["rate"]] >= 1 else "no",
            "overloaded": bool(row["rate"] > 0.99 * facts["capacity"] and waits[row["rate"]] > facts["goal"]["first"]),
            "to_first_without_drafts": float(waits[row["rate"]]),
        }
        for row in best.to_dict("records")
    ]
    drafted = sorted(int(k) for k in table["draft_len"].unique() if k) if known else []
    return {
        **facts,
        "known": known,
        "best_by_rate": by_rate if known else [],
        "crossing_rate": {k: crossing(table, k) for k in drafted},
        "crossing_interval": {k: [crossing(table, k, end) for end in SPEEDUP[1:]] for k in drafted},
        "best_by_batch_and_context": lengths.astype(object).where(lengths.notna(), None).to_dict("records"),
    }


SPEEDUP = ("speedup", "speedup_low", "speedup_high")
"""The columns of a speed-up and of its 95 % interval."""


def lines(summary: Mapping[str, Any]) -> list[str]:
    """A summary for people."""
    notes = [f"left out: {count} {why}" for why, count in summary["left_out"].items()]
    if not summary["draft_ratio"]:
        notes.append("drafting is assumed to cost nothing: for a draft model give --draft-ratio or --draft-profile")
    if (repeated := summary["repeated_prefixes"]) >= traces.REPEATED:
        notes.append(
            f"{repeated:.0%} of the prompts' tokens repeat the beginning of an earlier prompt: the simulated server reads "
            "them again, and is slower than one that caches prefixes"
        )
    best = [*summary["best_by_rate"], *summary["best_by_batch_and_context"]]
    longest = max((row.get("draft_len") or row.get("best_draft_len") or 0 for row in best), default=0)
    if 0 < summary["acceptance_recorded"] < longest:
        notes.append(EXTRAPOLATED.format(summary["acceptance_recorded"]))
    if not summary["known"]:
        few = f"not yet known: fewer than {ENOUGH} requests are not enough (give a longer trace, or raise --requests)"
        return [few, *notes]
    texts = []
    for best in summary["best_by_rate"]:
        late = f" (overloaded without drafts: first token after {best['to_first_without_drafts']:.1f} s)"
        gain = "no draft"
        if best["draft_len"]:
            estimate, low, high = (best[name] for name in SPEEDUP)
            shown = Range(estimate=estimate, low=low, high=high).show()
            gain = f"draft length {best['draft_len']}, {shown} times as fast as no draft"
        gain += " (not yet known whether one pays off)" * (best["pays_off"] == "not yet known")
        texts.append(f"{best['rate']:g} requests a second: {gain}{late if best['overloaded'] else ''}")
    known = [best["rate"] for best in summary["best_by_rate"]]
    for k, rate in summary["crossing_rate"].items():
        if rate is not None:
            texts.append(_crossing_line(k, [rate, *summary["crossing_interval"][k]], known))
    measured = f"{summary['requests']} simulated requests at each rate; 95 % intervals"
    return [*(texts or ["no rate was simulated"]), *notes, measured]


def _crossing_line(draft_len: int, rates: Sequence[float | None], known: Sequence[float]) -> str:
    """Where a length stops paying off, by the estimate and the ends of its interval, in words; of ``known`` rates."""
    rate, _, high = rates
    if rate == 0:
        at = "pays off at none of these rates" if high == 0 else "is not known to pay off at any of these rates"
        return f"draft length {draft_len} {at}"
    below, above = f"below {per_second(known[0])}", f"above {per_second(known[-1])}"
    at, *ends = (above if r is None else per_second(r) if r else below for r in rates)
    return f"draft length {draft_len} stops paying off at {at} [{', '.join(ends)}] requests a second"


def draw(table: pd.DataFrame, lengths: pd.DataFrame, title: str) -> Figure:
    """Speed-up and time per token over the rate by draft length, and the best length by batch and context."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(12, 3.8), layout="constrained")
    speed, pace, best = page.subplots(1, 3)
    for draft_len, rows in table.groupby("draft_len"):
        shade = f"C{int(str(draft_len))}"
        speed.plot(rows["rate"], rows["speedup"], color=shade, marker="o", ms=3, label=f"{draft_len}")
        speed.fill_between(rows["rate"], rows["speedup_low"], rows["speedup_high"], color=shade, alpha=0.18, lw=0)
        pace.plot(rows["rate"], rows["per_token_p95"] * 1e3, color=shade, marker="o", ms=3)
    speed.axhline(1, color="0.5", lw=0.8)
    speed.set(xlabel="requests a second", ylabel="speed-up of a request", xscale="log")
    speed.set_title(title, parse_math=False)
    speed.legend(title="drafted", fontsize=7, ncols=2)
    pace.set(xlabel="requests a second", ylabel="ms per token, 95th percentile", xscale="log")
    shown: list[float] = []
    for rate in sorted(table["rate"].unique()):
        if not shown or rate >= 1.4 * shown[-1]:
            shown.append(rate)
    for axes in (speed, pace):
        axes.set_xticks(shown, [f"{r:.2g}" for r in shown])
        axes.minorticks_off()
    grid = lengths.pivot(index="batch", columns="context", values="best_draft_len")
    darkest = 2 * lengths["best_draft_len"].max() + 1
    best.imshow(grid.to_numpy(float), origin="lower", aspect="auto", cmap="Blues", vmin=0, vmax=darkest)
    best.set(xlabel="tokens of context", ylabel="batch", title="best draft length")
    best.set_xticks(range(len(grid.columns)), [str(c) for c in grid.columns])
    best.set_yticks(range(len(grid.index)), [str(b) for b in grid.index])
    for (row, column), value in np.ndenumerate(grid.to_numpy(float)):
        if np.isfinite(value):
            best.text(column, row, f"{value:.0f}", ha="center", va="center", fontsize=8)
    return page


@dataclass(frozen=True)
class LoadSettings:
    """What to simulate."""

    profile: str
    """the hardware's costs: a YAML file of draftlab profile, or one of a100-llama-3-8b, h100-llama-2-7b, h100x4-llama-2-70b, rtx4090-llama-3.1-8b, rtxpro6000-llama-3.1-8b, rtxpro6000x2-qwen3-32b"""
    trace: Path | None = None
    """a file with the arrivals and lengths of requests, stretched to each of the rates; without one, requests arrive at random times"""
    prompt: int = 512
    """tokens of a prompt, without a trace"""
    output: int = 128
    """tokens of an answer, without a trace"""
    requests: int = 1000
    """most requests to simulate"""
    rates: tuple[float, ...] = ()
    """loads, in requests per second; without one, from a twentieth of what the machine serves without drafts to just beyond it"""
    poisson: bool = False
    """use only the lengths of the trace; requests arrive at random times"""
    burst: float = 1.0
    """how uneven random arrivals are: the variance of the gaps over their squared mean; 1: a Poisson process"""
    alpha: float | None = None
    """acceptance of a drafted token"""
    acceptance: Path | None = None
    """instead of --alpha, a file with an engine's records, which have the acceptance of each request"""
    draft_ratio: float | None = None
    """cost of a step of the draft, in steps of the target; without one, the draft in the profile, or else a lookup that costs nothing"""
    draft_profile: str | None = None
    """instead of --draft-ratio, a profile whose target is the draft"""
    parallel: bool = False
    """the draft proposes a block in one step, as PARD and P-EAGLE do, instead of a step for each token"""
    draft_lens: tuple[int, ...] = DRAFT_LENS
    """draft lengths to compare, in tokens; 0: no draft"""
    goal_first: float = 1.0
    """seconds within which the first token should come"""
    goal_per_token: float = 0.05
    """seconds per further token that are allowed, on average"""
    seed: int = 0
    """seed of the arrivals and of what is accepted"""


def run(settings: LoadSettings, out: Path, progress: Callable[[str], None]) -> dict[str, Any]:
    """Simulate, and write OUT.csv, OUT.json and OUT.png; returns the content of OUT.json."""
    if out.name in ("", ".."):
        raise UserError(f"--out is {str(out)!r}, a folder", remedy="give the path of the files without a suffix")
    profile = _profile(settings)
    acceptance = _acceptance(settings)
    _check_numbers(settings)
    lengths = best_lengths(profile, acceptance, settings.draft_lens)
    if lengths.empty:
        raise UserError(
            f"not even one request with {min(CONTEXTS)} tokens fits {profile.name}: kv_tokens {profile.kv_tokens}, "
            f"max_tokens {profile.max_tokens}",
            remedy="give a profile with larger ones",
        )
    arrivals = that_fit(_arrivals(settings), profile)
    most = capacity(arrivals, profile)
    rates = sorted({*settings.rates}) or rates_for(most)
    goal = Goal(settings.goal_first, settings.goal_per_token)
    seed, draft_lens = settings.seed, settings.draft_lens
    table = sweep(arrivals, rates, profile, acceptance, goal, seed=seed, draft_lens=draft_lens, progress=progress)
    facts = {
        "profile": profile.name,
        "requests": len(arrivals.seconds),
        "left_out": dict(arrivals.left_out),
        "repeated_prefixes": arrivals.repeated,
        "capacity": most,
        "alpha": settings.alpha,
        "draft_ratio": _draft_ratio(profile),
        "parallel": profile.parallel,
        "acceptance_length_4": acceptance.length(4),
        "acceptance_recorded": acceptance.recorded,
        "goal": {"first": goal.first, "per_token": goal.per_token},
        "seed": seed,
    }
    result = summary(table, lengths, facts)
    write_text(out.with_name(f"{out.name}.csv"), table.to_csv(index=False, lineterminator="\n"))
    with atomic_path(out.with_name(f"{out.name}.png")) as temporary:
        draw(table, lengths, profile.name).savefig(temporary, format="png", dpi=120)
    write_json(out.with_name(f"{out.name}.json"), result)
    return result


def _check_numbers(settings: LoadSettings) -> None:
    lengths = settings.draft_lens
    if not lengths or min(lengths) < 0 or max(lengths) > LONGEST:
        raise UserError(f"--draft-lens is {list(lengths)}", remedy=f"give one length or more, from 0 to {LONGEST}")
    if not (settings.goal_first > 0 and settings.goal_per_token > 0):  # NaN is neither
        what = f"--goal-first is {settings.goal_first} s and --goal-per-token {settings.goal_per_token} s"
        raise UserError(what, remedy="give more than 0 s")
    if settings.seed < 0:
        raise UserError(f"--seed is {settings.seed}", remedy="give 0 or more")


def _profile(settings: LoadSettings) -> Profile:
    """The costs of the target, and of the draft that the settings name."""
    profile = profiles.load(settings.profile)
    if settings.parallel:
        profile = profile.model_copy(update={"parallel": True})
    if settings.draft_profile is not None and settings.draft_ratio is not None:
        raise UserError("two costs of the draft", remedy="give either --draft-ratio or --draft-profile")
    if settings.draft_profile is not None:
        draft = profiles.load(settings.draft_profile)
        if draft.hardware != profile.hardware:
            raise UserError(
                f"the draft was timed on {draft.hardware}, the target on {profile.hardware}",
                remedy="give profiles of one machine, or --draft-ratio",
            )
        return profile.model_copy(update={"draft": draft.target})
    if settings.draft_ratio is not None:
        if not 0 <= settings.draft_ratio < float("inf"):
            raise UserError(f"--draft-ratio is {settings.draft_ratio}", remedy="give 0 or more")
        return profile.model_copy(update={"draft": profile.target.scaled(settings.draft_ratio)})
    return profile


def _draft_ratio(profile: Profile) -> float:
    """A step of the draft in steps of the target, of one token without context; 0: drafting costs nothing."""
    draft, target = (costs.step(1, 1, 1, 0.0) if costs else 0.0 for costs in (profile.draft, profile.target))
    return round(draft / target, 6)


def _acceptance(settings: LoadSettings) -> AcceptanceCurves:
    if (settings.alpha is None) == (settings.acceptance is None):
        raise UserError(
            "no acceptance, or two", remedy="give either --alpha, or --acceptance FILE with an engine's records"
        )
    if settings.alpha is not None:
        return from_alpha(settings.alpha)
    assert settings.acceptance is not None
    return records.acceptance(settings.acceptance)


def _arrivals(settings: LoadSettings) -> traces.Arrivals:
    if settings.requests < 1 or min(settings.prompt, settings.output) < 1:
        raise UserError("no requests, or empty ones", remedy="give --requests, --prompt and --output of at least 1")
    if settings.trace is not None:
        if settings.burst != 1 and not settings.poisson:
            raise UserError("--burst is for random arrivals", remedy="add --poisson, or leave it out")
        lengths = traces.read_trace(settings.trace, limit=settings.requests)
        if not settings.poisson:
            if len(lengths.seconds) > 1 and not math.isfinite(lengths.rate):
                remedy = "give a trace of several times, or add --poisson"
                raise UserError("all its requests come at once", file=settings.trace, remedy=remedy)
            return lengths
    else:
        lengths = traces.constant(settings.prompt, settings.output)
    return traces.poisson(lengths, settings.requests, 1.0, np.random.default_rng(settings.seed), settings.burst)


def rates_for(most: float) -> list[float]:
    """Rates from a twentieth of the capacity ``most`` to just beyond it."""
    return [float(f"{most * share:.3g}") for share in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1)]


def load(settings: Flat[LoadSettings], *, out: Path) -> None:
    """Simulate a server under load for each rate and draft length; writes OUT.csv, OUT.json and OUT.png.

    **Arguments:**
    - `out`: path of the files to write, without a suffix
    """
    print(*lines(run(settings, out, lambda line: print(line, file=sys.stderr))), sep="\n")
