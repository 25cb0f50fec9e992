"""A simulated server at several loads and draft lengths: what its requests experience, and which length is best."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from jaxtyping import Int

from draftlab.core.stats import Interval, ratio
from draftlab.serving.acceptance import AcceptanceCurves
from draftlab.serving.profiles import Profile
from draftlab.serving.simulate import Served, fits_cache, serve
from draftlab.serving.traces import Arrivals

DRAFT_LENS = tuple(range(9))
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (128, 512, 2048, 8192, 32768)
GROUPS = 10
"""The groups of requests that an interval is drawn from. Requests that wait delay one another, so neighbours are drawn together."""
TOO_LARGE = "larger than the cache (use a profile with more kv_tokens)"


@dataclass(frozen=True)
class Goal:
    """A request is served well when its first token comes within ``first`` seconds and the others ``per_token`` apart on average."""

    first: float = 1.0
    per_token: float = 0.05


def measures(served: Served, goal: Goal) -> dict[str, float]:
    """What the requests of a load experienced; times in seconds, rates per second of the whole run."""
    pace = np.zeros(len(served.output))
    pace[served.output > 1] = served.per_token
    well = (served.to_first <= goal.first) & (pace <= goal.per_token)
    row = {
        "requests": float(len(served.arrived)),
        "seconds": served.seconds,
        "tokens_per_second": float(served.output.sum()) / served.seconds,
        "goodput": float(well.sum()) / served.seconds,
        "preempted": float(served.preempted),
        "mean_batch": served.batch,
    }
    for name, times in (("to_first", served.to_first), ("per_token", served.per_token), ("whole", served.whole)):
        row[f"{name}_mean"] = float(times.mean()) if len(times) else float("nan")
        for label, q in QUANTILES.items():
            row[f"{name}_{label}"] = float(np.quantile(times, q)) if len(times) else float("nan")
    return row


def speedup(plain: Served, served: Served) -> Interval:
    """The mean time of a whole request without drafts over that with them, with its 95 % interval over groups of requests.

    It is drawn from groups of neighbours, for arrivals, lengths and chance in what is accepted. Where requests have classes of acceptance, as those
    of an engine's records, it is also drawn from groups of these: a load with other records would differ. Both parts add up as variances do.

    **Arguments:**
    - `plain`: the requests, served without drafts.
    - `served`: the same requests, served with drafts.

    **Returns:** the ratio and its interval; `n` is the number of groups.

    >>> times, few = np.arange(40.0), np.zeros(40, dtype=int)
    >>> slow, fast = (Served(times, times + s, times + s, few + 9, 9, 0, 1.0, few) for s in (3, 2))
    >>> speedup(slow, fast)
    Interval(estimate=1.5, low=1.5, high=1.5, n=10, freedom=None)
    """
    count = len(served.arrived)
    over_time = _over_groups(plain, served, np.arange(count) * min(GROUPS, count) // count)
    records, own = np.unique(served.classes, return_inverse=True)
    if len(records) == 1:
        return over_time
    over_records = _over_groups(plain, served, own % GROUPS)
    middle = over_time.estimate
    low, high = (
        float(np.hypot(getattr(over_time, end) - middle, getattr(over_records, end) - middle))
        for end in ("low", "high")
    )
    return replace(over_time, low=max(middle - low, 0.0), high=middle + high)


def _over_groups(plain: Served, served: Served, group: Int[np.ndarray, " requests"]) -> Interval:
    """The ratio of all times, with an interval over groups."""
    above, below = (np.bincount(group, weights=one.whole) for one in (plain, served))
    return ratio(above, below)


def sweep(
    arrivals: Arrivals,
    rates: Sequence[float],
    profile: Profile,
    acceptance: AcceptanceCurves,
    goal: Goal,
    *,
    seed: int = 0,
    draft_lens: Sequence[int] = DRAFT_LENS,
    share: float = 1.0,
    progress: Callable[[str], None] = lambda _: None,
) -> pd.DataFrame:
    """One row per (rate, draft length), all with the same requests, arrival times and random numbers.

    ``speedup`` is the mean time of a whole request without drafts over that with them, from ``speedup_low`` to ``speedup_high``.
    """
    rows: list[dict[str, float]] = []
    at_rates = [arrivals.at_rate(rate) for rate in rates]  # a wrong one is said before minutes of work
    for rate, stretched in zip(rates, at_rates, strict=True):
        progress(f"simulating {rate:g} requests a second, with each of {len(draft_lens)} draft lengths")
        plain: Served | None = None
        for draft_len in sorted({0, *draft_lens}):
            rng = np.random.default_rng(seed)
            served = serve(stretched, profile, draft_len, acceptance if draft_len else None, rng, share)
            plain = plain or served  # the first has no drafts
            gain = speedup(plain, served)
            interval = {"speedup": gain.estimate, "speedup_low": gain.low, "speedup_high": gain.high}
            rows.append({"rate": rate, "draft_len": draft_len, **measures(served, goal), **interval})
    return pd.DataFrame(rows)


def best_lengths(
    profile: Profile, acceptance: AcceptanceCurves, draft_lens: Sequence[int] = DRAFT_LENS
) -> pd.DataFrame:
    """For each batch and context, the draft length that emits the most tokens per second without a queue, and its speed-up.

    ``speedup = length(k) step(0) / step(k)``: one step of the target reads ``B (k + 1)`` tokens, the draft takes k steps. Its 95 % interval is that of
    the length over recorded requests; NaN if acceptance was not recorded by request.
    """
    rows = []
    lengths = {k: acceptance.interval(k) for k in sorted({0, *draft_lens})}
    for batch, context in itertools.product(BATCHES, CONTEXTS):
        if batch > min(profile.max_sequences, profile.max_tokens) or batch * context > profile.kv_tokens:
            continue
        plain = profile.block_ms(batch, context, 0)
        gains = {
            k: plain / profile.block_ms(batch, context, k) for k in lengths if batch * (k + 1) <= profile.max_tokens
        }
        best = max(gains, key=lambda k: (lengths[k].estimate * gains[k], -k))
        found = lengths[best]
        speedups = (length * gains[best] for length in (found.estimate, found.low, found.high))
        rows.append((batch, context, best, *speedups))
    return pd.DataFrame(rows, columns=["batch", "context", "best_draft_len", "speedup", "speedup_low", "speedup_high"])


def crossing(table: pd.DataFrame, draft_len: int, speedup: str = "speedup") -> float | None:
    """The rate beyond which this length no longer pays off, interpolated linearly between two rates; 0 if it never does, none if it still does.

    That of ``speedup_low`` and that of ``speedup_high`` are the ends of its interval: between them, the interval of the speed-up includes 1.
    """
    rows = table[table["draft_len"] == draft_len].sort_values("rate")
    rates, gains = rows["rate"].to_numpy(float), rows[speedup].to_numpy(float)
    if gains[-1] >= 1:
        return None
    for i in range(len(rates) - 1, 0, -1):
        if gains[i - 1] >= 1:
            return float(rates[i - 1] + (rates[i] - rates[i - 1]) * (gains[i - 1] - 1) / (gains[i - 1] - gains[i]))
    return 0.0


def that_fit(arrivals: Arrivals, profile: Profile) -> Arrivals:
    """The requests that fit the cache; the others are left out, so that the rest still come at the rate of a sweep."""
    fits = fits_cache(arrivals, profile)
    if fits.all() or not fits.any():  # if none fits, serving says so
        return arrivals
    left_out = {**arrivals.left_out, TOO_LARGE: int((~fits).sum())}
    return replace(arrivals.take(fits), left_out=left_out)


def capacity(arrivals: Arrivals, profile: Profile) -> float:
    """Requests per second that the machine serves without drafts if all wait from the start."""
    together = Arrivals(np.zeros(len(arrivals.prompt)), arrivals.prompt, arrivals.output, {})
    served = serve(together, profile, 0, None, np.random.default_rng(0))
    return len(served.output) / served.seconds
