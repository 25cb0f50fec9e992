"""Checks the papers against themselves: finds printed numbers that do not follow from other printed numbers.

A check computes a formula from printed inputs. Each input is known to half a unit of its last printed digit, so the result is a
range. The printed value must lie in this range to one unit of its own last digit, because papers round and some truncate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd

from draftlab.core import theory
from draftlab.errors import UserError
from draftlab.report.published import CHECKS, Check, Published, Source
from draftlab.report.tidy import records

Value = float | str | tuple[float, ...]


@dataclass(frozen=True)
class Recomputed:
    """The result of one check for one printed number: the recomputed value, whether the printed one agrees, and a note."""

    check: str
    recomputed: float
    holds: bool
    note: str
    derives: bool


def optimal_acceptance(num_drafts: str, target: str, draft: str) -> float:
    """Compute ``min over H of 1 + target(H) - draft(H)^K`` by enumeration in fractions (MDSS, Theorem 3 and Remark 2)."""
    target_probs, draft_probs = _fractions(target), _fractions(draft)

    def acceptance(chosen: Sequence[bool]) -> Fraction:
        in_target, in_draft = (sum(itertools.compress(p, chosen), Fraction(0)) for p in (target_probs, draft_probs))
        return 1 + in_target - in_draft ** int(num_drafts)

    return float(min(map(acceptance, itertools.product([False, True], repeat=len(target_probs)))))


def specinfer_acceptance(num_drafts: str, target: str, draft: str) -> float:
    """Compute ``1 - prod_k (1 - sum_x min(q_k, p))`` in fractions, where ``q_{k+1}`` is the normalised ``(q_k - p)+`` (SpecInfer)."""
    target_probs, draft_probs = _fractions(target), _fractions(draft)
    all_rejected = Fraction(1)
    for _ in range(int(num_drafts)):
        rejected = 1 - sum(map(min, target_probs, draft_probs))
        all_rejected *= rejected
        if rejected:
            residual = (max(q - p, Fraction(0)) for q, p in zip(target_probs, draft_probs, strict=True))
            target_probs = [mass / rejected for mass in residual]
    return float(1 - all_rejected)


def _fractions(text: str) -> list[Fraction]:
    return [Fraction(part) for part in text.split(",")]


def _memory(
    system: str,
    *,
    tokens: float,
    target_gb: float,
    draft_gb: float,
    alpha: float,
    draft_len: float,
    interval: float = 1,
) -> float:
    length = theory.expected_block_length(alpha, int(draft_len))
    traffic = theory.memory_traffic(
        theory.ModelSize(target_gb, 0.0),
        theory.ModelSize(draft_gb, 0.0),
        tokens=int(tokens),
        update_interval=int(interval),
        block_length=length,
        online_block_length=length,
    )
    return sum(traffic[system].values())


FORMULAS: dict[str, Callable[..., float]] = {
    "equal": lambda value: value,
    "quotient": lambda above, below: above / below,
    "percent": lambda above, below: 100 * above / below,
    "product": lambda left, right: left * right,
    "smallest": lambda values: np.min(values),
    "largest": lambda values: np.max(values),
    "smallest_quotient": lambda above, below: np.min(np.divide(above, below)),
    "largest_quotient": lambda above, below: np.max(np.divide(above, below)),
    "smallest_difference": lambda left, right: np.min(np.subtract(left, right)),
    "largest_difference": lambda left, right: np.max(np.subtract(left, right)),
    "speedup": lambda alpha, draft_len, cost_ratio: theory.speedup(alpha, int(draft_len), cost_ratio),
    "latency": lambda alpha, draft_len, cost_ratio, baseline: (
        baseline / theory.speedup(alpha, int(draft_len), cost_ratio)
    ),
    "distillation_speedup": lambda alpha_before, alpha_after, draft_len: theory.distillation_speedup(
        alpha_before, alpha_after, int(draft_len)
    ),
    "drafted_share": lambda alpha, draft_len: 1 - 1 / theory.expected_block_length(alpha, int(draft_len)),
    "memory_plain": lambda tokens, target_gb, draft_gb: tokens * target_gb,
    "memory_speculative": lambda **inputs: _memory("vsd", **inputs),
    "memory_online": lambda update_interval, **inputs: _memory("osd", **inputs, interval=update_interval),
    "flops_ratio": lambda alpha, draft_len, target, draft: theory.update_flops_ratio(
        int(draft_len), theory.expected_block_length(alpha, int(draft_len)), target, draft
    ),
    "load": lambda tokens, requests, days, flops: theory.load_flops(tokens, requests, days, flops),
    "optimal_acceptance": optimal_acceptance,
    "specinfer_acceptance": specinfer_acceptance,
}


def run_checks(published: Published) -> dict[str, list[Recomputed]]:
    """Run all checks and return the results by claim id; a printed number without a check is absent."""
    results: dict[str, list[Recomputed]] = {}
    for name, check in published.checks.items():
        for claim_id, result in _run(name, check, published):
            results.setdefault(claim_id, []).append(result)
    return results


def _run(name: str, check: Check, published: Published) -> list[tuple[str, Recomputed]]:
    rows = published.of(check.claim, **check.where)
    if rows.empty:
        what = f"check {name}: no printed number of {check.claim}"
        raise UserError(what, file=CHECKS, remedy="repair the check")
    results = []
    series = rows["settings"].map(lambda settings: tuple(settings.get(key) for key in check.series or settings))
    for _, members in rows.groupby(series, sort=False):
        fits = [_fits(check, row, published, {}) for row in records(members)]
        alternative = "" if all(ok for _, ok in fits) else _search(check, members, published)
        for (recomputed, ok), row in zip(fits, records(members), strict=True):
            holds = ok if check.series is None else all(good for _, good in fits)
            verb = "gives" if holds else "would give"
            note = f"{check.text} {verb} {recomputed:.4g}{alternative}"
            results.append((row["claim_id"], Recomputed(name, recomputed, holds, note, check.derives)))
    return results


def _search(check: Check, rows: pd.DataFrame, published: Published) -> str:
    """Name the input values of ``check.search`` that make every row of a failed series agree; empty if there are none."""
    for choice in itertools.product(*check.search.values()):
        values = dict(zip(check.search, choice, strict=True))
        if values and all(_fits(check, row, published, values)[1] for row in records(rows)):
            text = ", ".join(f"{key} = {value:g}" for key, value in values.items())
            return f"; all values of this row of the table agree with {text}"
    return ""


def _fits(check: Check, row: Mapping[str, Any], published: Published, exact: Mapping[str, float]) -> tuple[float, bool]:
    """The recomputed value, and whether the printed value lies in the range that the rounding of the inputs allows."""
    bounds = {
        name: (exact[name],) * 3 if name in exact else _bounds(source, row, published)
        for name, source in check.inputs.items()
    }

    def compute(inputs: Iterable[Value]) -> float:
        return float(FORMULAS[check.formula](**dict(zip(bounds, inputs, strict=True))))

    recomputed = compute(middle for _, middle, _ in bounds.values())
    corners = list(map(compute, itertools.product(*({low, high} for low, _, high in bounds.values()))))
    allowed = check.tolerance if check.tolerance is not None else published.claims[check.claim].digit
    allowed += 1e-9 * abs(row["value"])
    return recomputed, min(corners) - allowed <= row["value"] <= max(corners) + allowed


def _bounds(source: Source, row: Mapping[str, Any], published: Published) -> tuple[Value, Value, Value]:
    """The lower bound of an input, its printed value, and its upper bound."""
    if source.value is not None:
        return source.value, source.value, source.value
    settings: Mapping[str, str] = row["settings"]
    if source.setting is not None:
        text = settings[source.setting]
        value: Value = float(text) if text.replace(".", "", 1).isdigit() else text
        return value, value, value
    wanted = {key: settings[key] for key in source.same} | source.where
    assert source.claim is not None, "a source names a value, a setting or a claim"
    printed = published.of(source.claim, **wanted)["value"].to_numpy()
    if not len(printed):
        what = f"no printed number of {source.claim} with {wanted}"
        raise UserError(what, file=CHECKS, remedy="repair the check that asks for it")
    half = published.claims[source.claim].digit / 2
    low, middle, high = (tuple(map(float, printed + shift)) for shift in (-half, 0.0, half))
    return (low[0], middle[0], high[0]) if len(printed) == 1 else (low, middle, high)
